"""Tables whose rows come into being when they are pushed, in a whole job over a network in memory."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Growth, Retention, RowInit, Rows
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.values.row_init import initial_rows

SHAPE = (2**63 - 1, 3)
"""Any 64-bit id."""

BEGIN = RowInit("normal", 0, 0.1, 7)
MOMENTUM = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={"momentum": 0.5}).to_dict()
IDS = np.array([0, 5, 6, 2**31, 2**40 + 1, 2**62, 2**63 - 2])


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


def rows_of(worker, step, dtype="float32"):
    random = np.random.default_rng([worker.rank, step])
    ids = IDS[random.random(IDS.size) < 0.4]
    return Rows(ids, random.integers(-8, 9, (ids.size, SHAPE[1])).astype(dtype))


def pull(worker, store, ids):
    out = []
    wait(worker.pull_rows, store, "t", priority=0, out=out, ids=ids)
    rows = {i: row for part in out for i, row in zip(part.ids.tolist(), part.values)}
    return np.array([rows[i] for i in ids.tolist()])


def initial(ids=IDS):
    return initial_rows(BEGIN, ids, SHAPE[1], np.dtype(np.float32))


def trained(workers, steps):
    """Return what one process would have: SGD with momentum, only rows with a gradient moving."""
    weight, momentum = initial(), np.zeros((IDS.size, SHAPE[1]), np.float32)
    for step in range(steps):
        parts = [rows_of(worker, step) for worker in workers]
        for row, key in enumerate(IDS):
            found = [part.values[np.flatnonzero(part.ids == key)[0]] for part in parts if key in part.ids]
            if found:
                momentum[row] = np.float32(0.5) * momentum[row] - np.float32(0.5) * sum(found)
                weight[row] += momentum[row]
    return weight


def train(worker, steps=6, dtype="float32", **how):
    """Push some rows in each step; return all rows, as this worker sees them before and after."""
    store = worker.open_store("sync")
    worker.set_optimizer(store, MOMENTUM)
    wait(worker.init_rows, store, "t", SHAPE, dtype, value=None, growth=Growth(BEGIN), **how)
    before = pull(worker, store, IDS)
    for step in range(steps):
        wait(worker.push_rows, store, "t", rows_of(worker, step, dtype), priority=0)
    return before, pull(worker, store, IDS)


@pytest.mark.parametrize("job", [(1, 1, 1), (3, 1, 2), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("how", [{}, {"partitions": 5}, {"partitions": 4, "by": "range"}], ids=str)
def test_rows_are_the_same_on_any_layout(job, how):
    """However the table is cut, each row begins with its bits and goes its way in one process."""
    clients, per_client, servers = job
    with Cluster(
        MemoryNetwork().transport, clients=clients, workers_per_client=per_client, servers=servers
    ) as cluster:
        for before, after in cluster.on_all(lambda worker: train(worker, **how)):
            np.testing.assert_array_equal(before, initial())
            np.testing.assert_allclose(after, trained(cluster.workers, 6), rtol=2e-6)
        known = [
            piece.rows.slots(np.arange(1))
            for server in cluster.servers
            for table in server._store.tables.values()
            for piece in table._growing.values()
        ]
        assert len(known) == how.get("partitions", servers)
    assert not cluster.errors


def test_half_precision_rests_in_single():
    """Steps that float16 would swallow add up."""
    small = 2.0**-13

    def push(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, OptimizerSpec(name="sgd", hyper=HyperParameters(lr=small)).to_dict())
        growth = Growth(RowInit("constant", 1))
        wait(worker.init_rows, store, "t", SHAPE, "float16", value=None, growth=growth)
        for _ in range(16):
            wait(worker.push_rows, store, "t", Rows(IDS, np.ones((IDS.size, 3), "float16")), priority=0)
        return pull(worker, store, IDS)

    with Cluster(MemoryNetwork().transport, servers=1) as job:
        (values,) = job.on_all(push)
    assert values.dtype == np.float16
    np.testing.assert_array_equal(values, np.full(values.shape, 1 - 16 * small))


def test_rows_go_and_come_back():
    """The cap is that of the whole table, and what has gone begins anew."""

    def push(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, MOMENTUM)
        growth = Growth(BEGIN, Retention(max_rows=4))
        wait(worker.init_rows, store, "t", SHAPE, "float32", value=None, growth=growth)
        for step in range(10):
            ids = np.arange(2 * step, 2 * step + 2)
            wait(worker.push_rows, store, "t", Rows(ids, np.ones((2, 3), np.float32)), priority=0)
        return pull(worker, store, np.arange(20))

    with Cluster(MemoryNetwork().transport, servers=2) as job:
        (values,) = job.on_all(push)
        tables = [server._store.tables for server in job.servers]
        pieces = [piece for each in tables for table in each.values() for piece in table._growing.values()]
        assert [len(piece.rows) for piece in pieces] == [2, 2]
    np.testing.assert_array_equal(values[:16], initial(np.arange(16)))
    np.testing.assert_allclose(values[16:], initial(np.arange(16, 20)) - 0.5, rtol=1e-6)


WRONG = {
    "rows cannot begin as 'gauss'": {"growth": Growth(RowInit("gauss"))},
    "must not be negative": {"growth": Growth(BEGIN, Retention(max_age=-1))},
    "3 rows cannot be kept in 4 pieces": {
        "growth": Growth(BEGIN, Retention(max_rows=3)),
        "partitions": 4,
    },
    "not both": {"growth": Growth(), "value": np.zeros((4, 3), np.float32), "shape": (4, 3)},
    "optimizers need floating point": {"growth": Growth(), "dtype": "int32"},
}


@pytest.mark.parametrize("says", WRONG)
def test_wrong_growth(says):
    """One clear error in the call."""
    how = {"value": None, "shape": SHAPE, "dtype": "float32", **WRONG[says]}

    def begin(worker):
        with pytest.raises(UsageError, match=says):
            wait(worker.init_rows, worker.open_store("sync"), "t", **how)

    with Cluster(MemoryNetwork().transport, servers=1) as job:
        job.on_all(begin)


def test_what_such_a_table_cannot_do():
    """It has no delta, needs servers, and its ids are its own."""

    def use(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, MOMENTUM)
        wait(worker.init_rows, store, "t", SHAPE, "float32", value=None, growth=Growth())
        rows = Rows(IDS[:1], np.zeros((1, 3), np.float32))
        with pytest.raises(UsageError, match="pull some by their ids"):
            worker.pushpull_rows(store, "t", rows, 0, lambda _: None, [])
        with pytest.raises(UsageError, match="pull some by their ids"):
            worker.pull_rows(store, "t", 0, lambda _: None, [])
        with pytest.raises(UsageError, match=r"has the rows 0 to 9223372036854775806, and not -1"):
            pull(worker, store, np.array([-1]))
        own = worker.open_store("client")
        with pytest.raises(UsageError, match="start the job with --servers 1"):
            wait(worker.init_rows, own, "t", SHAPE, "float32", value=None, growth=Growth())

    with Cluster(MemoryNetwork().transport, servers=1) as job:
        job.on_all(use)


def test_states_of_a_table_with_a_number_of_rows_are_refused():
    """By the call that loads them: a server has no such rows, and would end by the first of them."""

    def save(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, MOMENTUM)
        shape = (6, SHAPE[1])
        wait(worker.init_rows, store, "t", shape, "float32", np.zeros(shape, np.float32))
        wait(worker.push_rows, store, "t", Rows(IDS[1:2], np.ones((1, SHAPE[1]), np.float32)), priority=0)
        return worker.optimizer_states(store)

    def load(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, MOMENTUM)
        wait(worker.init_rows, store, "t", SHAPE, "float32", None, growth=Growth(BEGIN))
        with pytest.raises(UsageError, match=r"the states of key 't' .* fixed number of rows.*--resume"):
            worker.load_optimizer_states(store, states)
        wait(worker.push_rows, store, "t", rows_of(worker, 0), priority=0)
        return pull(worker, store, IDS)

    with Cluster(MemoryNetwork().transport, clients=1, servers=1) as job:
        [states] = job.on_all(save)
    assert states["t"].arrays
    with Cluster(MemoryNetwork().transport, clients=1, servers=1) as job:
        [values] = job.on_all(load)
        np.testing.assert_allclose(values, trained(job.workers, 1), rtol=1e-6)
