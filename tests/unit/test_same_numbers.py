"""Numbers of optimizers that workers tell: what differs ends all, with who differs from whom."""

from __future__ import annotations

import pytest
from support.scheduler_job import Job, sent, worker

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.records import OptimizerNumbers
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Stop


def tell(job, rank, step=1, digest=7, *, key="w", store=0, given=1, **shown):
    numbers = OptimizerNumbers(store, given, key, step, digest, shown)
    return sent(job.says(worker(rank), m.Numbers(numbers)), m.Failure)


def test_equal_numbers_are_forgotten_when_all_have_told_them():
    """In whatever order workers come to their steps; a later optimizer of the store counts anew."""
    job = Job(2, 4, 1)
    for step in (1, 2):
        for rank in (3, 0, 2, 1):
            assert not tell(job, rank, step)
    assert not any(tell(job, rank, digest=8) for rank in range(4))


def test_who_differs_ends_all():
    """Each gets the same error, which names both, the step, and what differs."""
    job = Job(2, 4, 1)
    tell(job, 2, step=4, rate=0.5, wd=0.0)
    told = tell(job, 1, step=4, digest=8, rate=0.25, wd=0.0)
    assert sorted(told) == [worker(rank) for rank in range(4)]
    (failure,) = set(map(str, told.values()))
    for part in ("client0.1", "client1.0", "in their first 4 steps (rate 0.25 and 0.5)"):
        assert part in failure


@pytest.mark.parametrize("differs", [False, True])
def test_workers_that_had_left_do_not_know_it_but_the_job_ends_with_it(differs):
    """Told with the end of the last worker: nobody is there any more who could raise it."""
    job = Job(2, 2, 1)
    tell(job, 0, step=5)
    job.says(worker(0), m.Leave())
    assert sorted(tell(job, 1, step=5, digest=8 if differs else 7)) == [worker(1)] * differs
    end = job.says(worker(1), m.Leave())[-1]
    assert isinstance(end, Stop)
    assert isinstance(end.error, MismatchError if differs else type(None))


@pytest.mark.parametrize("other", [{"step": 2}, {"store": 1}, {"given": 2}, {"key": "v"}], ids=str)
def test_what_is_not_of_the_same_step_is_not_compared(other):
    """Of another store, or counted by another key, it says nothing."""
    job = Job(2, 4, 1)
    tell(job, 0)
    assert not tell(job, 1, digest=8, **other)


def test_parameters_in_another_order_end_all():
    """Told before any push, with what the keys begin with."""
    job = Job(2, 2, 1)
    assert not tell(job, 0, 0, key="", dense9=0.0, dense10=1.0)
    told = tell(job, 1, 0, 8, key="", dense8=0.0, dense9=1.0)
    assert sorted(told) == [worker(0), worker(1)]
    assert "they begin with dense8, dense9 and dense9, dense10. A Trainer sorts" in told[worker(0)].text
