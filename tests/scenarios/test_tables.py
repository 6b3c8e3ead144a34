"""Tables in a whole job of real threads over a network in memory, against one NumPy table."""

from __future__ import annotations

import numpy as np
import pytest
from support.trained_table import SGD, SHAPE, expected, init, initial, rows_of, scatter, wait

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import FetchedVersions, Growth, RowInit, Rows
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

# Clients, ranks of each, servers; and whether each rank has a host of its own.
LAYOUTS = [(1, 1, 1), (1, 1, 2), (3, 1, 2), (2, 2, 1), (1, 3, 2), (1, 3, 2, True)]


@pytest.fixture(params=LAYOUTS, ids=str)
def job(request):
    clients, per_client, servers, *apart = request.param
    with Cluster(
        MemoryNetwork().transport,
        clients=clients,
        workers_per_client=per_client,
        servers=servers,
        hosts_apart=bool(apart),
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


def test_with_leaders_all_each_rank_pushes_some_pieces():
    """And all get what all pieces were answered."""
    with Cluster(
        MemoryNetwork().transport, clients=2, workers_per_client=2, servers=2, leaders="all"
    ) as job:

        def train(worker):
            store = worker.open_store("sync")
            worker.set_optimizer(store, SGD)
            table = init(worker, store, partitions=5)
            for step in range(4):
                out = []
                wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
                scatter(table, out)
            return table

        for table in job.on_all(train):
            np.testing.assert_array_equal(table, expected(job.workers, 4))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("mode", ["sync", "client"])
def test_without_servers_every_worker_gets_the_sum(workers, mode):
    """There is no table then but the workers' own."""
    servers = 0 if mode == "sync" else 1
    with Cluster(MemoryNetwork().transport, workers_per_client=workers, servers=servers) as job:

        def train(worker):
            store = worker.open_store(mode)
            table = init(worker, store)
            np.testing.assert_array_equal(table, initial())
            for step in range(4):
                out = []
                wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
                for ids, values in out:
                    table[ids] -= np.float32(0.5) * values
            return table

        for table in job.on_all(train):
            np.testing.assert_array_equal(table, expected(job.workers, 4))


def test_without_an_optimizer_the_value_is_the_last_sum():
    """Rows that nobody pushes are zero then, which whoever fetches what has changed is told."""
    with Cluster(MemoryNetwork().transport, clients=2, servers=2) as job:

        def train(worker):
            store = worker.open_store("sync")
            told = init(worker, store)
            table, since, ids = np.empty_like(told), FetchedVersions(), np.arange(SHAPE[0])
            for step in range(3):
                out = []
                wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
                table[...] = 0
                scatter(table, out)
                news = []
                wait(worker.pull_rows, store, "t", priority=0, out=news, ids=ids, since=since)
                scatter(told, news)
                np.testing.assert_array_equal(told, table)
                worker.barrier()
            stored = []
            wait(worker.pull_rows, store, "t", priority=0, out=stored, ids=np.arange(SHAPE[0]))
            scatter(again := np.empty(SHAPE, np.float32), stored)
            return table, again

        wanted = (
            initial() - expected(job.workers, 3, rate=1) - (initial() - expected(job.workers, 2, rate=1))
        )
        for table, again in job.on_all(train):
            np.testing.assert_array_equal(table, wanted)
            np.testing.assert_array_equal(again, wanted)


def test_an_async_store_updates_with_each_push():
    """Nobody waits for the others; in the end all rows have had all gradients."""
    with Cluster(MemoryNetwork().transport, clients=3, servers=2) as job:

        def train(worker):
            store = worker.open_store("async")
            worker.set_optimizer(store, SGD)
            table = init(worker, store)
            for step in range(5):
                out = []
                wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
                scatter(table, out)
            worker.barrier()
            out = []
            wait(worker.pull_rows, store, "t", priority=0, out=out)
            scatter(table, out)
            return table

        for table in job.on_all(train):
            np.testing.assert_array_equal(table, expected(job.workers, 5))


@pytest.mark.parametrize("grows", [False, True])
def test_ranks_without_an_array_of_an_async_table(grows):
    """Only rank 0 has the initial value, or rows come into being: nothing is there to begin with."""
    with Cluster(MemoryNetwork().transport, clients=2, workers_per_client=2, servers=2) as job:

        def train(worker):
            store = worker.open_store("async")
            worker.set_optimizer(store, SGD)
            value = initial() if worker.rank == 0 and not grows else None
            how = {"growth": Growth(RowInit("constant", 1))} if grows else {}
            wait(worker.init_rows, store, "t", SHAPE, "float32", value=value, **how)
            for step in range(3):
                wait(worker.push_rows, store, "t", rows_of(worker, step), priority=0)
            worker.barrier()
            out = []
            wait(worker.pull_rows, store, "t", priority=0, out=out, ids=np.arange(SHAPE[0]))
            table = np.zeros(SHAPE, np.float32)
            scatter(table, out)
            return table

        wanted = expected(job.workers, 3) - (initial() - 1 if grows else 0)
        for table in job.on_all(train):
            np.testing.assert_array_equal(table, wanted)


@pytest.mark.parametrize(
    ("ids", "width", "dtype", "words"),
    [
        ([23], 3, "float32", "has the rows 0 to 22, and not 23"),
        ([-1, 4], 3, "float32", "and not -1"),
        ([1], 4, "float32", "1 rows of 3 float32 elements are wanted"),
        ([1], 3, "float64", "not float64"),
    ],
)
def test_rows_that_are_not_of_the_table_are_refused(ids, width, dtype, words):
    """Before anything is sent, in the caller's thread."""
    with Cluster(MemoryNetwork().transport, servers=1) as job:
        (worker,) = job.workers
        store = worker.open_store("sync")
        init(worker, store)
        rows = Rows(np.array(ids, np.int64), np.zeros((len(ids), width), dtype))
        with pytest.raises(UsageError, match=words):
            worker.push_rows(store, "t", rows, 0, lambda _: None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partitions": 24}, "23 rows cannot be cut into 24 partitions"),
        ({"partitions": -1}, "partitions must be .* not -1"),
        ({"by": "hash"}, "not by 'hash'"),
        ({"value": np.zeros((3, 3), np.float32)}, r"initial value is \(3, 3\) float32"),
    ],
)
def test_a_table_that_cannot_be_is_refused(change, words):
    """The error names it and says what is wrong."""
    with Cluster(MemoryNetwork().transport, servers=1) as job:
        (worker,) = job.workers
        store = worker.open_store("sync")
        with pytest.raises(UsageError, match=words):
            init(worker, store, **change)


def test_what_the_leader_pulls_alone_the_others_still_get():
    """A pull is no collective; what it brings to one rank, its client is sent with the next push."""
    with Cluster(MemoryNetwork().transport, clients=2, workers_per_client=2, servers=1) as job:

        def train(worker):
            store = worker.open_store("async")
            worker.set_optimizer(store, SGD)
            table = init(worker, store)
            for step in range(3):
                if worker.client == 1:
                    wait(worker.push_rows, store, "t", rows_of(worker, step), priority=0)
                worker.barrier()
                if worker.rank == 0:
                    out = []
                    wait(worker.pull_rows, store, "t", priority=0, out=out)
                    scatter(table, out)
                worker.barrier()
                if worker.client == 0:
                    out = []
                    wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
                    scatter(table, out)
                worker.barrier()
            return table

        tables = job.on_all(train)
        for table in tables[:2]:
            np.testing.assert_array_equal(table, expected(job.workers, 3))


def test_rows_pulled_by_their_ids_do_not_hide_what_has_changed():
    """The next delta brings the others."""
    with Cluster(MemoryNetwork().transport, clients=2, servers=1) as job:

        def train(worker):
            store = worker.open_store("async")
            worker.set_optimizer(store, SGD)
            table = init(worker, store)
            wait(worker.push_rows, store, "t", rows_of(worker, 1, count=9), priority=0)
            worker.barrier()
            for ids in (np.array([3]), None):
                out = []
                wait(worker.pull_rows, store, "t", priority=0, out=out, ids=ids)
                scatter(table, out)
            return table

        wanted = initial()
        for worker in job.workers:
            ids, values = rows_of(worker, 1, count=9)
            wanted[ids] -= np.float32(0.5) * values
        for table in job.on_all(train):
            np.testing.assert_array_equal(table, wanted)


@pytest.mark.parametrize("how", [{"partitions": 3}, {"partitions": 2, "by": "range"}], ids=str)
def test_rows_that_are_fetched_again_are_those_that_have_changed(job, how):
    """Whoever has pushed them, on any layout; with the former ones they are the rows as they are now."""

    def train(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, SGD)
        init(worker, store, **how)
        ids, since, table = np.arange(0, SHAPE[0], 2), FetchedVersions(), np.zeros(SHAPE, np.float32)
        for step in range(4):
            out = []
            wait(worker.pull_rows, store, "t", priority=0, out=out, ids=ids, since=since)
            pushed = [rows_of(each, step - 1).ids for each in job.workers] if step else [ids]
            came = np.sort(np.concatenate([rows.ids for rows in out]))
            assert came.tolist() == np.intersect1d(ids, np.concatenate(pushed)).tolist()
            scatter(table, out)
            wait(worker.push_rows, store, "t", rows_of(worker, step), priority=0)
            np.testing.assert_array_equal(table[ids], expected(job.workers, step)[ids])

    job.on_all(train)


@pytest.mark.parametrize("how", [{"partitions": 5}, {"partitions": 4, "by": "range"}], ids=str)
def test_optimizer_states_go_to_another_job(how):
    """With another number of servers and pieces: it goes on as this one would have."""
    momentum = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={"momentum": 0.5}).to_dict()

    def train(worker, steps, store, table):
        for step in steps:
            out = []
            wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
            scatter(table, out)

    def begin(worker, value=None, **cut):
        store = worker.open_store("sync")
        worker.set_optimizer(store, momentum)
        return store, init(worker, store, value, **cut)

    with Cluster(MemoryNetwork().transport, servers=3) as job:
        (worker,) = job.workers
        store, table = begin(worker, **how)
        train(worker, range(3), store, table)
        states, middle = worker.optimizer_states(store), table.copy()
        train(worker, range(3, 6), store, table)
    with Cluster(MemoryNetwork().transport, servers=2) as job:
        (worker,) = job.workers
        store, again = begin(worker, middle.copy())
        worker.load_optimizer_states(store, states)
        train(worker, range(3, 6), store, again)
    np.testing.assert_array_equal(again, table)
    assert states["t"].updates == 3
    assert not np.array_equal(table, middle)
