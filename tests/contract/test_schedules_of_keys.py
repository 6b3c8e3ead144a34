"""Learning rates of keys that are not pushed in every step, and of optimizers that have counted before."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

KEYS = ["a", "late", "seldom"]
STEPS = 9
SCHEDULES = {
    "factor": partial(mx.lr_scheduler.FactorScheduler, 2, 0.5, base_lr=1.0),
    "cosine": partial(mx.lr_scheduler.CosineScheduler, 9, base_lr=1.0, final_lr=0.125),
}
LAYOUTS = {
    "two clients": {"clients": 2, "servers": 2},
    "one client": {"workers_per_client": 2, "servers": 1, "dense": "servers"},
    "pure MPI": {"workers_per_client": 2, "servers": 0},
}


def pushed(step):
    """Return the keys of a step, in the order in which they are pushed."""
    keys = ["a", "late"] if step >= 4 else ["a"]
    return ["seldom", *keys] if step % 2 else keys


def train(stores, optimizers, *, again=False, in_turn=False):
    """Train with ones for gradients; return the weights.

    ``again``: give the same optimizers once more. ``in_turn``: push a key when the one before is updated.
    """
    outs = [{key: mx.nd.zeros(2) for key in KEYS} for _ in stores]
    for store, optimizer in zip(stores, optimizers, strict=True):
        store.set_optimizer(optimizer)
    for key in KEYS:
        for store in stores:
            store.init(key, mx.nd.ones(2))
    for step in range(STEPS):
        if step == 5 and again:
            [out[key].wait_to_read() for out in outs for key in KEYS]
            for store, optimizer in zip(stores, optimizers, strict=True):
                store.set_optimizer(optimizer)
        for store, out in zip(stores, outs, strict=True):
            for key in pushed(step):
                store.pushpull(key, mx.nd.ones(2) / len(stores), out=out[key])
                if in_turn:
                    out[key].wait_to_read()
    return [{key: out[key].asnumpy() for key in KEYS} for out in outs]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rates_are_those_of_one_process(layout, schedule, again):
    """MXNet's schedulers go by the key that has been updated most often."""

    def optimizer():
        return mx.optimizer.create("sgd", lr_scheduler=SCHEDULES[schedule]())

    (expected,) = train([mx.kv.create("local")], [optimizer()], again=again)
    cluster = Cluster(MemoryNetwork().transport, **LAYOUTS[layout])
    stores = [KVStoreMPI("sync", worker) for worker in cluster.workers]
    for found in train(stores, [optimizer() for _ in stores], again=again):
        for key in KEYS:
            np.testing.assert_allclose(found[key], expected[key], rtol=1e-6, err_msg=key)
    assert engine.wait_until_idle(60)
    cluster.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_of_asynchronous_clients_are_those_of_one_process(schedule):
    """There servers count: a key goes by the one that they have updated most often."""

    def optimizer():
        return mx.optimizer.create("sgd", lr_scheduler=SCHEDULES[schedule]())

    (expected,) = train([mx.kv.create("local")], [optimizer()])
    cluster = Cluster(MemoryNetwork().transport, servers=1)
    (worker,) = cluster.workers
    (found,) = train([KVStoreMPI("async", worker)], [optimizer()], in_turn=True)
    for key in KEYS:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-6, err_msg=key)
    assert engine.wait_until_idle(60)
    cluster.close()
