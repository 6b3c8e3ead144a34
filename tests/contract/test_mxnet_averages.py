"""``kv.average_weights``: servers average what one process would, of dense keys and of tables."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI, TableEmbedding, averaged  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import UnsupportedError, UsageError  # noqa: E402
from kvstore_mpi.esgd import DCASGD, LocalSGD  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

ROWS, WIDTH, STEPS, DECAY = 30, 3, 7, 0.75


@pytest.fixture
def job():
    """Make jobs, and end them."""
    jobs = []

    def make(mode="sync", **shape):
        cluster = Cluster(MemoryNetwork().transport, **{"servers": 2, **shape})
        jobs.append(cluster)
        return [KVStoreMPI(mode, worker) for worker in cluster.workers]

    yield make
    for cluster in jobs:
        assert engine.wait_until_idle(60)
        cluster.close()
        assert not cluster.errors


def make_net(*, sparse=True):
    """Return a net with a table, a dense layer, and one that is frozen."""
    mx.random.seed(7)
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


def values_of(net):
    mx.nd.waitall()
    return [each.data().asnumpy() for each in net.collect_params().values()]


def train(stores, *, sparse=True, rule="adam", decay=DECAY, **hyper):
    """Train the workers in turn.

    Returns:
        The net and the Trainer of the first, and the values after each step, in float64.
    """
    nets = [make_net(sparse=sparse) for _ in stores]
    trainers = []
    for net, store in zip(nets, stores):
        if decay:
            store.average_weights(decay)
        hyper = {"learning_rate": 0.1, **hyper}
        trainers.append(gluon.Trainer(net.collect_params(), rule, hyper, kvstore=store))
    history = [values_of(nets[0])]
    for step in range(STEPS):
        for rank, (net, trainer) in enumerate(zip(nets, trainers)):
            # Few rows, so that most are left alone for some steps, and some for ever.
            ids = np.random.default_rng([step, rank]).integers(0, ROWS // 2, 3)
            with autograd.record():
                loss = (net(mx.nd.array(ids)) ** 2).sum()
            loss.backward()
            trainer.step(1)
        history.append(values_of(nets[0]))
    return nets[0], trainers[0], history


def averages_over(history):
    """Return the moving averages of weights, of every row after every step."""
    averages = [each.astype(np.float64) for each in history[0]]
    for values in history[1:]:
        averages = [DECAY * old + (1 - DECAY) * new for old, new in zip(averages, values)]
    return averages


@pytest.mark.parametrize("rule", ["adam", "sgd"])
@pytest.mark.parametrize("sparse", [True, False], ids=["rows", "dense"])
@pytest.mark.parametrize(
    "shape", [{"clients": 2}, {"workers_per_client": 2}, {"servers": 1}], ids=["clients", "ranks", "alone"]
)
def test_averages_are_those_of_one_process(job, shape, sparse, rule):
    """Of rows as of dense weights; the weights afterwards are what they were."""
    net, trainer, history = train(job(**shape), sparse=sparse, rule=rule)
    with averaged(trainer):
        for value, each in zip(values_of(net), averages_over(history)):
            np.testing.assert_allclose(value, each, rtol=1e-5, atol=1e-6)
    for value, each in zip(values_of(net), history[-1]):
        np.testing.assert_array_equal(value, each)


@pytest.mark.parametrize("sparse", [True, False], ids=["rows", "dense"])
def test_training_is_as_without(job, sparse):
    """To the bit."""
    with_averages, without = (train(job(clients=2), sparse=sparse, decay=decay)[2] for decay in (DECAY, 0))
    for one, other in zip(with_averages, without):
        for value, each in zip(one, other):
            np.testing.assert_array_equal(value, each)


def test_delayed_clients_have_averages(job):
    """On async-mpi an average follows each push."""
    net, trainer, history = train(job("async", clients=1))
    with averaged(trainer):
        for value, each in zip(values_of(net), averages_over(history)):
            np.testing.assert_allclose(value, each, rtol=1e-5, atol=1e-6)


def test_half_precision_is_averaged_in_the_master(job):
    """A float16 weight would swallow what an average moves by."""
    (store,) = job()
    store.average_weights(DECAY)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, multi_precision=True))
    store.init("w", mx.nd.ones(3, dtype="float16"))
    expected, weight = 1.0, 1.0
    for _ in range(4):
        store.push("w", mx.nd.ones(3, dtype="float16") * 2**-12)
        weight -= 2**-12
        expected = DECAY * expected + (1 - DECAY) * weight
    out = mx.nd.empty(3)
    store.pull_averages("w", out)
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-7)


def test_rows_of_half_precision_are_averaged_in_the_master(job):
    """Also what a row has missed since."""
    (store,) = job()
    store.average_weights(DECAY)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, multi_precision=True))
    store.init("t", mx.nd.ones((2, 3), dtype="float16").tostype("row_sparse"))
    for row in (0, 1, 1, 1):
        ones = mx.nd.ones((1, 3), dtype="float16") * 2**-12
        store.push("t", mx.nd.sparse.row_sparse_array((ones, [row]), shape=(2, 3), dtype="float16"))
    out = mx.nd.empty((2, 3))
    store.pull_averages("t", out)
    weight = 1 - 2**-12
    np.testing.assert_allclose(out.asnumpy()[0], weight + DECAY**4 * (1 - weight), rtol=1e-7)


def test_a_weight_that_was_never_updated_is_its_own_average(job):
    """And a row-sparse weight is asked for by its key."""
    (store,) = job()
    store.average_weights(DECAY)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    table = mx.nd.array(np.arange(8).reshape(4, 2))
    store.init(["w", "t"], [mx.nd.ones(3), table.tostype("row_sparse")])
    store.push("t", mx.nd.sparse.row_sparse_array(([[1, 1]], [2]), shape=(4, 2)))
    out = [mx.nd.empty(3), mx.nd.empty((4, 2))]
    store.pull_averages(["w", "t"], out)
    np.testing.assert_array_equal(out[0].asnumpy(), 1)
    expected = np.arange(8.0).reshape(4, 2)
    expected[2] -= 1 - DECAY
    np.testing.assert_allclose(out[1].asnumpy(), expected, rtol=1e-6)


def test_a_layer_that_is_frozen_by_now_has_an_average(job):
    """It has been updated before; one that never was, as a running mean, stays this worker's own."""
    (store,) = job()
    store.average_weights(DECAY)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=2, use_bias=False), gluon.nn.BatchNorm(in_channels=3))
    net.initialize(mx.init.One())
    weight, mean = net[0].weight, net[1].running_mean
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)
    expected = weight.data().asnumpy()
    for step in range(4):
        if step == 2:
            weight.grad_req = "null"
        with autograd.record():
            loss = (net(mx.nd.random.uniform(shape=(4, 2))) ** 3).sum()
        loss.backward()
        trainer.step(1)
        if step < 2:
            expected = DECAY * expected + (1 - DECAY) * weight.data().asnumpy()
    now = [each.data().asnumpy() for each in (weight, mean)]
    with averaged(trainer):
        np.testing.assert_allclose(weight.data().asnumpy(), expected, rtol=1e-6)
        np.testing.assert_array_equal(mean.data().asnumpy(), now[1])
    np.testing.assert_array_equal(weight.data().asnumpy(), now[0])
    assert np.abs(expected - now[0]).max() > 1e-3


def test_rows_that_are_on_servers_only_have_averages_there(job):
    """What a worker could be given is the weight as it is now, and no average."""
    (store,) = job()
    store.average_weights(DECAY)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    table = TableEmbedding(store, "t", 2, num_rows=4)
    with autograd.record():
        loss = table(mx.nd.array([1, 2])).sum()
    loss.backward()
    table.step(1)
    with pytest.raises(UsageError, match="key 't': rows of a TableEmbedding, and their averages"):
        store.pull_averages("t", mx.nd.empty((4, 2)))


def test_what_has_no_averages_says_so(job, tmp_path):
    """Each with what to do instead."""
    (store,) = job()
    with pytest.raises(UsageError, match="decay must be a number"):
        store.average_weights(1.0)
    with pytest.raises(UsageError, match="call average_weights before set_optimizer"):
        store.pull_averages("w", mx.nd.empty(3))
    store.average_weights()
    store.init("w", mx.nd.ones(3))
    with pytest.raises(UsageError, match="before set_optimizer: no averages would be kept"):
        store.push("w", mx.nd.ones(3))
    store.set_optimizer(mx.optimizer.Adam())
    with pytest.raises(UsageError, match="must be called before set_optimizer"):
        store.average_weights()
    store.push("w", mx.nd.ones(3))
    # MXNet's file has the states that MXNet knows.
    store.save_optimizer_states(str(tmp_path / "states"))
    with pytest.raises(UnsupportedError, match="averages, which would begin anew"):
        store.load_optimizer_states(str(tmp_path / "states"))
    (delayed,) = job("async")
    delayed.compensate_delays("staleness-aware")
    with pytest.raises(UsageError, match="cannot be combined"):
        delayed.average_weights()
    net = make_net()
    alone = gluon.Trainer(net.collect_params(), "sgd", kvstore=None)
    with pytest.raises(UsageError, match="has made a step with a store"), averaged(alone):
        pass
    with local_groups() as make:
        without = KVStoreMPI("sync", make().workers[0])
        with pytest.raises(UsageError, match="is done by servers"):
            without.average_weights()


@pytest.mark.parametrize("optimizer", [DCASGD(learning_rate=0.5), LocalSGD()], ids=["DCASGD", "LocalSGD"])
@pytest.mark.parametrize("call", ["average_weights", "compensate_delays"])
def test_what_is_put_around_optimizers_is_not_lost_with_those_of_esgd(job, call, optimizer):
    """Nobody would find out before he reads averages, if then."""
    (store,) = job("async")
    getattr(store, call)(*(["dc-asgd"] if call == "compensate_delays" else []))
    named = f"{call} is for optimizers of MXNet, and {type(optimizer).__name__} is none"
    with pytest.raises(UsageError, match=named):
        store.set_optimizer(optimizer)
