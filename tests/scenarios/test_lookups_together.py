"""Ranks of a client that look up rows together: what they get, what crosses the link, and who is told."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.outcomes import check, outcomes
from support.trained_table import SGD, SHAPE, expected, init, rows_of, scatter, wait

from kvstore_mpi.errors import MismatchError, PeerError
from kvstore_mpi.records import FetchedVersions
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

pytestmark = pytest.mark.usefixtures("short_linger")

TABLES = ("t", "u", "v")
TWO_HOSTS, UNEVEN = [[0, 1], [2, 3]], [[0], [1, 2, 3]]


def trained(worker, mode="sync", **how):
    """Return a store that has an optimizer and the table, and the table as this worker has it."""
    store = worker.open_store(mode)
    worker.set_optimizer(store, SGD)
    return store, init(worker, store, **how)


def together(worker, store, ids, key="t"):
    """Look up rows with the rest of the client; return them, and check that each comes once."""
    out = []
    wait(worker.pull_rows, store, key, priority=0, out=out, ids=ids, together=True)
    found = np.concatenate([ids[:0], *(each.ids for each in out)])
    assert sorted(found.tolist()) == ids.tolist()
    table = np.full(SHAPE, np.nan, np.float32)
    scatter(table, out)
    return table[ids]


def ids_of(worker, step):
    """Return what a rank looks up: sometimes nothing, and often what others do."""
    random = np.random.default_rng([worker.rank, step, 7])
    return np.unique(random.integers(0, SHAPE[0], random.choice([0, 1, 8])))


def train(job, worker, *, mode="sync", partitions=3, steps=4):
    """Push, and look up what that has made of the table."""
    store, _ = trained(worker, mode, partitions=partitions)
    for step in range(steps):
        wait(worker.push_rows, store, "t", rows_of(worker, step), priority=0)
        if mode == "async":
            worker.barrier()  # all have pushed
        ids = ids_of(worker, step)
        want = expected(job.workers, step + 1)[ids]
        np.testing.assert_array_equal(together(worker, store, ids), want)
        if mode == "async":
            worker.barrier()  # all have looked


@pytest.mark.parametrize(
    "shape",
    [
        {"workers_per_client": 4},
        {"workers_per_client": 4, "leaders": "all"},
        {"workers_per_client": 4, "hosts": TWO_HOSTS},
        {"workers_per_client": 4, "hosts": TWO_HOSTS, "leaders": "all"},
        {"workers_per_client": 4, "hosts": UNEVEN, "leaders": "all"},
        {"clients": 2, "workers_per_client": 2},
        {"workers_per_client": 3, "hosts_apart": True},
        {"workers_per_client": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_every_rank_gets_its_rows(shape, partitions):
    """As they are behind the pushes of all, whoever has asked for them."""
    with Cluster(MemoryNetwork().transport, servers=2, lookups="together", **shape) as job:
        job.on_all(partial(train, job, partitions=partitions))
    assert not job.errors


def test_in_an_asynchronous_store():
    """There rows are what the servers have at the time, with the own pushes."""
    with Cluster(MemoryNetwork().transport, servers=2, workers_per_client=3, lookups="together") as job:
        job.on_all(partial(train, job, mode="async"))
    assert not job.errors


def received(job, ids):
    """Return the bytes of rows that all workers receive when each looks up ids of its own."""

    def run(worker):
        store, _ = trained(worker)
        before = worker.rows_counted(store)["t"].received
        together(worker, store, ids(worker))
        worker.barrier()
        return worker.rows_counted(store)["t"].received - before

    return sum(job.on_all(run))


@pytest.mark.parametrize(
    ("hosts", "times"), [([[0, 1, 2, 3]], 1), (TWO_HOSTS, 2), ([[0], [1], [2], [3]], 4)], ids=str
)
def test_a_row_comes_to_a_host_once(hosts, times):
    """However many of its ranks look it up."""

    def bytes_of(lookups, ids):
        shape = {"workers_per_client": 4, "hosts": hosts, "lookups": lookups}
        with Cluster(MemoryNetwork().transport, servers=1, **shape) as job:
            return received(job, ids)

    same, none = np.arange(3, 9), np.empty(0, np.int64)
    once = bytes_of("each", lambda worker: none if worker.rank else same)
    assert once > 0
    assert bytes_of("each", lambda _worker: same) == 4 * once
    assert bytes_of("together", lambda _worker: same) == times * once


def test_many_tables_look_up_at_once():
    """Their collectives share messages between the ranks, and each table gets its own rows."""

    def run(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, SGD)
        values = {}
        for number, key in enumerate(TABLES):
            shape = (SHAPE[0] + number, SHAPE[1])
            value = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape) * (number + 1)
            values[key] = value
            wait(worker.init_rows, store, key, shape, "float32", value=value.copy())
        for step in range(5):
            outs = {key: [] for key in TABLES}
            asked = {key: ids_of(worker, step + number) for number, key in enumerate(TABLES)}
            for key in TABLES:
                worker.pull_rows(store, key, 0, lambda _: None, outs[key], asked[key], together=True)
            worker.flush(20)
            for key in TABLES:
                table = np.full(values[key].shape, np.nan, np.float32)
                scatter(table, outs[key])
                np.testing.assert_array_equal(table[asked[key]], values[key][asked[key]])

    shape = {"workers_per_client": 4, "hosts": UNEVEN, "leaders": "all", "lookups": "together"}
    with Cluster(MemoryNetwork().transport, servers=2, **shape) as job:
        job.on_all(run)
    assert not job.errors


@pytest.mark.parametrize("hosts", [[[0, 1, 2]], [[0], [1, 2]]], ids=str)
def test_rows_that_have_changed_since(hosts):
    """Of the ids that each rank has asked for before, those come that anybody has pushed meanwhile."""

    def run(worker):
        store, _ = trained(worker, partitions=3)
        ids, since = ids_of(worker, 0), FetchedVersions()
        how = {"priority": 0, "ids": ids, "since": since, "together": True}
        table, changed = np.full(SHAPE, np.nan, np.float32), ids
        for step in range(4):
            out = []
            wait(worker.pull_rows, store, "t", out=out, **how)
            scatter(table, out)
            came = np.concatenate([ids[:0], *(each.ids for each in out)])
            assert sorted(came.tolist()) == ids[np.isin(ids, changed)].tolist()
            changed = np.concatenate([rows_of(each, step).ids for each in job.workers])
            np.testing.assert_array_equal(table[ids], expected(job.workers, step)[ids])
            wait(worker.push_rows, store, "t", rows_of(worker, step), priority=0)

    shape = {"workers_per_client": 3, "hosts": hosts, "lookups": "together"}
    with Cluster(MemoryNetwork().transport, servers=2, **shape) as job:
        job.on_all(run)
    assert not job.errors


def test_rows_of_one_rank_need_no_other():
    """What is not called together, or must not be rounded, each rank asks for itself."""

    def run(worker):
        store, table = trained(worker)
        if worker.rank == 1:
            out = []
            wait(worker.pull_rows, store, "t", priority=0, out=out, ids=np.array([2, 5]))
            np.testing.assert_array_equal(np.concatenate([each.values for each in out]), table[[2, 5]])
            wait(worker.pull_rows, store, "t", priority=0, out=[], together=True)
            ids = np.array([2, 5])
            wait(worker.pull_rows, store, "t", priority=0, out=[], ids=ids, together=True, exact=True)

    with Cluster(MemoryNetwork().transport, servers=1, workers_per_client=2, lookups="together") as job:
        job.on_all(run)
    assert not job.errors


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_looks_up_where_the_other_pushes(who):
    """It is told so, and does not wait until a deadline."""

    def run(worker):
        store, _ = trained(worker)
        if worker.rank == who:
            together(worker, store, np.array([1, 2]))
        wait(worker.push_rows, store, "t", rows_of(worker, 0), priority=0)

    ended = outcomes((1, 2, 1), run, step_timeout=60.0, lookups="together")
    check(ended[1], MismatchError, "'t'", "lookup", "push", "in the same order")
    assert isinstance(ended[0], (PeerError, MismatchError))


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_looks_up_once_more(who):
    """Whoever does so after the others have finished is told before any deadline."""

    def run(worker):
        store, _ = trained(worker)
        for _ in range(2 if worker.rank == who else 1):
            together(worker, store, np.array([1, 2]))

    ended = outcomes((1, 2, 1), run, step_timeout=60.0, lookups="together")
    named = [each for each in ended if isinstance(each, MismatchError)]
    assert named, ended
    check(named[0], MismatchError, "'t'", "unequal numbers of batches")


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_looks_up_where_the_other_waits_at_a_barrier(who, mode):
    """As one that prefetches alone: it is told before any deadline, and the other is not left alone."""

    def run(worker):
        store, _ = trained(worker, mode)
        wait(worker.push_rows, store, "t", rows_of(worker, 0), priority=0)
        for _ in range(2 if worker.rank == who else 1):
            together(worker, store, np.array([1, 2]))
        worker.barrier(settled=True)

    ended = outcomes((1, 2, 1), run, step_timeout=60.0, lookups="together")
    number = 3 if mode == "async" else 2  # with the push, for which there only the client waits
    check(ended[who], MismatchError, "waits at barrier 1", f"push or lookup {number}", "--lookups together")
    assert isinstance(ended[1 - who], PeerError)


def test_calls_keep_their_priority(monkeypatch):
    """By which lookups leave before others, and are announced."""
    asked = []

    def run(worker):
        store, _ = trained(worker)
        submit = worker.io.submit

        def noting(number, key, operation, now):
            asked.append((operation.kind.value, operation.priority))
            submit(number, key, operation, now)

        monkeypatch.setattr(worker.io, "submit", noting)
        rows = rows_of(worker, 0)
        wait(worker.push_rows, store, "t", rows, priority=3)
        wait(worker.pushpull_rows, store, "t", rows, priority=4, out=[])
        for together in (False, True):
            how = {"ids": np.array([1]), "together": together, "out": []}
            wait(worker.pull_rows, store, "t", priority=5 + together, **how)

    with Cluster(MemoryNetwork().transport, servers=1, workers_per_client=2, lookups="together") as job:
        job.on_all(run)
    assert sorted(asked) == sorted(2 * [("push", 3), ("pushpull", 4), ("pull", 5), ("lookup", 6)])
