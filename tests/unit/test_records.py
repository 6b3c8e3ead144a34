"""Names of nodes, the shape of a job, how keys print, and which answers may be sent without a copy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.records import (
    SCHEDULER,
    KeySpec,
    Mode,
    NodeId,
    Role,
    StoreTerms,
    Topology,
    name_of_table,
    parameter_of,
)

NODES = st.one_of(
    st.just(SCHEDULER),
    st.builds(NodeId, st.sampled_from([Role.SERVER, Role.WORKER]), st.integers(0, 10**6)),
)
TOPOLOGIES = st.builds(
    lambda clients, size, servers: Topology(clients, clients * size, servers),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 5),
)


@given(NODES)
def test_a_node_is_read_back_from_its_name(node):
    """What ``str`` prints, ``parse`` reads."""
    assert NodeId.parse(str(node)) == node


def test_nodes_print_as_the_log_shows_them():
    """There is one scheduler, so it has no number."""
    nodes = [SCHEDULER, NodeId(Role.SERVER, 1), NodeId(Role.WORKER, 3)]
    assert [str(node) for node in nodes] == ["scheduler", "server1", "worker3"]


@pytest.mark.parametrize(
    "name",
    ["", "client0", "server", "worker-1", "worker1x", "worker 1", "scheduler0", "server²", "worker\u0661"],
)
def test_a_text_that_names_no_node_is_refused_by_name(name):
    """The message shows the text, with what is invisible in it."""
    with pytest.raises(ValueError, match="names no node") as caught:
        NodeId.parse(name)
    assert repr(name) in str(caught.value)


@given(TOPOLOGIES)
def test_every_worker_is_in_one_client_and_clients_are_blocks_of_equal_size(topology):
    """The members of all clients in order are all ranks in order."""
    members = [topology.members_of(client) for client in range(topology.num_clients)]
    assert [rank for ranks in members for rank in ranks] == list(range(topology.num_workers))
    assert {len(ranks) for ranks in members} == {topology.client_size}
    for client, ranks in enumerate(members):
        assert {topology.client_of(rank) for rank in ranks} == {client}


@given(TOPOLOGIES)
def test_the_leader_of_a_client_is_its_first_worker(topology):
    """Rank 0 of a client's MPI speaks for it, and its log prefix ends in 0."""
    for client in range(topology.num_clients):
        leader = topology.leader_of(client)
        assert leader == NodeId(Role.WORKER, topology.members_of(client)[0])
        assert topology.describe_worker(leader.index) == f"client{client}.0"


def test_workers_are_described_by_client_and_rank_in_it():
    """The launcher's prefixes name the same worker."""
    topology = Topology(num_clients=2, num_workers=6, num_servers=1)
    described = [topology.describe_worker(rank) for rank in (0, 2, 3, 5)]
    assert described == ["client0.0", "client0.2", "client1.0", "client1.2"]
    owners = Topology(2, 6, 1, model_parallel=2, model_rank=1)
    described = [owners.describe_worker(rank) for rank in (0, 2, 3, 5)]
    assert described == ["client0.1", "client0.5", "client1.1", "client1.5"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (KeySpec(0, "fc1_weight", (128, 64), "float32"), "key 'fc1_weight' (128, 64) float32"),
        (KeySpec(1, 7, (), "int64"), "key 7 () int64"),
    ],
)
def test_a_key_prints_what_workers_must_agree_on(spec, text):
    """A string key is told apart from an integer one."""
    assert str(spec) == text


@pytest.mark.parametrize(
    ("terms", "mode", "stable"),
    [
        (StoreTerms(), Mode.SYNC, True),
        (StoreTerms(), Mode.ASYNC, False),
        (StoreTerms(params=True, quorum=2), Mode.SYNC, False),
        (StoreTerms(params=True, bases=True, quorum=2), Mode.SYNC, True),
        (StoreTerms(params=True, bases=True), Mode.ASYNC, True),
        (StoreTerms(bases=True), Mode.ASYNC, False),
    ],
)
def test_an_answer_is_stable_where_it_changes_with_the_client_s_own_push_only(terms, mode, stable):
    """Sent without a copy, anything else could be half of one update and half of the next."""
    assert terms.is_stable(mode) is stable


@pytest.mark.parametrize("key", [0, 17, -3, "w", "table int gate", "table of contents", "a b  c", ""])
def test_a_table_made_of_a_dense_key_has_that_key_s_numbers(key):
    """Optimizers know its multipliers by the user's name, of the user's type."""
    assert name_of_table(key) != key
    assert parameter_of(name_of_table(key)) == key
    assert parameter_of(key) == key


def test_errors_name_a_table_as_the_user_does():
    """Also the one that has taken the place of a dense key."""
    for key in (3, "w"):
        spec = KeySpec(0, name_of_table(key), (4, 2), "float32", "rows", 2)
        assert str(spec) == f"key {key!r} (4, 2) float32 in 2 pieces (rows)"
