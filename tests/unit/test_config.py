"""Reading ``KVMPI_*``: what is accepted, and that every error is named at once."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.config import COLLECTIVES, LEADERS, PLACEMENTS, PREFIX, SCHEDULES, TRANSPORTS, NodeConfig
from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.records import Role, Topology
from kvstore_mpi.settings import AUTO, settings_of

SECONDS = st.floats(0.001, 1e6)
TEXT = st.text(min_size=1, max_size=20)


@st.composite
def valid_configs(draw):
    """Draw a configuration without errors."""
    num_servers = draw(st.integers(0, 9))
    num_clients = draw(st.integers(1, 9)) if num_servers else 1
    heartbeat = draw(SECONDS)
    leaders = draw(st.sampled_from(LEADERS))
    return NodeConfig(
        role=draw(st.sampled_from(Role)),
        index=draw(st.integers(0, 99)),
        client=draw(st.integers(0, num_clients - 1)),
        num_clients=num_clients,
        num_workers=num_clients * draw(st.integers(0, 9)),
        num_servers=num_servers,
        model_rank=draw(st.integers(0, 9)),
        scheduler=draw(TEXT),
        job_file=draw(TEXT),
        snapshot_dir=draw(TEXT),
        snapshot_every=draw(SECONDS),
        keep_values=draw(st.booleans()),
        resume=draw(st.booleans()),
        incarnation=draw(st.integers(0, 99 if leaders != "all" else 0)),
        record_dir=draw(TEXT),
        take_over=draw(st.booleans()),
        start_with=draw(st.integers(0, num_clients)),
        news_pipe=draw(TEXT),
        ready_pipe=draw(TEXT),
        interface=draw(TEXT),
        transport=draw(st.sampled_from(TRANSPORTS)),
        slice_elements=draw(st.integers(1, 10**9)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        window_bytes=draw(st.integers(0, 10**9)),
        placement=draw(st.sampled_from(PLACEMENTS)),
        collective=draw(st.sampled_from([each for each in COLLECTIVES if each != "shm"])),
        collective_profile=draw(TEXT),
        leaders=leaders,
        connect_timeout=draw(SECONDS),
        step_timeout=draw(SECONDS),
        warn_after=draw(SECONDS),
        heartbeat=heartbeat,
        peer_timeout=2 * heartbeat + draw(SECONDS),
        finish_timeout=draw(SECONDS),
        trace=draw(TEXT),
    )


@given(valid_configs())
def test_a_configuration_is_read_back_from_its_environment(config):
    """Every field has a variable, and none is read from another's."""
    environment = config.to_mapping()
    assert NodeConfig.from_mapping(environment) == config
    assert set(environment) <= {f"{PREFIX}{each.name.upper()}" for each in fields(NodeConfig)}


def test_every_field_is_described():
    """What a field means, and who sets it, stands beside it: the options are made of that."""
    assert {each.name for each, _ in settings_of(NodeConfig)} == {each.name for each in fields(NodeConfig)}
    assert all(setting.text for _, setting in settings_of(NodeConfig))


def test_the_word_auto_leaves_a_setting_to_what_is_measured():
    """Where there is something to measure."""
    assert NodeConfig.from_mapping({"KVMPI_WINDOW_BYTES": "auto"}).window_bytes == AUTO
    with pytest.raises(ConfigurationError, match="KVMPI_HEARTBEAT='auto' is not a number"):
        NodeConfig.from_mapping({"KVMPI_HEARTBEAT": "auto"})


def test_an_empty_environment_is_one_worker_alone():
    """A script without the launcher is pure MPI with as many workers as MPI has ranks."""
    config = NodeConfig.from_mapping({"PATH": "/usr/bin", "kvmpi_role": "server"})
    assert config == NodeConfig()
    assert config.topology(client_size=3) == Topology(num_clients=1, num_workers=3, num_servers=0)


def test_the_number_of_workers_comes_from_the_environment_when_it_is_there():
    """MPI knows one client only, the launcher knows all."""
    config = NodeConfig(num_clients=2, num_workers=6, num_servers=1)
    assert config.topology(client_size=3).num_workers == 6


def test_malformed_values_are_all_named_with_their_variables():
    """One run tells everything that is wrong with the environment."""
    bad = {"KVMPI_INDEX": "first", "KVMPI_HEARTBEAT": "1s", "KVMPI_ROLE": "boss", "KVMPI_CLIENT": "1"}
    with pytest.raises(ConfigurationError) as caught:
        NodeConfig.from_mapping(bad)
    for variable in ("KVMPI_INDEX='first'", "KVMPI_HEARTBEAT='1s'", "KVMPI_ROLE='boss'"):
        assert variable in str(caught.value)
    assert "KVMPI_CLIENT" not in str(caught.value)


@pytest.mark.parametrize(
    ("leaders", "servers", "ranks", "expected"),
    [
        ("all", 1, 2, True),
        ("one", 1, 2, False),
        ("auto", 1, 2, False),
        ("all", 0, 2, False),
        ("all", 1, 1, False),
    ],
)
def test_all_ranks_push_where_there_are_several_and_servers(leaders, servers, ranks, expected):
    """Whoever asks, a worker's state, its MPI thread or a server, is told the same."""
    assert NodeConfig(leaders=leaders, num_servers=servers).all_push(ranks) is expected


SERVED = {"num_servers": 1, "scheduler": "tcp://127.0.0.1:1", "job_file": "job"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**SERVED, "num_clients": 0}, "num_clients must be at least 1"),
        ({**SERVED, "num_servers": -1}, "num_servers must not be negative"),
        ({"num_clients": 2}, "num_servers 0 is pure MPI, which has one client and not 2"),
        (
            {**SERVED, "num_clients": 2, "num_workers": 3},
            "num_workers 3 cannot be dealt to 2 clients of equal size",
        ),
        ({**SERVED, "scheduler": ""}, "scheduler must be set"),
        ({**SERVED, "job_file": ""}, "job_file must be set"),
        ({"transport": "udp"}, "transport must be one of"),
        ({"slice_elements": -1}, "slice_elements must be at least 1"),
        ({**SERVED, "routes": "e*=ring"}, "routes: the route of 'e*' cannot be 'ring'"),
        ({**SERVED, "routes": "servers"}, "routes: 'servers' is not of the form NAME=allreduce"),
        ({**SERVED, "routes": "e=servers,e=rows"}, "routes: 'e' has two routes, 'servers' and 'rows'"),
        ({"warn_after": -1.0}, "warn_after must not be negative, not -1.0"),
        ({"routes": "e*=servers"}, "routes: there are no servers: give num_servers 1 or more"),
        (
            {**SERVED, "num_clients": 2, "num_workers": 2, "routes": "a=servers, e*=allreduce"},
            "routes: allreduce is among the workers of one client, and this job has 2: give num_clients 1",
        ),
        (
            {**SERVED, "snapshot_dir": "s", "dense": "workers"},
            "dense workers does not go with snapshot_dir: snapshots have what is on servers",
        ),
        (
            {**SERVED, "snapshot_dir": "s", "routes": "a=servers,e*=rows"},
            "routes e*=rows does not go with snapshot_dir",
        ),
        (
            {**SERVED, "leaders": "all", "incarnation": 1},
            "leaders all does not go with processes that are started again",
        ),
        ({"schedule": "random"}, "schedule must be one of p3, slicing, fifo"),
        ({"window_bytes": -1}, "window_bytes must be at least 1, or auto"),
        ({"placement": "hash"}, "placement must be one of least_loaded, round_robin"),
        ({"heartbeat": 3.0, "peer_timeout": 5.0}, "peer_timeout must be at least twice heartbeat"),
        ({"peer_timeout": float("nan")}, "peer_timeout must be at least twice heartbeat"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(changes, words):
    """The message says which rule is broken, by the names of the fields."""
    environment = {f"{PREFIX}{name.upper()}": str(value) for name, value in changes.items()}
    with pytest.raises(ConfigurationError, match="environment of this process") as caught:
        NodeConfig.from_mapping(environment)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"num_clients": 2, "dense": "workers"}, {"routes": "a=servers"}, {"dense": "servers"}]
)
def test_snapshots_go_with_what_is_on_servers(changes):
    """Several clients have all keys there, whatever ``dense`` says."""
    assert NodeConfig(**{**SERVED, "snapshot_dir": "s", **changes}).validate() == []


def test_the_scheduler_needs_no_address_of_itself():
    """It is the process that the others are told the address of."""
    assert NodeConfig(role=Role.SCHEDULER, num_servers=1, job_file="job").validate() == []


@given(st.lists(st.lists(TEXT.filter(lambda text: not set(text) & set(",;")), min_size=1), min_size=1))
def test_each_part_of_a_model_has_its_scheduler(addresses):
    """A rank meets the one of those that own the same part."""
    told = ";".join(",".join(each) for each in addresses)
    for model_rank, expected in enumerate(addresses):
        assert NodeConfig(scheduler=told, model_rank=model_rank).scheduler_addresses == expected


def test_several_broken_rules_are_all_listed():
    """Nobody has to mend a configuration one run at a time."""
    assert len(NodeConfig(num_clients=2, transport="udp", slice_elements=-1).validate()) == 3


@pytest.mark.parametrize(
    ("fields", "later"),
    [
        ({}, False),
        ({"keep_values": True}, True),
        ({"keep_values": True, "num_clients": 1}, False),
        ({"start_with": 2}, True),
        ({"start_with": 3}, False),
    ],
)
def test_clients_may_come_when_others_have_trained(fields, later):
    """Where some are started again, or the others begin without them; of one client there are no others."""
    assert NodeConfig(**{"num_clients": 3, "num_workers": 3, **fields}).clients_come_later is later


@pytest.mark.parametrize(
    ("fields", "modes"),
    [
        ({}, set()),
        ({"resume": True, "snapshot_dir": "kept"}, {"sync", "async"}),
        ({"incarnation": 1}, {"async"}),
        ({"start_with": 2, "client": 1}, {"async"}),
        ({"start_with": 2, "client": 0}, set()),
        ({"start_with": 3, "client": 1}, set()),
    ],
    ids=["new", "resumed", "started again", "may be late", "is never late", "waits for all"],
)
def test_modes_in_which_servers_may_have_later_values(fields, modes):
    """In a synchronous job only those of a job before it."""
    assert NodeConfig(num_clients=3, **fields).takes_up == modes
