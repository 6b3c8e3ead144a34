"""Where each worker goes by its own optimizer, what differs between them is an error and no drift."""

from __future__ import annotations

import contextlib
import logging
import re
import threading

import pytest

mx = pytest.importorskip("mxnet")

from mxnet.contrib.svrg_optimization import svrg_optimizer  # noqa: E402
from support.hybrid_jobs import keys_on  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.hyper_parameters import MXNetHyper  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.same_optimizers import is_compared  # noqa: E402
from kvstore_mpi.errors import MismatchError  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.testing.mxnet_compatibility import Lion  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

PURE = {"workers_per_client": 2, "servers": 0}
HYBRID = {"workers_per_client": 2, "dense": "workers"}
SUMS = {"clients": 2, "workers_per_client": 2}  # of servers that do not know the optimizer
KEYS = ["b", "a", "c"]


@pytest.fixture
def job():
    """Make a job, and end it, however it has gone."""
    clusters = []

    def make(**config):
        # Workers that have failed are silent, and no launcher is here to end the rest.
        terms = {"servers": 2, "peer_timeout": 2.0, **config}
        clusters.append(Cluster(MemoryNetwork().transport, **terms))
        return clusters[0]

    yield make
    with contextlib.suppress(mx.MXNetError):  # arrays have the errors, and MXNet tells whoever waits next
        mx.nd.waitall()
    assert engine.wait_until_idle(60)
    clusters[0].close()


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
    """All workers are told by the second step, with both of those that differ."""
    kind = Lion if layout is SUMS else mx.optimizer.SGD
    number = layout["workers_per_client"] * layout.get("clients", 1)
    optimizers = [kind(learning_rate=rate) for rate in [*[0.5] * (number - 1), 0.25]]
    stores, outs = stores_of(job(**layout), optimizers)
    step(stores, outs)
    begin_another(stores, outs)
    for store in stores:
        with pytest.raises(MismatchError) as caught:
            settle(store)
        text = str(caught.value)
        told = re.search(
            r"optimizers of (client\d\.\d) .* and (client\d\.\d) .* in their first 1 steps", text
        )
        assert f"client{number // 2 - 1}.1" in told.groups()
        assert "(learning rate 0.25 and 0.5)" in text or "(learning rate 0.5 and 0.25)" in text


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


def train(stores, outs, change, later=None):
    """Make 20 steps, of which the second worker makes the fifth with other numbers; wait for each."""
    for number in range(1, 21):
        if number == 5:
            change()
        step(stores, outs, later if number > 2 else None)
        [out.wait_to_read() for each in outs for out in each]


def test_multipliers_that_change_later(job):
    """They are compared whenever the other numbers are."""
    optimizers = [sgd(), sgd()]
    stores, outs = stores_of(job(**PURE), optimizers)
    with pytest.raises(mx.MXNetError, match="have had other numbers in their first 8 steps"):
        train(stores, outs, lambda: optimizers[1].set_lr_mult({"c": 0.5}))


def test_a_layer_that_is_frozen_later(job):
    """Steps are those of the keys that are still pushed, in whatever order."""
    optimizers = [sgd(), sgd()]
    stores, outs = stores_of(job(**PURE), optimizers)
    with pytest.raises(mx.MXNetError, match="have had other numbers in their first 8 steps"):
        train(stores, outs, lambda: optimizers[1].set_learning_rate(0.25), [[0, 2], [2, 0]])


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
        with pytest.raises(
            MismatchError, match=r"first 8 steps \(rate, wd and rescale_grad are equal by now\)"
        ):
            settle(store)


@pytest.mark.parametrize("layout", [PURE, HYBRID], ids=["pure", "hybrid"])
@pytest.mark.parametrize("orders", [[[0, 1, 2], [2, 0, 1]], [[0, 2, 1], [1, 0, 2]]], ids=str)
def test_equal_numbers_may_change(job, layout, orders):
    """As often as all workers change them, and in whatever order each pushes its keys."""
    cluster = job(**layout)
    rates = mx.lr_scheduler.FactorScheduler
    optimizers = [sgd(lr_scheduler=rates(3, 0.9, base_lr=0.5)) for _ in range(2)]
    stores, outs = stores_of(cluster, optimizers)
    for number in range(70):
        for optimizer in optimizers:
            optimizer.wd = number / 1000
        step(stores, outs, orders=orders)
    for store, each in zip(stores, outs, strict=True):
        settle(store)
        assert [out.asnumpy().tolist() for out in each] == [out.asnumpy().tolist() for out in outs[0]]
    assert keys_on(cluster) <= {*KEYS}


def test_each_optimizer_of_a_store_is_compared_with_its_like(job, monkeypatch):
    """One worker may have come to the next one while another has not."""
    cluster, told = job(**PURE), [[], []]
    for worker, its in zip(cluster.workers, told, strict=True):
        # What is noted last before it is told counts.
        noted = {}
        monkeypatch.setattr(worker, "note_numbers", lambda each, noted=noted: noted.update(last=each))
        monkeypatch.setattr(
            worker,
            "tell_numbers",
            lambda its=its, noted=noted: its.extend((each.given, each.step) for each in noted.values()),
        )
    stores, outs = stores_of(cluster, [sgd(), sgd()])
    for rate in (0.25, 0.125):
        for _ in range(3):
            step(stores, outs)
        for store in stores:
            store.set_optimizer(sgd(rate))
    assert told == [[(1, 1), (1, 2), (2, 1), (2, 2)]] * 2


def make_steps(stores, outs, sizes, other):
    """Make steps, of which the second worker makes one, counted from 1, with another batch size."""
    for number in range(1, sizes + 1):
        stores[1]._updater.optimizer.rescale_grad = 0.25 if number == other else 0.125
        step(stores, outs)
        for store in stores:
            settle(store)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("ends", [False, True], ids=["barrier", "end"])
@pytest.mark.parametrize("layout", [PURE, HYBRID, SUMS], ids=["pure", "hybrid", "sums"])
def test_a_smaller_last_batch(job, layout, ends, steps):
    """Steps that are not compared by themselves are, before a barrier opens, and where the job ends."""
    number = layout["workers_per_client"] * layout.get("clients", 1)
    kind = Lion if layout is SUMS else mx.optimizer.SGD
    cluster = job(**layout)
    stores, outs = stores_of(cluster, [kind(learning_rate=0.5, rescale_grad=0.125) for _ in range(number)])
    make_steps(stores, outs, steps, steps)
    if ends:
        cluster.close()
        # Who has left before the one that differs is not told any more, but the job is.
        told = [*(worker.failure() for worker in cluster.workers), *cluster.errors.values()]
        told = [error for error in told if isinstance(error, MismatchError)]
    else:
        told = cluster.on_all(refused_barrier)
    assert told
    for error in told:
        assert f"in their first {steps} steps (rescale_grad" in str(error)


def test_multipliers_of_the_last_steps(job):
    """They are told with the other numbers, though no step compares them any more."""
    cluster, optimizers = job(**PURE), [sgd(), sgd()]
    stores, outs = stores_of(cluster, optimizers)
    make_steps(stores, outs, 4, 0)
    optimizers[1].set_lr_mult({"c": 0.5})
    make_steps(stores, outs, 1, 0)
    for error in cluster.on_all(refused_barrier):
        assert "multipliers" in str(error)
        assert "in their first 5 steps" in str(error)


def refused_barrier(worker):
    with pytest.raises(MismatchError) as caught:
        worker.barrier()
    return caught.value


@pytest.mark.parametrize("layout", [PURE, HYBRID], ids=["pure", "hybrid"])
def test_equal_last_batches(job, layout):
    """What is equal, and told at barriers in the middle of everything, ends no job."""
    cluster = job(**layout)
    stores, outs = stores_of(cluster, [sgd(), sgd()])
    for _ in range(3):
        make_steps(stores, outs, 3, 0)
        cluster.on_all(lambda worker: worker.barrier())
    cluster.close()
    assert [worker.failure() for worker in cluster.workers] == [None, None]
    assert not cluster.errors


def test_a_smaller_first_batch(job):
    """Its numbers are the first step's, and not those that the second one begins with."""
    stores, outs = stores_of(job(**PURE), [sgd(), sgd()])
    make_steps(stores, outs, 1, 1)
    for store in stores:
        store._updater.optimizer.rescale_grad = 0.125
    begin_another(stores, outs)
    for store in stores:
        with pytest.raises(MismatchError, match=r"in their first 1 steps \(rescale_grad 0\.1?25 and"):
            settle(store)


def test_optimizers_that_have_come_with_states_are_compared(job, tmp_path):
    """And no longer those that they have taken the place of."""
    stores, outs = stores_of(job(**PURE), [sgd(), sgd()])
    for number in range(2):
        step(stores, outs)
        for rank, store in enumerate(stores):
            settle(store)
            if not number:
                store.save_optimizer_states(str(tmp_path / str(rank)), dump_optimizer=True)
                store.load_optimizer_states(str(tmp_path / str(rank)))
    stores[0]._updater.optimizer.set_learning_rate(0.25)
    with contextlib.suppress(MismatchError):
        for _ in range(4):
            step(stores, outs)
    for store in stores:
        with pytest.raises(MismatchError, match="weights differ"):
            settle(store)


def test_a_rate_that_is_compared_is_not_logged(caplog):
    """The optimizer's own schedule logs it once; what other threads log meanwhile stays."""

    class Half(float):
        def __rmul__(self, rate):
            other = threading.Thread(target=logging.info, args=("from elsewhere",))
            other.start()
            other.join()
            return 0.5 * rate

    rates = mx.lr_scheduler.MultiFactorScheduler([1], Half(0.5))
    optimizer = sgd(lr_scheduler=rates)
    with caplog.at_level(logging.INFO):
        assert MXNetHyper(optimizer).common(2)[4] == 0.25
        assert caplog.messages == ["from elsewhere"]
        assert rates(2) == 0.25
    assert [message.split(":")[0] for message in caplog.messages[1:]] == ["from elsewhere", "Update[2]"]


def test_few_steps_are_compared():
    """What is wrong from the beginning is found at once, what comes later within 64 steps."""
    assert [step for step in range(1, 200) if is_compared(step)] == [1, 2, 4, 8, 16, 32, 64, 128, 192]


def test_an_optimizer_that_lacks_an_attribute_of_its_arguments(job):
    """As MXNet's own of SVRGModule does."""

    def make():
        terms = {"default_optimizer": "sgd", "learning_rate": 0.5}
        names = {key: f"{key}_weight" for key in KEYS}
        return svrg_optimizer._SVRGOptimizer(param_idx2name=names, **terms)

    stores, outs = stores_of(job(**PURE), [make(), make()])
    step(stores, outs)
    assert [out.asnumpy().tolist() for out in outs[0]] == [[0, 0]] * len(KEYS)
