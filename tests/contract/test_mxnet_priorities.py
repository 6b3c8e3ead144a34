"""The priority of a call on the MXNet store: for MXNet's engine, and for the worker behind it."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters import in_place  # noqa: E402
from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
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


@pytest.mark.parametrize("given", [np.int64(-3), True, -(2**31), 2**31 - 1])
def test_whole_numbers_of_other_types_travel(group, given):
    """As what they are worth, by name and by place."""
    kv, one = KVStoreMPI("sync", group.workers[0]), mx.nd.ones(1)
    kv.init("a", one)
    kv.pushpull("a", one, priority=given)
    kv.push("a", one, given)
    kv.barrier()
    found = [call.priority for call in group.calls if call.name in {"push", "pushpull"}]
    assert [(type(each), each) for each in found] == [(int, int(given))] * 2


@pytest.mark.parametrize("given", [-0.5, 2**31, -(2**70), None, "1", np.float32(1)])
def test_what_is_no_priority_is_refused_and_leaves_nothing_behind(group, given):
    """In the call, by name and by place; the store goes on."""
    kv, one, out = KVStoreMPI("sync", group.workers[0]), mx.nd.ones(1), mx.nd.zeros(1)
    kv.init("a", one)
    for call in (
        lambda: kv.pushpull("a", one, out, given),
        lambda: kv.push("a", one, priority=given),
        lambda: kv.pull("a", out, priority=given),
        lambda: kv.row_sparse_pull("a", sparse([]), given, one),
        lambda: kv.broadcast("b", one, out, given),
    ):
        with pytest.raises(
            UsageError, match=r"priority=.*: it must be a whole number from -214748364[78] to"
        ):
            call()
    assert engine.wait_until_idle(60)
    kv.pushpull("a", one, out=out)
    assert out.asscalar() == 1


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
