"""Tables in a whole job of real threads over a network in memory, against one NumPy table."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kvstore_mpi.records import Rows
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

SHAPE = (23, 3)
SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={}).to_dict()


def initial():
    return np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)


def wait(call, *args, **named):
    """Make an asynchronous call and wait for its end."""
    ended, errors = threading.Event(), []

    def done(error):
        errors.append(error)
        ended.set()

    call(*args, done=done, **named)
    assert ended.wait(20)
    if errors[0] is not None:
        raise errors[0]


def init(worker, store, value=None, **how):
    table = initial() if worker.rank == 0 else np.zeros(SHAPE, np.float32)
    wait(worker.init_rows, store, "t", SHAPE, "float32", value=table if value is None else value, **how)
    return table


def rows_of(worker, step, count=5):
    """Return some rows of one worker in one step; integers, so that sums are exact in any order."""
    random = np.random.default_rng([worker.rank, step])
    ids = np.sort(random.choice(SHAPE[0], size=random.integers(0, count + 1), replace=False)).astype(
        np.int64
    )
    return Rows(ids, random.integers(-8, 9, (ids.size, SHAPE[1])).astype(np.float32))


def scatter(table, out):
    for ids, values in out:
        table[ids] = values


def expected(workers, steps, rate=0.5):
    table = initial()
    for step in range(steps):
        total = np.zeros(SHAPE, np.float32)
        for worker in workers:
            ids, values = rows_of(worker, step)
            total[ids] += values
        table -= np.float32(rate) * total
    return table


LAYOUTS = [(1, 1, 1), (1, 1, 2), (3, 1, 2)]


@pytest.fixture(params=LAYOUTS, ids=str)
def job(request):
    clients, per_client, servers = request.param
    with Cluster(
        MemoryNetwork().transport, clients=clients, workers_per_client=per_client, servers=servers
    ) as cluster:
        yield cluster
    assert not cluster.errors


@pytest.mark.parametrize("how", [{}, {"partitions": 5}, {"partitions": 4, "by": "range"}], ids=str)
def test_every_worker_gets_what_has_changed(job, how):
    """And has then the table that one process would have, on any layout, however it is cut."""

    def train(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, SGD)
        table = init(worker, store, **how)
        for step in range(6):
            out = []
            wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
            scatter(table, out)
            ids = np.concatenate([rows.ids for rows in out])
            assert ids.size == len(set(ids.tolist())) <= 5 * len(job.workers)
        whole = []
        wait(worker.pull_rows, store, "t", priority=0, out=whole, ids=np.arange(SHAPE[0]))
        again = np.zeros(SHAPE, np.float32)
        scatter(again, whole)
        return table, again

    for table, again in job.on_all(train):
        np.testing.assert_array_equal(table, expected(job.workers, 6))
        np.testing.assert_array_equal(again, table)
