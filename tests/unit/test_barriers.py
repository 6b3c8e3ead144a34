"""Who is let through a barrier when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.scheduler.barriers import Barriers

WORKERS = [NodeId(Role.WORKER, rank) for rank in range(3)]


def test_dropping_the_last_one_that_is_missing_opens():
    """And says who waits no more."""
    barriers = Barriers(WORKERS)
    assert barriers.arrive(WORKERS[0], 1) == []
    assert barriers.arrive(WORKERS[1], 1) == []
    assert barriers.drop([WORKERS[2]]) == [(1, WORKERS[:2])]


def test_a_barrier_at_which_nobody_waits_does_not_open():
    """All were dropped: the first who comes back is not let through before the others count again."""
    barriers = Barriers(WORKERS)
    barriers.arrive(WORKERS[0], 1)
    assert barriers.drop(WORKERS) == []
    assert barriers.waiting == {1: set()}


class Workers:
    """Workers that come to one barrier after the other."""

    def __init__(self):
        self.barriers = Barriers(WORKERS)
        self.at = [0, 0, 0]  # barriers passed
        self.waits = [False, False, False]

    def arrive(self, rank):
        if not self.waits[rank]:
            self.waits[rank] = True
            self._let_through(self.barriers.arrive(WORKERS[rank], self.at[rank] + 1))

    def start_anew(self, rank):
        self.at[rank], self.waits[rank] = 0, False
        self._let_through(self.barriers.drop([WORKERS[rank]]))

    def _let_through(self, opened):
        for number, workers in opened:
            for worker in workers:
                assert self.waits[worker.index]
                assert number == self.at[worker.index] + 1
                self.at[worker.index], self.waits[worker.index] = number, False


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_whoever_keeps_coming_is_always_let_through_in_the_end(steps):
    """Workers arrive at their next barrier, or die and start anew: each waits for the living at most."""
    workers = Workers()
    for rank, dies in steps:
        (workers.start_anew if dies else workers.arrive)(rank)
    for _ in range(200):
        for rank in range(3):
            workers.arrive(rank)
    assert min(workers.at) > 50
