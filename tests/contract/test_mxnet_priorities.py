"""The priority of a call on the MXNet store: for MXNet's engine, and for the worker behind it."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters import in_place  # noqa: E402
from kvstore_mpi.adapters.mxnet import KVStoreMPI, engine  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402
from kvstore_mpi.testing.mxnet_rows import D, V, sgd, sparse  # noqa: E402

pytestmark = pytest.mark.mxnet


@pytest.fixture
def group():
    """One fake worker with servers."""
    with local_groups() as make:
        yield make(num_servers=1)
    assert engine.wait_until_idle(60)


@pytest.fixture
def pushed(monkeypatch):
    """The priorities of what is pushed to the engine, in order."""
    found, push = [], engine.push_async

    def noting(start, *, priority=0, **others):
        found.append(priority)
        push(start, priority=priority, **others)

    monkeypatch.setattr(engine, "push_async", noting)
    return found


@pytest.mark.parametrize("as_it_lies", [False, True], ids=["copied", "where it lies"])
def test_priorities_reach_the_engine_and_the_worker(group, pushed, as_it_lies, monkeypatch):
    """Each call's as it was given, also of a gradient that is sent from where it lies."""
    monkeypatch.setattr(in_place, "SENT_IN_PLACE_BYTES", 1 if as_it_lies else 1 << 30)
    kv = KVStoreMPI("sync", group.workers[0])
    kv.init(["a", "b", "c"], [mx.nd.zeros((2,))] * 3)
    pushed.clear()
    kv.pushpull("a", mx.nd.ones((2,)), priority=-7)
    kv.push(["b"], [mx.nd.ones((2,))], priority=9)
    kv.pull("c", mx.nd.ones((2,)), priority=4)
    asked = list(pushed)
    kv.barrier()
    found = {(call.name, call.key): call.priority for call in group.calls}
    assert (found["pushpull", "a"], found["push", "b"], found["pull", "c"]) == (-7, 9, 4)
    assert [priority for priority in asked if priority] == [-7, 9, 4]


def test_priorities_of_rows_reach_the_engine_and_the_worker(group, pushed):
    """Of pushes to both kinds of weights, of rows by their ids, and of what has changed in a weight."""
    kv, rows, weight = KVStoreMPI("sync", group.workers[0]), sparse([]), mx.nd.zeros((V, D))
    kv.set_optimizer(sgd())
    kv.init(["s", "d"], [sparse(range(V)), weight])
    kv.push("d", sparse([1]))  # makes a table of it
    kv.pull("d", out=weight)
    kv.barrier()
    group.calls.clear()
    pushed.clear()
    kv.pull("d", out=weight, priority=2)  # what has changed is asked for
    kv.push(["s"], [sparse([1])], priority=-7)
    kv.row_sparse_pull("s", out=rows, row_ids=mx.nd.array([1, 2]), priority=9)
    kv.push("d", [sparse([1])], priority=4)
    asked = [priority for priority in pushed if priority]
    kv.barrier()
    found = {(call.name, call.key): call.priority for call in group.calls}
    assert found == {
        ("pull_rows", "d"): 2,
        ("push_rows", "s"): -7,
        ("pull_rows", "s"): 9,
        ("pushpull_rows", "d"): 4,
    }
    assert list(dict.fromkeys(asked)) == [2, -7, 9, 4]
