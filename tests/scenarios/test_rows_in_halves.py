"""Rows that travel in half precision, in a whole job of real threads, against one NumPy table."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Growth, RowInit, Rows
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.values.coding import ROW_CODINGS, coding_of

SHAPE, STEPS, RATE = (23, 3), 6, 0.5
CODINGS = ["float16", "bfloat16"]


def sgd(compress):
    hyper = HyperParameters(lr=RATE)
    return OptimizerSpec(name="sgd", hyper=hyper, compress=coding_of(compress)).to_dict()


def initial():
    return np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)


def finished(call, *args, **named):
    """Make an asynchronous call and wait for its end."""
    ended, errors = threading.Event(), []

    def done(error):
        errors.append(error)
        ended.set()

    call(*args, done=done, **named)
    assert ended.wait(20)
    assert errors == [None]


def rows_of(rank, step):
    """Draw what a worker pushes: integers of 14 bits, of which sums are exact, and halves are not."""
    random = np.random.default_rng([rank, step])
    ids = np.sort(random.choice(SHAPE[0], size=5, replace=False)).astype(np.int64)
    return Rows(ids, random.integers(-8191, 8192, (ids.size, SHAPE[1])).astype(np.float32))


def sent(values, compress):
    """Return what values are on the other side."""
    coding = ROW_CODINGS[coding_of(compress)]
    elements = np.empty_like(values, coding.wire_type)
    coding.narrow(values, elements)
    return coding.widen(elements)


def trained(clients, per_client, compress):
    """Return the table of one process that rounds where a client's rows leave it."""
    table = initial()
    for step in range(STEPS):
        total = np.zeros(SHAPE, np.float32)
        for client in range(clients):
            of_client = np.zeros(SHAPE, np.float32)
            for rank in range(client * per_client, (client + 1) * per_client):
                ids, values = rows_of(rank, step)
                of_client[ids] += values
            total += sent(of_client, compress)
        table -= np.float32(RATE) * total
    return table


@pytest.mark.parametrize("compress", CODINGS)
@pytest.mark.parametrize("layout", [(1, 1, 1), (3, 1, 2), (2, 2, 2)], ids=str)
def test_servers_add_up_rounded_rows_and_round_only_what_they_send(layout, compress):
    """The ranks of a client have merged theirs before; the first value is exact, and what is to be so."""
    clients, per_client, servers = layout

    def train(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, sgd(compress))
        table = initial() if worker.rank == 0 else np.zeros(SHAPE, np.float32)
        finished(worker.init_rows, store, "t", SHAPE, "float32", value=table, partitions=3)
        np.testing.assert_array_equal(table, initial())
        for step in range(STEPS):
            out = []
            finished(worker.pushpull_rows, store, "t", rows_of(worker.rank, step), priority=0, out=out)
            for ids, values in out:
                table[ids] = values
        wanted, exact = [], []
        ids = np.arange(SHAPE[0])
        finished(worker.pull_rows, store, "t", priority=0, out=wanted, ids=ids)
        finished(worker.pull_rows, store, "t", priority=0, out=exact, ids=ids, exact=True)
        return table, wanted, exact, worker.rows_counted(store)["t"]

    network = MemoryNetwork()
    with Cluster(
        network.transport, clients=clients, workers_per_client=per_client, servers=servers
    ) as cluster:
        ended = cluster.on_all(train)
    expected = trained(clients, per_client, compress)
    touched = np.unique([rows_of(rank, step).ids for rank in range(len(ended)) for step in range(STEPS)])
    seen = initial()
    seen[touched] = sent(expected[touched], compress)
    assert not np.array_equal(seen, expected)
    for table, wanted, exact, count in ended:
        np.testing.assert_array_equal(table, seen)
        assert count.row_bytes == 2 * SHAPE[1]
        for ids, values in wanted:
            np.testing.assert_array_equal(values, sent(expected[ids], compress))
        for ids, values in exact:
            np.testing.assert_array_equal(values, expected[ids])


@pytest.mark.parametrize("compress", CODINGS)
def test_rows_that_come_into_being_travel_so(compress):
    """On a table that only servers have, with updates that half precision could not add up."""
    growth = Growth(RowInit("constant", 1024.0))
    ids = np.array([3, 10**12], np.int64)

    def train(worker):
        store = worker.open_store("async")
        worker.set_optimizer(store, sgd(compress))
        finished(worker.init_rows, store, "t", (10**13, 2), "float32", value=None, growth=growth)
        for _ in range(512):
            rows = Rows(ids, np.full((2, 2), -0.25, np.float32))
            finished(worker.push_rows, store, "t", rows, priority=0)
        out = []
        finished(worker.pull_rows, store, "t", priority=0, out=out, ids=ids)
        return np.concatenate([values for _, values in out])

    with Cluster(MemoryNetwork().transport, servers=1) as cluster:
        (found,) = cluster.on_all(train)
    np.testing.assert_array_equal(found, np.full((2, 2), 1024 + 512 * 0.25 * RATE))


def test_integers_are_refused():
    """Whichever comes first, optimizer or table; the store goes on without."""

    def train(worker):
        store = worker.open_store("async")
        words = "rows of int32 cannot travel as bfloat16"

        def init(key):
            value = np.ones(SHAPE, np.int32)
            finished(worker.init_rows, store, key, SHAPE, "int32", value=value)

        worker.set_optimizer(store, sgd("bfloat16"))
        with pytest.raises(UsageError, match=words):
            init("t")
        worker.set_optimizer(store, sgd(None))
        init("t")
        with pytest.raises(UsageError, match=f"key 't' of worker 0: {words}"):
            worker.set_optimizer(store, sgd("bfloat16"))
        init("u")
        return True

    with Cluster(MemoryNetwork().transport, servers=1) as cluster:
        assert cluster.on_all(train) == [True]
