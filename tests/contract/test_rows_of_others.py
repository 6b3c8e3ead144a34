"""A dense weight of an asynchronous store, of which one worker pushes rows and another only pulls."""

from __future__ import annotations

import threading

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.hybrid_jobs import hybrid_jobs  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.testing.cluster import DEADLINE_S  # noqa: E402

pytestmark = pytest.mark.mxnet

SHAPE = (6, 2)


@pytest.fixture
def job():
    """Make jobs with two servers, and end them."""
    with hybrid_jobs() as make:
        yield make


class Told(set):
    """Tables of other workers, of which somebody waits to be told."""

    def __init__(self):
        super().__init__()
        self.event = threading.Event()

    def add(self, key):
        super().add(key)
        self.event.set()


def open_stores(cluster, value):
    """Return a store for each worker, with a weight of this value, and what each is told of."""
    told = [Told() for _ in cluster.workers]
    for worker, each in zip(cluster.workers, told):
        worker._state.keys.tables_elsewhere = each
    stores = [KVStoreMPI("async", worker) for worker in cluster.workers]
    for store in stores:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    for store in stores:
        store.init("w", value)
        store.init("other", value)
    return stores, told


def push(store, row):
    store.push("w", mx.nd.sparse.row_sparse_array((np.ones((1, 2), np.float32), [row]), shape=SHAPE))


def whole(store):
    """Return what a dense pull gives."""
    out = mx.nd.empty(SHAPE)
    store.pull("w", out=out)
    return out.asnumpy()


def some(store):
    """Return what a pull of all rows gives."""
    out = mx.nd.sparse.zeros("row_sparse", SHAPE)
    store.row_sparse_pull("w", out=out, row_ids=mx.nd.arange(SHAPE[0]))
    return out.tostype("default").asnumpy()


@pytest.mark.parametrize("pulled", [whole, some])
@pytest.mark.parametrize("pusher", [0, 1])
def test_a_worker_that_only_pulls_sees_the_rows_that_others_push(job, pusher, pulled):
    """From the first on, which makes a table of the weight; it may push later itself."""
    stores, told = open_stores(job(clients=2, workers_per_client=1), mx.nd.ones(SHAPE))
    one, other = stores[pusher], stores[1 - pusher]
    expected = np.ones(SHAPE, np.float32)
    np.testing.assert_array_equal(pulled(other), expected)
    push(one, 2)
    assert told[1 - pusher].event.wait(DEADLINE_S)
    pulled(other)  # where it is rank 0's, the push waits for it
    for store, row in ((one, 4), (one, 4), (other, 5), (one, 2)):
        push(store, row)
        pulled(store)  # with the own push
    expected[[2, 4]] -= 2
    expected[5] -= 1
    np.testing.assert_array_equal(pulled(other), expected)
    assert not told[pusher]


def test_one_rank_of_a_client_may_pull_alone(job):
    """Before all of its client push, which needs all of them."""
    stores, told = open_stores(job(clients=2, workers_per_client=2), mx.nd.zeros(SHAPE))
    for store in stores[:2]:
        push(store, 1)
    assert told[3].event.wait(DEADLINE_S)
    whole(stores[0])
    expected = np.zeros(SHAPE, np.float32)
    expected[1] = -2
    np.testing.assert_array_equal(whole(stores[3]), expected)
    assert stores[3].plan().keys[0].alpha_rank is None
    for store in stores[2:]:
        push(store, 1)
    for store in stores[2:]:
        np.testing.assert_array_equal(whole(store), 2 * expected)
