"""Ranks of a client with a host each push rows to the servers for themselves; others merge them first."""

from __future__ import annotations

import numpy as np
import pytest
from support.outcomes import check, outcomes
from support.trained_table import SGD, expected, init, initial, rows_of, scatter, wait

from kvstore_mpi.errors import MismatchError, PeerError
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.worker import table_collectives

pytestmark = pytest.mark.usefixtures("short_linger")


def train(worker, steps=3, mode="sync"):
    """Train a table for some steps; return it."""
    store = worker.open_store(mode)
    worker.set_optimizer(store, SGD)
    table = init(worker, store, partitions=3)
    for step in range(steps):
        out = []
        wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
        scatter(table, out)
    return table


@pytest.fixture
def merged(monkeypatch):
    """Return how many tables' rows have been merged among ranks."""
    counts = []
    monkeypatch.setattr(table_collectives, "carry_out", _counting(counts, table_collectives.carry_out))
    return counts


def _counting(counts, carry_out):
    def counted(group, jobs):
        counts.append(len(jobs))
        carry_out(group, jobs)

    return counted


@pytest.mark.parametrize(
    ("shape", "merges"),
    [
        ({"workers_per_client": 3, "hosts_apart": True}, False),
        ({"workers_per_client": 3, "hosts_apart": True, "leaders": "all"}, False),
        ({"workers_per_client": 3}, True),
        # How the ranks of the other client are placed, no worker knows.
        ({"clients": 2, "workers_per_client": 2, "hosts_apart": True}, True),
    ],
    ids=["apart", "apart with leaders all", "one host", "two clients"],
)
def test_rows_are_merged_where_that_saves_something(merged, shape, merges):
    """With hosts apart no row waits for a collective; the numbers are the same in each case."""
    with Cluster(MemoryNetwork().transport, servers=2, **shape) as job:
        for table in job.on_all(train):
            np.testing.assert_array_equal(table, expected(job.workers, 3))
        states = [server._state for server in job.servers]
        records = [record for state in states for record in state.keys if record.is_table]
        assert {record.spec.apart for record in records} == {not merges}
        assert {record.num_pushers for record in records} == {
            2 if "clients" in shape else 1 if merges else 3
        }
    assert bool(merged) == merges
    assert not job.errors


def test_an_asynchronous_store_merges(merged):
    """There a client's push is one update, which must have the rows of all of its ranks."""
    with Cluster(MemoryNetwork().transport, servers=1, workers_per_client=2, hosts_apart=True) as job:
        tables = job.on_all(lambda worker: train(worker, mode="async"))
        np.testing.assert_array_equal(tables[0], expected(job.workers, 3))
    assert merged


@pytest.mark.parametrize("first", [True, False])
def test_a_job_goes_on_on_other_hosts(tmp_path, first):
    """Whether each rank has a host of its own or not is a matter of each job."""
    for part, apart in enumerate((first, not first)):
        shape = {"workers_per_client": 2, "servers": part + 1, "hosts_apart": apart}
        with Cluster(
            MemoryNetwork().transport, **shape, snapshot_dir=str(tmp_path), resume=part > 0
        ) as job:
            tables = job.on_all(train)
            assert not job.errors
    total = expected(job.workers, 3) - initial()
    for table in tables:
        np.testing.assert_array_equal(table, initial() + 2 * total)


@pytest.mark.parametrize("counts", [(3, 2, 2), (2, 2, 3)])
def test_unequal_numbers_of_pushes(counts):
    """Whoever pushes once more is told who has finished, before any deadline."""

    def run(worker):
        train(worker, counts[worker.rank])

    ended = outcomes((1, 3, 1), run, step_timeout=60.0, hosts_apart=True)
    more = counts.index(3)
    check(
        ended[more],
        MismatchError,
        "has finished after 2 pushes",
        "makes push 3",
        "unequal numbers of batches",
    )
    others = [each for rank, each in enumerate(ended) if rank != more]
    assert all(each is None or isinstance(each, PeerError) for each in others), others
