"""The MPI thread: the one owner of a client's group of ranks and the only caller of MPI.

It carries out what the worker's state announces, in that order and together as it says. It knows nothing of
why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import InternalError
from kvstore_mpi.tensor_collectives.choice import Algorithm
from kvstore_mpi.tensor_collectives.group import Group
from kvstore_mpi.tensor_collectives.runs import BufferRun
from kvstore_mpi.worker import exchange_buffers, table_collectives
from kvstore_mpi.worker.client import OVERLAPPING, overlapping
from kvstore_mpi.worker.collectives import REDUCED, Collective
from kvstore_mpi.worker.instructions import Collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.sums_interface import SumUnderWay
    from kvstore_mpi.tensor_collectives.group import Locate
    from kvstore_mpi.tensor_collectives.profile import Profile
    from kvstore_mpi.tensor_collectives.runs import Name
    from kvstore_mpi.tracing.events import Step
    from kvstore_mpi.tracing.recorder import Recorder

log = logging.getLogger("kvstore_mpi.collectives")

STEPS: dict[Collective, tuple[Name, Step]] = {
    Collective.BROADCAST: ("broadcast", "shared"),
    Collective.REDUCE: ("reduce", "reduced"),
    Collective.REDUCE_SHARE: ("reduce", "reduced"),
    Collective.ALLREDUCE: ("allreduce", "reduced"),
    Collective.SHARE: ("broadcast", "shared"),
    Collective.FETCH: ("broadcast", "shared"),
    Collective.SKIP: ("broadcast", "shared"),
    Collective.REDUCE_GIVE: ("reduce", "reduced"),
    # Of tables alone, whose ranks need no plan: what they are called here shows in a trace.
    Collective.UNITE: ("reduce", "reduced"),
    Collective.GIVE: ("broadcast", "shared"),
}
"""What each is to the ranks, and to a trace."""


_NO_LIMIT_S = -1
"""What a lock takes for waiting as long as it takes."""


class _Begun(NamedTuple):
    """A collective under way.

    Attributes:
        sum: What the ranks have begun.
        job: The collective, or the part of it.
        began: When, in seconds of the monotonic clock.
        since: When, for a trace.
    """

    sum: SumUnderWay
    job: Collect
    began: float
    since: int


class _Gone(NamedTuple):
    """Exchange buffers that are used no more."""

    buffers: Sequence[Any]


class MpiThread:
    """Carries out collectives on the exchange buffers of one worker.

    Attributes:
        carried_out: Buckets so far.
        seconds: In which it was in them.
        current: When the bucket that is being carried out began, and its first collective.
    """

    def __init__(self, group: Group, recorder: Recorder | None = None, *, all_push: bool = False) -> None:
        """Take ownership of a group.

        Args:
            group: The ranks of the client.
            recorder: Takes what happens here, if the job has a trace.
            all_push: All ranks push slices, and not one for all.
        """
        self._group = group
        self._recorder = recorder
        self._report: Callable[[Sequence[Collect]], None] = _not_started
        self._failed: Callable[[BaseException], None] = _not_started
        # Without a limit, because the I/O thread must not wait here; how much is announced ahead is limited
        # by the leader (``client.AHEAD_BYTES``).
        self._jobs: deque[Collect | _Gone | None] = deque()
        # Released when something has been put. Not ``queue.SimpleQueue``, with which one of 8 ranks that
        # waited for a millisecond at a time waited for ever, in 2 of 20 jobs: in its loop, what is left of
        # the time may become less than nothing, which in CPython 3.11 stands for no limit.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._under_way: deque[_Begun] = deque()  # and not ended; in the order of the jobs
        self._all_push = all_push
        self._last_end = 0.0
        self._thread: threading.Thread | None = None
        self.carried_out = 0
        self.seconds = 0.0
        self.current: tuple[float, Collect] | None = None

    def start(
        self, report: Callable[[Sequence[Collect]], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Start the thread; a client of one rank does not need it.

        Args:
            report: Told, in the MPI thread, what has been carried out.
            failed: Told, as the thread's last act, that MPI has failed.
        """
        # Given now and not to the constructor: the I/O thread's half, to which they belong, needs this
        # object first.
        self._report, self._failed = report, failed
        if self._group.size > 1:
            # A daemon: stuck in a collective with a rank that is dead, it must not keep the process alive.
            self._thread = threading.Thread(target=self._run, name="kvstore-mpi", daemon=True)
            self._thread.start()

    def put(self, job: Collect) -> None:
        """Queue a collective; all ranks of the client queue the same ones in the same order."""
        self._put(job)

    def stop(self) -> None:
        """Let the thread end after what is queued."""
        # Behind what is queued: the other ranks carry that out as well, and would wait in it for this one.
        self._put(None)

    def forget(self, buffers: Sequence[Any]) -> None:
        """Let go of exchange buffers of which every collective has ended."""
        # By the thread, in its turn: what it knows of others it may be looking up now. The ids of these are
        # nobody else's before that.
        if self._thread is not None:
            self._put(_Gone(buffers))

    def _put(self, job: Collect | _Gone | None) -> None:
        self._jobs.append(job)
        # A ring that has not been heard yet is enough: who hears it takes all there is.
        with suppress(RuntimeError):
            self._bell.release()

    def close(self, timeout: float) -> None:
        """Wait for the thread and free the group; not after a failure, when it may be stuck."""
        if self._thread is not None:
            # With a limit: another rank may have died in a collective, and this one would wait for it for
            # ever.
            self._thread.join(timeout)
        self._group.close()

    def _run(self) -> None:
        # Of this thread alone. A sum that is too large is infinite, as with MPI and MXNet: scaled losses
        # overflow now and then, and who scales them looks for that.
        np.seterr(over="ignore", invalid="ignore")
        try:
            bucket = self._next()
            while bucket:
                if not self._begin(bucket):
                    with self._being_alone_in(bucket[0]):
                        self.carry_out(bucket)
                self.carried_out += 1
                bucket = self._next()
            self._end(len(self._under_way))
        # Everything: the callers wait for operations that nobody carries out any more, and hear of it only
        # so.
        except BaseException as error:
            log.exception("the MPI thread has failed")
            self._failed(error)

    def _next(self) -> list[Collect]:
        """Wait for a collective; return it with those that are carried out with it; nothing at the end."""
        bucket: list[Collect] = []
        wanted = 1
        while len(bucket) < wanted:
            job = self._wait_for_job()
            if job is None:  # in the middle of a bucket only after a failure
                return []
            # The same on all ranks, and they queue all of a bucket in one pass: they have been told of it
            # when each of them had come to all of it. So nobody has to ask the others how many they have,
            # which over a slow link would wait behind rows.
            if not bucket and job.together > 1 and self._gains_together(job):
                wanted = job.together
            bucket.append(job)
        return bucket

    def _wait_for_job(self) -> Collect | None:
        """Wait for the next collective; let go of buffers that are gone meanwhile."""
        while True:
            job = self._wait_for_any()
            if not isinstance(job, _Gone):
                return job
            self._group.forget(job.buffers)
            del job  # or they would stay until the next one comes

    def _wait_for_any(self) -> Collect | _Gone | None:
        """Wait for what is next; meanwhile sums that are under way go on and end."""
        while self._under_way:
            first = self._under_way[0]
            self.current = (first.began, first.job)
            # Not in MPI, which nothing can wake up before a sum of maybe 50 ms has ended: what comes
            # meanwhile begins at once, and with it what the other ranks have begun already.
            pause_s = first.sum.pause_s()
            if self._comes_within(pause_s):
                break
            if not pause_s or first.sum.has_ended():
                self._end(1)
        self._comes_within(_NO_LIMIT_S)
        return self._jobs.popleft()

    def _comes_within(self, seconds: float) -> bool:
        """Wait until there is a job, but not for longer."""
        # A ring may be that of a job which was there already, and has been taken.
        while not self._jobs:
            if not self._bell.acquire(timeout=seconds):
                return False
        return True

    def _begin(self, bucket: Sequence[Collect]) -> bool:
        """Begin a single collective beside those under way, if the ranks are on hosts of their own."""
        # One after the other as they come: the link is in use while the ranks are told of the next, and no
        # rank waits for an agreement that lies in a queue behind the bytes of rows. And what comes from a
        # rank and what goes to it, a sum and the value that is shared, are under way together: also of one
        # slice, of whose sum this rank's part has left, since who shares the value has had all parts.
        [job, *others] = bucket
        if others or not self._may_overlap(job):
            return False
        for number, run in enumerate(self._runs(job)):
            # Each has memory for what comes, and what has been begun cannot be overtaken.
            self._end(len(self._under_way) + 1 - OVERLAPPING)
            begun = self._group.begin(STEPS[job.operation][0], run)
            if begun is not None:
                self._under_way.append(_Begun(begun, run.job, time.monotonic(), self._now()))
            elif not number:
                return False
            else:  # so much larger than those before it that it goes another way
                with self._being_alone_in(run.job):
                    self._carry_out_runs(job.operation, [run])
        return True

    def _may_overlap(self, job: Collect) -> bool:
        return job.key.table is None and job.operation in self._overlapping

    @cached_property
    def _overlapping(self) -> frozenset[Collective]:
        # Not before the first collective, at which all ranks find out which host each is on.
        return overlapping(self._group.hosts, all_push=self._all_push)

    def _end(self, number: int) -> None:
        """Wait for the first sums of those under way."""
        # In the order in which they were begun, on both ranks: reports lead to updates, whose order is that
        # of the announcements.
        for _ in range(number):
            first = self._under_way.popleft()
            # What others were under way with it is counted once.
            with self._being_in(first.job, max(first.began, self._last_end)):
                first.sum.wait()
            self._last_end = time.monotonic()
            self._ended(STEPS[first.job.operation][1], [first.job], first.since)

    @contextmanager
    def _being_alone_in(self, first: Collect) -> Iterator[None]:
        """Wait for all that is under way; then as ``_being_in``."""
        self._end(len(self._under_way))
        with self._being_in(first, time.monotonic()):
            yield

    @contextmanager
    def _being_in(self, first: Collect, began: float) -> Iterator[None]:
        """Say what the thread is in, and count the time since it began."""
        # In one assignment: who looks from another thread must not see one bucket's time with another's
        # collective.
        self.current = (began, first)
        yield
        self.current = None
        self.seconds += time.monotonic() - began

    def _gains_together(self, first: Collect) -> bool:
        """Tell whether others may be carried out with a collective; the same on all ranks."""
        # Tables share messages wherever their ranks are.
        return first.key.table is not None or self._group.gains_together(STEPS[first.operation][0])

    def carry_out(self, bucket: Sequence[Collect]) -> None:
        """Do collectives of one kind; what has ended is reported as it comes, to be pushed at once."""
        # One name for all: the leader makes buckets of one kind (``LeaderSchedule._next_bucket``).
        operation, since = bucket[0].operation, self._now()
        runs = [run for job in bucket if job.key.table is None for run in self._runs(job)]
        if runs:
            self._carry_out_runs(operation, runs)
        # On every rank after the others of the bucket: an order that all of them know.
        tables = [job for job in bucket if job.key.table is not None]
        if tables:
            table_collectives.carry_out(self._group, tables)
            self._ended(STEPS[operation][1], tables, since)

    def _carry_out_runs(self, operation: Collective, runs: Sequence[BufferRun]) -> None:
        name, step = STEPS[operation]
        since = self._now()
        for ended in self._group.carry_out(name, runs):
            self._ended(step, [run.job for run in ended], since)
            # In a trace each run has its own time, and not that of all before it in the bucket.
            since = self._now()

    def _runs(self, job: Collect) -> Iterator[BufferRun]:
        """Cut where the root differs; and reductions slice by slice, unless shared memory is quicker."""
        key = job.key
        if job.operation in (Collective.ALLREDUCE, Collective.BROADCAST, Collective.FETCH):
            root = None if job.operation is Collective.ALLREDUCE else 0
            # Whole, whoever pushes: all ranks get everything, or give it from one of them.
            yield _run_of(job, root, job.first, job.last)
            return
        # A slice that is reduced is pushed while the next is being reduced: cut into slices, the network
        # and the processors work at the same time. In shared memory every slice would pay for two barriers,
        # so there the whole is done at once; and nothing waits behind what is only spread.
        spreads = job.operation in (Collective.SHARE, Collective.SKIP)
        whole = spreads or job.last - job.first == 1 or self._group.shares(key.buffer)
        for rank, first, last in key.by_pusher(job.first, job.last):
            if whole:
                yield _run_of(job, rank, first, last)
            else:
                yield from (_run_of(job, rank, index, index + 1) for index in range(first, last))

    def _now(self) -> int:
        return self._recorder.now() if self._recorder is not None else 0

    def _ended(self, step: Step, jobs: Sequence[Collect], since: int) -> None:
        if self._recorder is not None:
            runs = [
                (key.key_id, key.slices[first][1].lo, key.slices[last - 1][1].hi, key.pushes)
                for _, key, _, first, last, _ in jobs
            ]
            self._recorder.mark(step, None, runs, since)
        # Here and not by the I/O thread, which must not compute; before the report, after which the slice
        # is pushed.
        for job in jobs:
            if job.key.divisor > 1 and job.operation in REDUCED:
                exchange_buffers.average(job, self._group.rank)
        # At once, while other runs of the bucket are still to come: the network begins with these.
        self._report(jobs)


def make_mpi_thread(
    communicator: Communicator,
    config: NodeConfig,
    locate: Locate,
    profile: Profile | None,
    recorder: Recorder | None,
) -> MpiThread:
    """Make the thread of a worker.

    Args:
        communicator: The ranks of the client; owned from now on.
        config: Says how they sum.
        locate: Where an exchange buffer lies.
        profile: See ``Worker``.
        recorder: Takes what happens here, if the job has a trace.
    """
    group = Group(communicator, locate=locate, algorithm=Algorithm(config.collective), profile=profile)
    return MpiThread(group, recorder, all_push=config.all_push(communicator.size))


def _not_started(_: object) -> None:
    # Not silently: what a collective has done would be lost, and its operation would wait for ever.
    raise InternalError("the MPI thread has not been started")


def _run_of(job: Collect, root: int | None, first: int, last: int) -> BufferRun:
    slices = job.key.slices
    return BufferRun(
        job.key.buffer,
        slices[first][1].lo,
        slices[last - 1][1].hi,
        root,
        job._replace(first=first, last=last),
    )
