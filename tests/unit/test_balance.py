"""Workers that push more often than others that wait at a barrier, and those that do not."""

from __future__ import annotations

import pytest
from support.one_worker import Worker, only, sent, the_error
from support.scheduler_job import Job

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.records import SCHEDULER, NodeId, Role, StoreTerms
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.instructions import Resolve

AWAITS = m.BarrierAwaits(1, (1, -1), "client1.0 (host h, pid 7)")


def test_a_push_too_many_is_noticed_when_somebody_waits():
    """The other has come first, or the push has begun first: the error is the same."""
    for waits_first in (True, False):
        worker = Worker(clients=2, workers=2).init("w")
        worker.submit(Kind.PUSH, "w")
        out = worker.hears(SCHEDULER, AWAITS) if waits_first else []
        assert out == []
        worker.state.under_way.clear()
        worker.state.keys.by_name[0, "w"].queue.clear()
        out = worker.submit(Kind.PUSH, "w")
        out = out if waits_first else worker.hears(SCHEDULER, AWAITS)
        error = the_error(out)
        assert isinstance(error, MismatchError)
        for part in (
            "client1.0 (host h, pid 7) waits at barrier 1",
            "1 pushes",
            "push 2",
            "unequal numbers of batches",
        ):
            assert part in str(error)


def test_as_many_pushes_are_well():
    """The own push is under way, and its answer comes."""
    worker = Worker(clients=2, workers=2).init("w")
    worker.submit(Kind.PUSH, "w")
    assert worker.hears(SCHEDULER, AWAITS) == []


def test_a_barrier_says_how_often_this_worker_has_pushed():
    """And the news that others wait there comes too late to matter."""
    worker = Worker(clients=2, workers=2).init("w")
    worker.submit(Kind.PUSH, "w")
    arrives = worker.membership.arrive(1, settled=True)
    assert sent(arrives, m.BarrierArrive) == [(SCHEDULER, m.BarrierArrive(1, (1, 0)))]
    worker.state.under_way.clear()
    worker.state.keys.by_name[0, "w"].queue.clear()
    assert worker.hears(SCHEDULER, AWAITS) == []
    assert only(Resolve, worker.hears(SCHEDULER, m.BarrierRelease(1))) == [Resolve(-1)]
    worker.submit(Kind.PUSH, "w")
    assert worker.state.error is None


def test_a_worker_that_may_push_before_the_barrier_opens_says_nothing():
    """What others have pushed may be what it is about to push, on another thread."""
    worker = Worker(clients=2, workers=2).init("w")
    worker.submit(Kind.PUSH, "w")
    [(_, arrive)] = sent(worker.membership.arrive(1, settled=False), m.BarrierArrive)
    assert Job(workers=2).says(NodeId(Role.WORKER, 0), arrive) == []


@pytest.mark.parametrize("mode", ["async", "client"])
def test_pushes_that_wait_for_nobody_are_not_counted(mode):
    """Each client makes as many as it likes."""
    worker = Worker(clients=2, workers=2, mode=mode).init("w")
    worker.submit(Kind.PUSH, "w")
    assert worker.state.balance.pushes == [0, 0]


def test_pushes_to_rounds_with_a_quorum_are_not_counted():
    """They close without some clients."""
    worker = Worker(clients=2, workers=2).init("w")
    worker.state.keys.take_terms(0, StoreTerms(quorum=1, quorum_wait=1.0))
    worker.submit(Kind.PUSH, "w")
    assert worker.state.balance.pushes == [0, 0]


def test_pushes_that_wait_for_the_client_alone_are_counted_apart():
    """Other clients make as many as they like, and the ranks of this one equally many."""
    worker = Worker(clients=2, workers=4, mode="async").init("w")
    worker.submit(Kind.PUSH, "w")
    assert worker.state.balance.pushes == [0, 1]
    assert worker.hears(SCHEDULER, m.BarrierAwaits(1, (0, -1), "client1.0")) == []
    error = the_error(worker.hears(SCHEDULER, m.BarrierAwaits(1, (-1, 0), "client0.1")))
    assert "client0.1 waits at barrier 1 and has made 0 pushes" in str(error)
    assert "makes push or lookup 1: " in str(error)


def test_the_earliest_barrier_is_named():
    """Who waits there must be released first."""
    worker = Worker(clients=2, workers=2).init("w")
    for number in (3, 2):
        assert worker.hears(SCHEDULER, m.BarrierAwaits(number, (0, -1), f"client{number}.0")) == []
    assert "client2.0 waits at barrier 2" in str(the_error(worker.submit(Kind.PUSH, "w")))
