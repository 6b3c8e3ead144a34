"""Stores that are closed, as the scheduler sees it: when they are over, and who is told."""

from __future__ import annotations

import pytest
from support.scheduler_job import (
    Job,
    again,
    asynchronous_job,
    declare,
    sent,
    server,
    the_failure,
    worker,
)

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.wire import messages as m


def closes(job, rank, store=0, number=1):
    return job.says(worker(rank), m.BarrierArrive(number, closes=store))


def told_of_stores(out):
    return sent(out, m.StoresClosed)


def test_a_store_is_over_when_all_workers_have_closed_it():
    """Its servers are told the numbers of its keys; other stores, and who counts on them, go on."""
    job = Job(clients=1, workers=2, servers=2)
    for key, store in (("w", 0), ("v", 0), ("w", 1)):
        job.says(worker(0), declare(key, store=store))
    assert sent(closes(job, 0), m.StoresClosed) == {}
    out = closes(job, 1)
    over = m.StoresClosed([0], [0, 1])
    assert told_of_stores(out) == {server(0): over, server(1): over}
    assert set(sent(out, m.BarrierRelease)) == {worker(0), worker(1)}
    assert sent(job.says(worker(0), declare(store=1)), m.Placed)[worker(0)].key_id == 2
    assert sent(job.says(worker(0), declare(store=2)), m.Placed)[worker(0)].key_id == 3


@pytest.mark.parametrize("orderly", [True, False])
def test_who_is_gone_for_good_uses_no_store(orderly):
    """Whether its script has ended, or it was lost in a job that goes on without it."""
    job = asynchronous_job(clients=3, workers=3)
    closes(job, 0)
    assert told_of_stores(closes(job, 2)) == {}
    out = job.says(worker(1), m.Leave()) if orderly else job.state.silent(worker(1), 30.0, 5.0)
    assert told_of_stores(out) == {server(0): m.StoresClosed([0], [0])}


def test_who_was_lost_is_not_missed_between_two_stores():
    """A job whose first store went on without it comes to the next one."""
    job = asynchronous_job(clients=3, workers=3)
    job.state.silent(worker(2), 30.0, 5.0)
    for rank in range(2):
        out = closes(job, rank)
    assert told_of_stores(out) == {server(0): m.StoresClosed([0], [0])}
    assert sent(job.says(worker(0), m.BarrierArrive(2)), m.Failure) == {}
    out = job.says(worker(1), m.BarrierArrive(2))
    assert set(sent(out, m.BarrierRelease)) == {worker(0), worker(1)}


@pytest.mark.parametrize("closes_first", [False, True])
def test_a_synchronous_store_that_was_the_last_misses_who_is_lost(closes_first):
    """As before it was closed: who waits at a barrier is told."""
    job = Job(clients=2, workers=2, servers=1)
    job.says(worker(0), declare())
    for rank in range(2) if closes_first else ():
        closes(job, rank)
    job.says(worker(0), m.BarrierArrive(2))
    out = job.state.silent(worker(1), 30.0, 5.0)
    assert set(sent(out, m.Failure)) == {worker(0), worker(1)}


def test_a_server_that_comes_back_is_told_what_is_over():
    """A server may have it in its snapshot."""
    job = asynchronous_job(clients=2, workers=2)
    for rank in range(2):
        closes(job, rank)
    job.state.restarting("server0", 0, "SIGKILL", 5.0)
    out = job.says(server(0), again())
    assert told_of_stores(out) == {server(0): m.StoresClosed([0], [0])}


def test_the_only_client_begins_with_its_first_store_again():
    """With keys of other numbers, for servers know the former ones as gone; its ranks meet at barriers."""
    job = asynchronous_job(clients=1, workers=2)
    for rank in range(2):
        closes(job, rank)
    for rank in range(2):
        assert told_of_stores(job.says(worker(rank), again())) == {}
    assert sent(job.says(worker(0), declare(mode="async")), m.Placed)[worker(0)].key_id == 1
    assert sent(closes(job, 1), m.BarrierRelease) == {}
    assert told_of_stores(closes(job, 0)) == {server(0): m.StoresClosed([0], [1])}


@pytest.mark.parametrize("differ", [False, True])
def test_the_only_client_meets_nothing_of_its_former_run_at_a_barrier(differ):
    """Neither who closed a store there, nor that one of its ranks did something else."""
    job = asynchronous_job(clients=1, workers=2)
    closes(job, 0)
    if differ:
        job.says(worker(1), m.BarrierArrive(1))
    job.state.restarting("client0", 0, "SIGKILL", 5.0)
    for rank in range(2):
        job.says(worker(rank), again())
    assert sent(job.says(worker(0), m.BarrierArrive(1)), m.Failure) == {}
    out = job.says(worker(1), m.BarrierArrive(1))
    assert set(sent(out, m.BarrierRelease)) == {worker(0), worker(1)}
    assert told_of_stores(out) == {}
    closes(job, 1, number=2)
    assert told_of_stores(closes(job, 0, number=2)) == {server(0): m.StoresClosed([0], [0])}


def test_who_comes_to_another_end_is_told_also_later():
    """All that wait at the barrier, and those that come there afterwards."""
    job = Job(clients=1, workers=3, servers=1)
    closes(job, 0)
    told = sent(job.says(worker(1), m.BarrierArrive(1)))
    assert set(told) == {worker(0), worker(1)}
    text = told[worker(0)].text
    assert told[worker(0)].error == MismatchError.__name__
    assert "client0.1 (host host7, pid 4711) calls barrier where client0.0" in text
    assert "closes store 0" in text
    assert sent(closes(job, 2))[worker(2)] == told[worker(0)]


def test_a_worker_that_ends_instead_is_named():
    """As at any barrier, with the store."""
    job = Job(clients=1, workers=2, servers=1)
    closes(job, 0)
    peer, failure = the_failure(job.says(worker(1), m.Finished()))
    assert peer == worker(0)
    assert (
        "waits at barrier 1 to close store 0: all workers must call barrier equally often" in failure.text
    )


def test_the_names_of_a_store_that_is_over_say_nothing_of_the_next():
    """A key that was pushed densely there may be a table when its client begins again."""
    job = asynchronous_job(clients=1, workers=1)
    job.says(worker(0), m.PushesDensely(0, "w"))
    closes(job, 0)
    job.says(worker(0), again())
    table = declare(("table str w"), mode="async", partitions=2)
    assert set(sent(job.says(worker(0), table))) == {worker(0)}
    assert sent(job.says(worker(0), table), m.Placed)[worker(0)].key_id == 1
