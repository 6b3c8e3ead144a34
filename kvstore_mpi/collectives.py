"""The MPI thread: the one owner of a client's group of ranks and the only caller of MPI.

It carries out what the worker's state announces, in that order. It knows nothing of why.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Callable, Iterator

from .protocol.worker_records import Collect, Collective

if TYPE_CHECKING:
    from .client_group import ClientGroup
    from .tracing.events import Step
    from .tracing.recorder import Recorder

log = logging.getLogger("kvstore_mpi.collectives")


class Collectives:
    """Collective operations on the exchange buffers of one worker."""

    def __init__(
        self,
        group: ClientGroup,
        report: Callable[[Collect], None],
        failed: Callable[[BaseException], None],
        recorder: Recorder | None = None,
    ) -> None:
        """Take ownership of a group.

        Args:
            group: The ranks of the client.
            report: Told, in the MPI thread, what has been carried out.
            failed: Told, as the thread's last act, that MPI has failed.
            recorder: Takes what happens here, if the job has a trace.
        """
        self._group = group
        self._report = report
        self._failed = failed
        self._recorder = recorder
        self._jobs: queue.SimpleQueue[Collect | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; a client of one rank does not need it."""
        if self._group.size > 1:
            self._thread = threading.Thread(target=self._run, name="kvstore-mpi", daemon=True)
            self._thread.start()

    def put(self, job: Collect) -> None:
        """Queue a collective; all ranks of the client queue the same ones in the same order."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Let the thread end after what is queued."""
        self._jobs.put(None)

    def close(self, timeout: float) -> None:
        """Wait for the thread and free the group; not after a failure, when it may be stuck."""
        if self._thread is not None:
            self._thread.join(timeout)
        self._group.close()

    def _run(self) -> None:
        try:
            while True:
                job = self._jobs.get()
                if job is None:
                    return
                self.carry_out(job)
        except BaseException as error:
            log.exception("the MPI thread has failed")
            self._failed(error)

    def carry_out(self, job: Collect) -> None:
        """Do one collective; what is reduced for a push is reported as it comes, to be pushed at once."""
        buffer, slices = job.key.buffer, job.key.slices
        if job.operation in (Collective.REDUCE, Collective.REDUCE_SHARE):
            for rank, first, last in self._parts(job):
                since = self._now()
                lo, hi = slices[first][1].lo, slices[last - 1][1].hi
                self._group.reduce(buffer, lo, hi, rank)
                self._ended("reduced", job._replace(first=first, last=last), since)
            return
        lo, hi = slices[job.first][1].lo, slices[job.last - 1][1].hi
        since = self._now()
        if job.operation is Collective.ALLREDUCE:
            self._group.allreduce(buffer, lo, hi)
            self._ended("reduced", job, since)
        elif job.operation in (Collective.BROADCAST, Collective.FETCH):
            self._group.broadcast(buffer, lo, hi, 0)
            self._ended("shared", job, since)
        else:
            for rank, first, last in job.key.by_pusher(job.first, job.last):
                self._group.broadcast(buffer, slices[first][1].lo, slices[last - 1][1].hi, rank)
            self._ended("shared", job, since)

    def _parts(self, job: Collect) -> Iterator[tuple[int, int, int]]:
        """Cut a reduction: (root, first slice, end). In shared memory a run of slices is quicker as one."""
        at_once = self._group.shares(job.key.buffer)
        for rank, first, last in job.key.by_pusher(job.first, job.last):
            if at_once:
                yield rank, first, last
            else:
                yield from ((rank, index, index + 1) for index in range(first, last))

    def _now(self) -> int:
        return self._recorder.now() if self._recorder is not None else 0

    def _ended(self, step: Step, job: Collect, since: int) -> None:
        if self._recorder is not None:
            key = job.key
            lo, hi = key.slices[job.first][1].lo, key.slices[job.last - 1][1].hi
            self._recorder.mark(step, None, [(key.key_id, lo, hi, key.pushes)], since)
        self._report(job)
