"""Stores that no worker uses any more, as a server sees it: what is left, and what does not come back."""

from __future__ import annotations

import numpy as np
import pytest
from support.dense_job import DenseJob
from support.one_server import Server, leader, only
from support.saving_server import Server as SavingServer

from kvstore_mpi.records import KeySpec, StoreTerms
from kvstore_mpi.server.records import Answer
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.wire import messages as m

SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={"momentum": 0.9})


def close(server, keys=(0,), stores=(0,)):
    """Do what a server's shell does."""
    server.state.close([*stores], frozenset(keys))
    server.store.drop([*keys], [*stores])


def test_rounds_that_were_left_are_none():
    """A client has pushed, and another was lost before it did: nobody fails, or waits, for its store."""
    server = Server()
    server.push(0, 1)
    server.state.close([0], frozenset([0]))
    assert not server.state.rounds.under_way
    assert server.state.rounds.tick(1e6) == []
    assert [*server.state.keys] == []
    assert server.state.keys.spec_of(0) is None


def test_a_quorum_that_was_left_ends_no_wait():
    server = Server(clients=3, optimizer="hyper")
    terms = StoreTerms(params=True, quorum=2, quorum_wait=5.0)
    server.state.keys.set_optimizer(0, {}, "hyper", terms, 1)
    for client in range(2):
        server.push(client, 1)
    assert server.state.rounds.next_deadline() is not None
    server.state.close([0], frozenset([0]))
    assert server.state.rounds.next_deadline() is None


def test_who_has_not_heard_of_it_is_not_asked_for_its_values():
    """A server that has come back asks clients for what it lacks, and not for what nobody needs."""
    server = Server(create=False)
    server.state.close([0], frozenset([0]))
    spec = KeySpec(0, "w", (8,), "float32")
    told = [m.Create(spec, "sync", key_id, (0, 8), [(0, 8)]) for key_id in range(2)]
    (asked,) = server.state.resume(leader(1), m.Resume([(told[0], 7), (told[1], 3)]))
    assert asked.message == m.Missing([1])


def test_the_next_store_begins_anew():
    """Its number may be the same, where all workers have begun again; no count of the one before stays."""
    server = Server(optimizer="hyper")
    for client in range(2):
        server.push(client, 1)
    server.state.close([0], frozenset([0]))
    server.create(key_id=1)
    assert server.push(0, 1, key_id=1) == []
    assert len(only(Answer, server.push(1, 1, key_id=1))) == 2


# --- snapshots ---


def test_later_snapshots_lack_it(tmp_path):
    """A server that is started again has nothing of it, and goes on with the others."""
    server = SavingServer(tmp_path)
    server.give(0, SGD.to_dict())
    server.create()
    server.create("v", key_id=1)
    server.push(0, 1)
    server.snapshots.save(server.state, server.store)
    close(server)
    server.create("v", key_id=2)
    server.snapshots.save(server.state, server.store)
    back = SavingServer(tmp_path)
    assert back.restore()
    assert sorted(back.state.keys.by_id) == [1, 2]
    assert dict(back.store.specs()) == {}


def test_a_snapshot_from_before_is_put_right_when_the_server_has_joined(tmp_path):
    server = SavingServer(tmp_path)
    server.create()
    server.create("v", key_id=1)
    server.snapshots.save(server.state, server.store)
    back = SavingServer(tmp_path)
    back.restore()
    assert sorted(back.state.keys.by_id) == [0, 1]
    close(back)
    assert sorted(back.state.keys.by_id) == [1]
    assert sorted(back.store.layouts) == [1]


@pytest.mark.parametrize("servers", [2, 3])
def test_a_job_that_goes_on_has_it_from_no_server(tmp_path, servers):
    """Snapshots are of different moments: one that has it still does not bring back a part of it."""
    keys = [KeySpec(0, "w", (40,), "float32"), KeySpec(1, "v", (40,), "float32")]
    job = DenseJob(tmp_path, 2)
    job.give("sgd")
    for spec in keys:
        job.create(spec)
    job.push(1, 1)
    job.save()
    first, other = job.servers
    close(first)
    first.give(1, SGD.to_dict())
    other.give(1, SGD.to_dict())
    for server in (first, other):
        server.state.keys.note_given(1, 1)
    first.save()
    after = DenseJob(tmp_path, servers, job="b")
    after.resume()
    for spec in keys:
        after.create(spec)
    counts = after.counts()
    assert {count for (key, _), count in counts.items() if key == 0} == {0}
    value = [number for (key, index), part in after.content().items() if key == 0 for number in part]
    np.testing.assert_array_equal(value, np.arange(40) % 7 + 1)
