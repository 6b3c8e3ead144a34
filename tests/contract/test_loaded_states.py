"""Servers whose update rule is replaced, or its states, while pushes are counted or under way."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import UnsupportedError  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet


@pytest.fixture
def job():
    """Return a job of one worker: nothing that it pushes is ever late."""
    with Cluster(MemoryNetwork().transport, servers=1) as cluster:
        yield cluster
        assert engine.wait_until_idle(60)


def make_store(worker):
    store = KVStoreMPI("async", worker)
    store.compensate_delays("staleness-aware")
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    store.init("w", mx.nd.zeros(2))
    return store


def values(store, steps):
    """Return the first element after each of some steps of 1."""
    found, out = [], mx.nd.empty(2)
    for _ in range(steps):
        store.push("w", mx.nd.ones(2))
        store.pull("w", out=out)
        found.append(float(out.asnumpy()[0]))
    return found


def test_nobody_is_late_for_updates_that_were_loaded(job, tmp_path):
    """Five updates that another store has counted do not divide the learning rate by five."""
    [worker] = job.workers
    former = make_store(worker)
    assert values(former, 5) == [-1, -2, -3, -4, -5]
    former.save_optimizer_states(str(tmp_path / "states"), dump_optimizer=True)
    store = make_store(worker)
    store.load_optimizer_states(str(tmp_path / "states"))
    assert values(store, 3) == [-1, -2, -3]


def test_what_was_late_in_all_does_not_fall_with_a_new_optimizer(job):
    """It is a counter."""
    store = make_store(job.workers[0])
    values(store, 5)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=2.0))
    assert values(store, 1) == [-7]
    [server] = job.servers
    assert server.look(0.0).counters["stale_updates"] == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_pushes_before_a_new_optimizer_are_updates_of_the_old_one(job, mode):
    """Also those that nobody has waited for."""
    store = KVStoreMPI(mode, job.workers[0])
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    store.init(["v", "w"], [mx.nd.zeros(2)] * 2)
    for step in range(6):
        if step == 3:
            store.set_optimizer(mx.optimizer.SGD(learning_rate=10.0))
        store.push(["v", "w"], [mx.nd.ones(2)] * 2)
    out = [mx.nd.empty(2), mx.nd.empty(2)]
    store.pull(["v", "w"], out=out)
    assert [each.asnumpy().tolist() for each in out] == [[-33, -33], [-33, -33]]


def test_what_servers_do_not_follow_must_not_change(job):
    """As momentum, which they are told once: it would count on workers, and not here."""
    store = KVStoreMPI("sync", job.workers[0])
    optimizer = mx.optimizer.SGD(learning_rate=1.0, momentum=0.5)
    store.set_optimizer(optimizer)
    store.init("w", mx.nd.zeros(2))
    assert values(store, 2) == [-1, -2.5]
    optimizer.lr, optimizer.momentum = 2.0, 0.9
    with pytest.raises(
        UnsupportedError, match=r"momentum, lazy_update of SGD: \(0.5, True\) .* \(0.9, True\)"
    ):
        store.push("w", mx.nd.ones(2))
    optimizer.momentum = 0.5
    assert values(store, 1) == [-5.25]
