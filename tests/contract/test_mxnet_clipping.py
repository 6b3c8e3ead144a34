"""``kv.clip_global_norm`` under a Trainer and by hand, against MXNet's clipping in one process."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.tables import live_cuts  # noqa: E402
from kvstore_mpi.errors import ConfigurationError, UsageError  # noqa: E402
from kvstore_mpi.hybrid import partitions  # noqa: E402
from kvstore_mpi.records import name_of_table  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

ROWS, WIDTH, BATCH, STEPS = 40, 4, 3, 5
BOUND = 0.25
ADAM = {"learning_rate": 0.05}


@pytest.fixture
def job():
    """Make jobs, and end them."""
    jobs = []

    def make(**shape):
        cluster = Cluster(MemoryNetwork().transport, **shape)
        jobs.append(cluster)
        return [KVStoreMPI("sync", worker) for worker in cluster.workers]

    yield make
    for cluster in jobs:
        assert engine.wait_until_idle(60)
        cluster.close()
        assert not cluster.errors


def make_net(*, sparse):
    """Return a net with a table, a dense layer, and one that is frozen."""
    mx.random.seed(5)
    net = gluon.nn.Sequential()
    # Named: a Trainer sorts parameters by name, and of two nets one may have dense9, the other dense10.
    net.add(
        gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=sparse, prefix="table_"),
        gluon.nn.Dense(3, in_units=WIDTH, prefix="dense_"),
        gluon.nn.Dense(2, in_units=3, prefix="frozen_"),
    )
    net.initialize(mx.init.Uniform(0.5))
    net[2].collect_params().setattr("grad_req", "null")
    return net


def backward(net, rank, step):
    ids = np.random.default_rng([step, rank]).integers(0, ROWS, BATCH)
    with autograd.record():
        loss = (net(mx.nd.array(ids)) ** 2).sum() * (10 if step % 2 else 0.01)
    loss.backward()


def train(stores, steps=STEPS, *, sparse=True, rule="adam", change=None, **hyper):
    """Train the workers in turn, changing their nets before step 2; return the values of the first."""
    nets = [make_net(sparse=sparse) for _ in stores]
    trainers = []
    for net, store in zip(nets, stores):
        store.clip_global_norm(BOUND)
        trainers.append(gluon.Trainer(net.collect_params(), rule, {**ADAM, **hyper}, kvstore=store))
    for step in range(steps):
        # Operations of MXNet's wait for each other's scratch memory: first what needs no other worker.
        for rank, net in enumerate(nets):
            backward(net, rank, step)
            if change and step == 2:
                change(net)
        for trainer in trainers:
            trainer.step(BATCH * len(stores))
    return values_of(nets[0])


def values_of(net):
    mx.nd.waitall()
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def alone(num_workers, rule="adam", steps=STEPS, *, change=None, **hyper):
    """Return the same of one process with dense gradients, and how often it has clipped."""
    net, clipped = make_net(sparse=False), 0
    trainer = gluon.Trainer(net.collect_params(), rule, {**ADAM, **hyper}, kvstore=None)
    parameters = [each for each in net.collect_params().values() if each.grad_req != "null"]
    for step in range(steps):
        sums = [0] * len(parameters)
        for rank in range(num_workers):
            backward(net, rank, step)
            sums = [total + each.grad().asnumpy() for total, each in zip(sums, parameters)]
        gradients = [mx.nd.array(total / (BATCH * num_workers)) for total in sums]
        clipped += gluon.utils.clip_global_norm(gradients, BOUND) > BOUND
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad()[:] = gradient
        if change and step == 2:
            change(net)
        trainer.step(1)
    return values_of(net), clipped


# Rules for which lazy updates of rows are the dense ones, or of which all rows are brought up exactly.
@pytest.mark.parametrize(
    ("rule", "hyper"),
    [("sgd", {"lazy_update": False, "momentum": 0.9}), ("adagrad", {})],
    ids=["sgd", "adagrad"],
)
@pytest.mark.parametrize(
    "shape",
    [
        {"clients": 2, "servers": 2},
        {"workers_per_client": 2, "servers": 1},
        {"workers_per_client": 2},
    ],
    ids=["clients", "ranks", "pure MPI"],
)
@pytest.mark.parametrize("sparse", [True, False], ids=["rows", "dense"])
def test_a_trainer_is_clipped_as_one_process_is(job, rule, hyper, shape, sparse):
    """The norm is of the sum over workers, of dense keys and rows; frozen layers do not count."""
    stores = job(**shape)
    trained = train(stores, sparse=sparse, rule=rule, **hyper)
    expected, clipped = alone(2, rule, **hyper)
    assert 0 < clipped < STEPS
    for value, each in zip(trained, expected):
        np.testing.assert_allclose(value, each, rtol=1e-5, atol=1e-6)
    # In a hybrid job as well: where a norm is to be known, servers have all keys.
    wanted = {"servers" if shape.get("servers") else "allreduce"}
    assert {each.route.value for each in stores[0].plan().keys} == wanted


def slow_down(net):
    """Change the multipliers of a key that is neither the first nor the last one of a step."""
    net[1].weight.lr_mult, net[1].weight.wd_mult = 0.25, 3.0


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("sparse", [True, False], ids=["rows", "dense"])
def test_multipliers_of_any_key_may_change_between_steps(job, servers, sparse):
    """They count from the next step on, as in one process."""
    momentum = {"lazy_update": False, "momentum": 0.9, "wd": 0.1}
    stores = job(clients=2, servers=servers, step_timeout=60)
    trained = train(stores, sparse=sparse, rule="sgd", change=slow_down, **momentum)
    expected, _ = alone(2, "sgd", change=slow_down, **momentum)
    for value, each in zip(trained, expected):
        np.testing.assert_allclose(value, each, rtol=1e-5, atol=1e-6)


def test_numbers_of_a_clipped_step_are_those_at_its_first_push(job):
    """In whatever order keys come, beside one that is no part of steps, and one that is new."""
    (store,) = job(servers=1, step_timeout=60)
    store.clip_global_norm(1e9, without=["left out"])
    schedule = mx.lr_scheduler.MultiFactorScheduler([2], factor=0.5, base_lr=1.0)
    optimizer = mx.optimizer.SGD(learning_rate=1.0, lr_scheduler=schedule)
    store.set_optimizer(optimizer)
    values = {}

    def step(*keys):
        for key in keys:
            store.push(key, mx.nd.ones(1))
        out = {key: mx.nd.empty(1) for key in keys}
        store.pull([*keys], out=[*out.values()])
        moved = {key: values.get(key, 0) - out[key].asscalar() for key in keys}
        values.update((key, each.asscalar()) for key, each in out.items())
        return moved

    for key in ("a", "b", "left out"):
        store.init(key, mx.nd.zeros(1))
    assert step("a", "b", "left out") == {"a": 1, "b": 1, "left out": 1}
    optimizer.set_lr_mult({"a": 0.5, "left out": 0.25})
    assert step("b", "left out", "a") == {"a": 0.5, "b": 1, "left out": 0.25}
    store.init(
        "c", mx.nd.zeros(1)
    )  # which the schedule has not counted: MXNet's goes by the one that is ahead
    assert step("a", "c", "b") == {"a": 0.25, "b": 0.5, "c": 0.5}


def test_tables_that_are_cut_anew_are_counted_once(job, monkeypatch):
    """The old pieces are still there for a step, and nobody waits for pushes of them."""
    monkeypatch.setattr(partitions, "WARM_UP_STEPS", 0)
    for module in (partitions, live_cuts):
        monkeypatch.setattr(module, "SAMPLE_STEPS", 1)
    stores = job(clients=2, servers=2)
    for store in stores:
        store.partitioner("*", "auto")
    steps = 2 * partitions.steps_until_sample() + 2
    trained = train(stores, steps, rule="adagrad")
    names = [key for _, key in stores[0]._exchange.worker._state.keys.by_name]
    assert any(name_of_table(4, number) in names for number in (2, 3)), names
    for value, each in zip(trained, alone(2, "adagrad", steps)[0]):
        np.testing.assert_allclose(value, each, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("servers", [2, 0])
def test_keys_by_hand_may_be_left_out(job, servers):
    """One that is never pushed is named; a second step of the others goes on without it."""
    (store,) = job(servers=servers)
    store.clip_global_norm(3.0, without=["never"])
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, rescale_grad=0.5))
    for key in ("a", "b", "never"):
        store.init(key, mx.nd.zeros(2))
    for step in (1, 2):
        out = [mx.nd.empty(2), mx.nd.empty(2)]
        store.push("a", mx.nd.array([6, 0]))
        store.push("b", mx.nd.array([0, 8]))
        store.pull(["a", "b"], out=out)
        # Of norm 5 after rescaling.
        np.testing.assert_allclose(out[0].asnumpy(), [-1.8 * step, 0], rtol=1e-6)
        np.testing.assert_allclose(out[1].asnumpy(), [0, -2.4 * step], rtol=1e-6)


@pytest.mark.parametrize("servers", [0, 1, 2])
def test_nobody_waits_for_a_key_that_is_left_out_or_has_no_elements(job, servers):
    """What is left out is not clipped, if somebody pushes it all the same."""
    (store,) = job(servers=servers)
    store.clip_global_norm(3.0, without=["left out"])
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    with mx.util.np_shape(True):
        store.init("empty", mx.nd.zeros((0, 2)))
    for key in ("a", "left out"):
        store.init(key, mx.nd.zeros(2))
    out = mx.nd.zeros(2), mx.nd.zeros(2)
    for step in (1, 2):
        store.push("left out", mx.nd.array([60, 0]))
        store.push("a", mx.nd.array([6, 0]))
        store.pull(["left out", "a"], out=[*out])
        assert [each.asnumpy().tolist() for each in out] == [[-60 * step, 0], [-3 * step, 0]]


def hold_one_of_two(job, **config):
    """Return a store of one worker without servers that has pushed one of its two keys."""
    (store,) = job(**config)
    store.clip_global_norm(1.0)
    store.init("a", mx.nd.zeros(2))
    store.init("b", mx.nd.zeros(2))
    with pytest.raises(UsageError, match="before set_optimizer: nothing would be clipped"):
        store.push("a", mx.nd.ones(2))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    store.push("a", mx.nd.ones(2))
    return store


def test_a_step_that_lacks_a_key_is_an_error(job):
    """When a key is pushed again, and at the deadline: nobody waits for ever for what is never pushed."""
    stores = [hold_one_of_two(job, step_timeout=0.2) for _ in range(2)]
    with pytest.raises(UsageError, match=r"'a' is pushed again before 'b', .*without="):
        stores[0].push("a", mx.nd.ones(2))
    for store in stores:  # both, for what nobody has asked for would be the error of whoever waits next
        with pytest.raises(mx.MXNetError, match=r"waits for 'b' since 0\.2 s"):
            store._updates.value("a").asnumpy()
    mx.nd.waitall()


@pytest.mark.parametrize("servers", [0, 1, 2])
def test_a_key_that_is_pushed_twice_in_a_step_is_an_error(job, servers):
    """On servers its second gradient, and its value, would wait for the next step; the step goes on."""
    (store,) = job(servers=servers, step_timeout=60)
    store.clip_global_norm(1.0)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    for key in ("a", "b"):
        store.init(key, mx.nd.zeros(1))
    for step in (1, 2):
        store.push("a", 3 * mx.nd.ones(1))
        with pytest.raises(UsageError, match=r"'a' is pushed again before 'b', .*without="):
            store.push("a", mx.nd.ones(1))
        store.push("b", 4 * mx.nd.ones(1))
        out = [mx.nd.empty(1), mx.nd.empty(1)]
        store.pull(["a", "b"], out=out)
        np.testing.assert_allclose([each.asscalar() for each in out], [-0.6 * step, -0.8 * step], rtol=1e-6)


@pytest.mark.parametrize("servers", [1, 0])
def test_a_layer_that_is_unfrozen_is_an_error(job, servers):
    """Steps have been clipped without it, and servers would wait for its place in the step before."""
    (store,) = job(servers=servers)
    net = make_net(sparse=False)
    store.clip_global_norm(BOUND)
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=store)
    backward(net, 0, 0)
    trainer.step(BATCH)
    with pytest.raises(UsageError, match=r"key 2 is pushed, and clip_global_norm clips steps without it"):
        store.push(2, net[2].bias.data())


def test_integers_are_scaled_as_numbers(job):
    """Sums of a key of integers are not made zero by a factor below one."""
    (store,) = job()
    store.clip_global_norm(5.0)
    store._set_updater(lambda _key, gradient, weight: mx.nd.elemwise_add(weight, gradient, out=weight))
    store.init("a", mx.nd.zeros(2, dtype="int32"))
    store.push("a", mx.nd.array([6, 8], dtype="int32"))
    out = mx.nd.zeros(2, dtype="int32")
    store.pull("a", out)
    assert out.asnumpy().tolist() == [3, 4]


def test_what_cannot_be_clipped_is_refused(job, monkeypatch):
    """Each with what to do instead."""
    (store,) = job(servers=1)
    with pytest.raises(UsageError, match="max_norm must be a number"):
        store.clip_global_norm(0.0)
    store.clip_global_norm(1.0)
    store.init("a", mx.nd.zeros(2))
    with pytest.raises(UsageError, match="before set_optimizer: nothing would be clipped"):
        store.push("a", mx.nd.ones(2))
    store.set_optimizer(mx.optimizer.SGD())
    with pytest.raises(UsageError, match="must be called before set_optimizer"):
        store.clip_global_norm(1.0)
    with local_groups() as make:
        without = KVStoreMPI("sync", make().workers[0])
        without.set_optimizer(mx.optimizer.SGD())
        with pytest.raises(UsageError, match="must be called before set_optimizer"):
            without.clip_global_norm(1.0)
        delayed = KVStoreMPI("async", make(num_servers=1).workers[0])
        with pytest.raises(UsageError, match="is for sync-mpi"):
            delayed.clip_global_norm(1.0)
    monkeypatch.setattr(engine, "is_naive", lambda: True)
    with pytest.raises(ConfigurationError, match="NaiveEngine"):
        store.clip_global_norm(1.0)
