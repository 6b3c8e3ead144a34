"""What comes to the MPI thread: each job once, in order, and a wait for one ends in time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.tensor_collectives.group import Group
from kvstore_mpi.worker.mpi_thread import MpiThread

DEADLINE_S = 20.0


def make() -> MpiThread:
    """Make the thread of a client of one rank; it is not started."""
    return MpiThread(Group(memory_communicators(1)[0]))


@pytest.mark.parametrize("seconds", [0, 0.001])
def test_a_wait_for_a_job_ends(seconds: float) -> None:
    """Also after jobs that were there already, whose ring has not been heard."""
    thread = make()
    for _ in range(2):
        assert not thread._comes_within(seconds)
        thread.stop()
        thread.stop()
        assert thread._comes_within(seconds)
        assert [thread._wait_for_job() for _ in range(2)] == [None, None]


def test_what_is_left_of_a_wait_is_never_no_limit() -> None:
    """A ring that is not for a job may come when the time is over."""
    thread = make()
    waits = []

    class Bell:
        def acquire(self, *, timeout: float) -> bool:
            waits.append(timeout)
            return len(waits) < 3

    thread._bell = Bell()  # type: ignore[assignment]  # stands for a lock
    assert not thread._comes_within(0.001)
    assert waits == [0.001] * 3


def test_jobs_of_several_threads_come_once_each() -> None:
    """However short the waits are, and whatever was put and taken before."""
    thread, taken = make(), []

    def take() -> None:
        while True:
            if len(taken) % 2 and not thread._comes_within(1e-5):
                continue
            job: Any = thread._wait_for_job()
            if job is None:
                return
            taken.append(job)

    def put(first: int) -> None:
        for number in range(first, first + 2000):
            thread._put(number)  # type: ignore[arg-type]  # stands for a job

    taking = threading.Thread(target=take, daemon=True)
    putting = [threading.Thread(target=put, args=(first,), daemon=True) for first in (0, 2000)]
    for each in (taking, *putting):
        each.start()
    for each in putting:
        each.join(DEADLINE_S)
    thread.stop()
    taking.join(DEADLINE_S)
    assert not taking.is_alive()
    assert sorted(taken) == list(range(4000))
    assert [each for each in taken if each < 2000] == list(range(2000))
