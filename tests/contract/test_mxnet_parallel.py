"""One call makes a script for one process parallel, and it trains as that process does."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402
from support.hybrid_jobs import hybrid_jobs  # noqa: E402

import kvstore_mpi.mxnet  # noqa: E402
from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.mxnet

ROWS, SAMPLES, EPOCHS = 9, 22, 2


@pytest.fixture
def job():
    """Make jobs, and end them."""
    with hybrid_jobs() as make:
        yield make


def make_net(block):
    """Return a net with a table of the kind, the same each time."""
    mx.random.seed(3)
    tables = {
        "dense": lambda: gluon.nn.Embedding(ROWS, 4, prefix="table_"),
        "gradient": lambda: gluon.nn.Embedding(ROWS, 4, sparse_grad=True, prefix="table_"),
        "weight": lambda: gluon.contrib.nn.SparseEmbedding(ROWS, 4, prefix="table_"),
    }
    net = gluon.nn.Sequential()
    net.add(tables[block](), gluon.nn.Dense(1, in_units=4, prefix="dense_"))
    net.initialize(mx.init.Uniform(0.5))
    return net


def script(batch_size, block="gradient", worker=None, mode="sync", **options):
    """Train as a script does, which has two lines more for all workers; give the weights at the end."""
    random = np.random.default_rng(1)
    data = np.stack([random.integers(0, ROWS, SAMPLES), random.normal(size=SAMPLES)], axis=1)
    net = make_net(block)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5, "momentum": 0.5}, **options)
    if worker is not None:
        kv = kvstore_mpi.mxnet.parallel(trainer, mode, worker=worker)
        data = kvstore_mpi.shard(data, kv.num_workers, kv.rank, remainder="drop")
    mx.nd.waitall()  # in MXNet what makes random numbers waits for each other, whoever has queued it
    yield None
    for _ in range(EPOCHS):
        for begin in range(0, len(data), batch_size):
            ids, labels = map(mx.nd.array, data[begin : begin + batch_size].T)
            with autograd.record():
                loss = (net(ids).reshape(-1) - labels) ** 2
            yield None  # the others', too, before anybody waits
            loss.backward()
            trainer.step(len(labels))
            yield None
    whole = [each for each in net.collect_params().values() if each._stype == "default"]
    rows = [each for each in net.collect_params().values() if each._stype != "default"]
    yield [each.data() for each in whole] + [each.row_sparse_data(mx.nd.arange(ROWS)) for each in rows]


def last(generators):
    """Let scripts go on step by step; return what each gave last, as arrays."""
    for found in zip(*generators):  # noqa: B007
        pass
    return [[each.tostype("default").asnumpy() for each in one] for one in found]


@pytest.mark.parametrize("block", ["dense", "gradient", "weight"])
@pytest.mark.parametrize(
    "shape",
    [
        {"clients": 2, "servers": 1},
        {"workers_per_client": 2},
        {"workers_per_client": 2, "servers": 0},
        {"servers": 1},
    ],
    ids=["clients", "hybrid", "pure MPI", "one worker"],
)
def test_a_script_trains_as_in_one_process(job, block, shape):
    """With its own batch size in every step, also the smaller one at the end of an epoch."""
    workers = job(**shape).workers
    found = last(script(4, block, each) for each in workers)
    [expected] = last([script(4 * len(workers), block)])
    for one in found:
        for ours, theirs in zip(one, expected):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_gradients_that_the_workers_add_up_are_a_mean(job):
    """With ``update_on_kvstore=False`` each worker updates by itself."""
    workers = job(clients=2).workers
    found = last(script(4, "dense", each, update_on_kvstore=False) for each in workers)
    [expected] = last([script(8, "dense")])
    for ours, theirs in zip(found[1], expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_each_worker_s_batch_is_a_step_in_an_asynchronous_store(job):
    """So one worker with a store trains as one without, and of two each gradient counts as it is."""
    (worker,) = job(servers=1).workers
    found = last([script(4, "gradient", worker, "async")])
    expected = last([script(4)])
    np.testing.assert_allclose(found[0][0], expected[0][0], rtol=1e-5, atol=1e-6)
    trainer = gluon.Trainer(make_net("dense").collect_params(), "sgd")
    first, *_ = job(clients=2).workers
    kvstore_mpi.mxnet.parallel(trainer, "async", worker=first)
    assert trainer._scale == 1


def test_a_loss_that_is_scaled_for_half_precision_stays_so(job):
    """``amp.init_trainer`` may come before or after."""
    first, *_ = job(clients=2).workers
    trainer = gluon.Trainer(make_net("dense").collect_params(), "sgd")
    trainer._amp_original_scale = trainer._scale
    kvstore_mpi.mxnet.parallel(trainer, worker=first)
    assert (trainer._scale, trainer._amp_original_scale) == (0.5, 0.5)


def test_trainers_that_cannot_be_made_parallel(job):
    """Each with what to do; outside of a job the error says how to start one."""
    (worker,) = job(servers=1).workers
    parallel, parameters = kvstore_mpi.mxnet.parallel, make_net("dense").collect_params()
    with pytest.raises(UsageError, match=r"is for a gluon\.Trainer, and this is a Sequential"):
        parallel(make_net("dense"), worker=worker)
    given = gluon.Trainer(parameters, "sgd", kvstore=KVStoreMPI("sync", worker))
    with pytest.raises(UsageError, match="has been given a store"):
        parallel(given, worker=worker)
    begun = gluon.Trainer(parameters, "sgd")
    with pytest.raises(UsageError, match="'sync' or 'async', not 'p3'"):
        parallel(begun, "p3", worker=worker)
    begun._init_kvstore()
    with pytest.raises(UsageError, match="before its first step"):
        parallel(begun, worker=worker)
