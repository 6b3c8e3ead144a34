"""Where each worker goes by its own optimizer, what differs between them is an error and no drift."""

from __future__ import annotations

import contextlib

import pytest

mx = pytest.importorskip("mxnet")

from support.hybrid_jobs import hybrid_jobs, keys_on  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI, engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.same_optimizers import is_compared  # noqa: E402
from kvstore_mpi.errors import MismatchError  # noqa: E402
from kvstore_mpi.testing.mxnet_compatibility import Lion  # noqa: E402

pytestmark = pytest.mark.mxnet

PURE = {"workers_per_client": 2, "servers": 0}
HYBRID = {"workers_per_client": 2, "dense": "workers"}
SUMS = {"clients": 2, "workers_per_client": 2}  # of servers that do not know the optimizer
KEYS = ["b", "a", "c"]


@pytest.fixture
def job():
    """Make jobs, and end them."""
    with hybrid_jobs() as make:
        yield make


def stores_of(cluster, optimizers):
    stores = [KVStoreMPI("sync", worker) for worker in cluster.workers]
    outs = [[mx.nd.zeros(2) for _ in KEYS] for _ in stores]
    for store, optimizer in zip(stores, optimizers, strict=True):
        store.set_optimizer(optimizer)
    for store in stores:
        store.init(KEYS, [mx.nd.ones(2) for _ in KEYS])
    return stores, outs


def step(stores, outs, orders=None):
    for rank, store in enumerate(stores):
        for index in orders[rank] if orders else range(len(KEYS)):
            store.pushpull(KEYS[index], mx.nd.ones(2), out=outs[rank][index], priority=-index)


def begin_another(stores, outs, key="b"):
    """Push one key on all, and compare; the last may know already that numbers differ."""
    for rank, store in enumerate(stores):
        with contextlib.suppress(MismatchError):
            store.pushpull(key, mx.nd.ones(2), out=outs[rank][KEYS.index(key)])


def settle(store):
    """Until all operations are over; what one of them has ended with is raised, as by the next call."""
    assert engine.wait_until_idle(60)
    store._exchange.check()


def sgd(lr=0.5, **more):
    return mx.optimizer.SGD(learning_rate=lr, rescale_grad=0.125, momentum=0.5, **more)


@pytest.mark.parametrize("layout", [PURE, HYBRID, SUMS], ids=["pure", "hybrid", "sums"])
def test_a_learning_rate_of_its_own(job, layout):
    """It is told by the second step, on each worker that differs from the mean."""
    kind = Lion if layout is SUMS else mx.optimizer.SGD
    number = layout["workers_per_client"] * layout.get("clients", 1)
    optimizers = [kind(learning_rate=rate) for rate in [0.25, *[0.5] * (number - 1)]]
    stores, outs = stores_of(job(**layout), optimizers)
    step(stores, outs)
    begin_another(stores, outs)
    for rank, store in enumerate(stores):
        with pytest.raises(MismatchError) as caught:
            settle(store)
        assert f"worker {rank}: its {kind.__name__} had other numbers" in str(caught.value)
        assert f"learning rate {0.25 if rank == 0 else 0.5:g} here" in str(caught.value)
        assert "wd" not in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        sgd(wd=0.5),
        sgd(clip_gradient=1.0),
        mx.optimizer.SGD(learning_rate=0.5, rescale_grad=0.125, momentum=0.25),
        mx.optimizer.NAG(learning_rate=0.5, rescale_grad=0.125, momentum=0.5),
        sgd(lr_scheduler=mx.lr_scheduler.FactorScheduler(2, 0.5)),
    ],
    ids=["wd", "clip", "momentum", "class", "schedule"],
)
def test_what_differs_from_the_beginning(job, other):
    """Numbers that all optimizers have, those of its class, and the class."""
    stores, outs = stores_of(job(**PURE), [sgd(), other])
    step(stores, outs)
    begin_another(stores, outs)
    for store in stores:
        with pytest.raises(MismatchError, match="weights differ"):
            settle(store)


def test_multipliers(job):
    """They are numbers of the optimizer, too."""
    slow = sgd()
    slow.set_lr_mult({"c": 0.5})
    stores, outs = stores_of(job(**PURE), [sgd(), slow])
    step(stores, outs)
    begin_another(stores, outs)
    with pytest.raises(MismatchError, match="multipliers"):
        settle(stores[1])


def test_one_smaller_batch_of_many(job):
    """What differed in a single step is told by the next comparison, though all are equal by then."""
    optimizers = [sgd(), sgd()]
    stores, outs = stores_of(job(**PURE), optimizers)
    for number in range(1, 8):
        optimizers[1].rescale_grad = 0.25 if number == 5 else 0.125
        step(stores, outs)
        for store in stores:
            settle(store)
    optimizers[1].rescale_grad = 0.125
    begin_another(stores, outs, "a")
    for store in stores:
        with pytest.raises(MismatchError, match=r"in the first 8 steps \(by now they are equal\)"):
            settle(store)


@pytest.mark.parametrize("layout", [PURE, HYBRID], ids=["pure", "hybrid"])
def test_equal_numbers_may_change(job, layout):
    """As often as all workers change them, and in whatever order each pushes its keys."""
    cluster = job(**layout)
    rates = mx.lr_scheduler.FactorScheduler
    optimizers = [sgd(lr_scheduler=rates(3, 0.9, base_lr=0.5)) for _ in range(2)]
    stores, outs = stores_of(cluster, optimizers)
    for number in range(70):
        for optimizer in optimizers:
            optimizer.wd = number / 1000
        step(stores, outs, orders=[[0, 1, 2], [2, 0, 1]])
    for store, each in zip(stores, outs, strict=True):
        settle(store)
        assert [out.asnumpy().tolist() for out in each] == [out.asnumpy().tolist() for out in outs[0]]
        comparison = getattr(store._updates, "_workers", store._updates)._same
        assert comparison._sums.size  # they have been compared, and this test could have failed
    assert keys_on(cluster) <= {*KEYS}


def test_few_steps_are_compared():
    """What is wrong from the beginning is found at once, what comes later within 64 steps."""
    assert [step for step in range(1, 200) if is_compared(step)] == [1, 2, 4, 8, 16, 32, 64, 128, 192]
