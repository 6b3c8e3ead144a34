"""The priority of a call on the MXNet store: for MXNet's engine, and for the worker behind it."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters import in_place  # noqa: E402
from kvstore_mpi.adapters.mxnet import KVStoreMPI, engine  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402

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
