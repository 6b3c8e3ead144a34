"""Messages between the ranks of one worker, over MPI, which go on while the ranks compute.

Any thread begins them, and none of those waits in MPI, where no signal reaches it and no wait has a limit:
two threads do, one for what is sent and one for what comes. So MPI must allow calls of several threads at a
time. Between ranks of one host a bell says when a message has left, and MPI is asked for it only then
(``bells.py``). This file must not know what the messages are.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.comm import waits
from kvstore_mpi.errors import ConfigurationError, DeadlineError, KVStoreError, MismatchError, PeerLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.comm.bells import Bells

Array = np.ndarray[Any, Any]

_OWN_TAGS = 1
"""Tags of this file's own messages, below those of its callers."""

_FINISHED = "rank {} has finished; let all ranks of a worker make the same number of steps"


class Links:
    """The ranks of one worker.

    Attributes:
        rank: This one's number among them.
        size: How many there are.
    """

    def __init__(self, mpi: Any, comm: Any, timeout: float, bells: Bells | None = None) -> None:
        """Take ownership of a communicator, and of bells.

        Args:
            mpi: mpi4py's MPI module.
            comm: A communicator of these ranks alone.
            timeout: Seconds after which a wait is an error.
            bells: Between these ranks, if all are on one host.
        """
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._comm = comm
        self._max_tag = int(comm.Get_attr(mpi.TAG_UB))
        self._timeout = timeout
        self._sent = _Waiting("kvstore-sent", lambda request, _: request.Wait())
        self._bells = bells
        take = partial(_receive, mpi, mpi.Status())
        self._received = _Waiting("kvstore-received", take) if bells is None else _Hearing(bells, take)

    def send(self, array: Array, peer: int, tag: int) -> Future[None]:
        """Begin to send a contiguous array, which must stay as it is until the future is done."""
        data = array.reshape(-1).view(np.uint8)
        tag = self._checked(tag)
        request = self._comm.Isend(data, peer, tag)
        if self._bells is not None:
            self._bells.ring(peer, tag)
        return self._sent.put(request, array)

    def receive(self, array: Array, peer: int, tag: int) -> Future[None]:
        """Begin to receive into a contiguous array; futures are done in the order of these calls.

        So receive in the order in which the messages are needed. What comes must have the array's size.
        """
        data = array.reshape(-1).view(np.uint8)
        tag = self._checked(tag)
        return self._received.put(self._comm.Irecv(data, peer, tag), array, peer, tag)

    def wait(self, future: Future[None], what: Callable[[], str]) -> None:
        """Wait for a message.

        Args:
            future: Of ``send`` or ``receive``.
            what: Says what is waited for, if it does not come.

        Raises:
            DeadlineError: It has not come in time.
            MismatchError: What has come is no such array, or who would send it has finished.
            PeerLostError: MPI says that it cannot come.
        """
        try:
            future.result(self._timeout)
        except FutureTimeoutError:
            raise DeadlineError(
                f"rank {self.rank} of this worker has waited {self._timeout:g} s for {what()}: another of "
                "its ranks is stuck or does something else; --set step_timeout=S waits longer"
            ) from None
        except KVStoreError as error:
            raise type(error)(f"rank {self.rank} of this worker waits for {what()}: {error}") from None
        except Exception as error:
            raise PeerLostError(f"rank {self.rank} of this worker waits for {what()}: {error}") from error

    def share(self, array: Array, root: int) -> list[Future[None]]:
        """Begin to give all ranks what one of them has, of a size that all know; all must call this."""
        tag = -_OWN_TAGS
        if self.rank != root:
            return [self.receive(array, root, tag)]
        return [self.send(array, peer, tag) for peer in range(self.size) if peer != root]

    def broadcast(self, data: bytes, root: int) -> bytes:
        """Return what one of the ranks gives; all must call this."""
        size = np.array([len(data)], np.int64)
        self._share_now(size, root)
        if self.rank == root:
            self._share_now(np.frombuffer(data, np.uint8), root)
            return data
        payload = np.empty(size[0], np.uint8)
        self._share_now(payload, root)
        return payload.tobytes()

    def _share_now(self, array: Array, root: int) -> None:
        taken = "the others to take what all of them need"
        what = taken if self.rank == root else f"what rank {root} tells all"
        for future in self.share(array, root):
            self.wait(future, lambda: what)

    def part(self) -> None:
        """Tell the others that this rank has finished, on one host: who waits for it then is told."""
        if self._bells is not None:
            self._bells.part()

    def _checked(self, tag: int) -> int:
        if tag + _OWN_TAGS > self._max_tag:
            raise ConfigurationError(
                f"this MPI numbers {self._max_tag + 1} messages between two ranks, and one step has more: "
                "take fewer micro-batches or segments"
            )
        return tag + _OWN_TAGS


def _receive(mpi: Any, status: Any, request: Any, array: Array) -> None:
    try:
        request.Wait(status)
    except mpi.Exception as error:
        if error.Get_error_class() != mpi.ERR_TRUNCATE:
            raise
        come = "more bytes"
    else:
        come = f"{status.Get_count()} bytes"
        if status.Get_count() == array.nbytes:
            return
    raise MismatchError(
        f"{come} have come instead of {array.nbytes}: let all ranks of a worker make the same calls, with "
        "the same batches"
    )


class _Message(NamedTuple):
    """One that is under way; the array must live as long."""

    request: Any
    array: Array
    peer: int
    tag: int
    future: Future[None]


class _Waiting:
    """A thread that waits for messages of one kind, in the order in which they have begun."""

    def __init__(self, name: str, wait: Callable[[Any, Array], None]) -> None:
        self._wait = wait
        # A poll and the sleep behind it cost 20 us of a core that computes, 13,000 times a second: a step
        # of two stages took 216 ms instead of 167 (docs/model-parallel.md). A message has two ranks.
        self._around = waits.around_calls(2, os.environ)
        self._queue: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        # A daemon: stuck with a rank that is dead, it must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, request: Any, array: Array, peer: int = -1, tag: int = -1) -> Future[None]:
        message = _Message(request, array, peer, tag, Future())
        self._queue.put(message)
        return message.future

    def _run(self) -> None:
        while True:
            self._finish(self._queue.get())

    def _finish(self, message: _Message) -> None:
        try:
            with self._around(message.array.nbytes):
                self._wait(message.request, message.array)
        except Exception as error:  # noqa: BLE001  raised again where it is waited for
            message.future.set_exception(error)
        else:
            message.future.set_result(None)


class _Hearing(_Waiting):
    """The same for what comes, where a bell says when."""

    def __init__(self, bells: Bells, wait: Callable[[Any, Array], None]) -> None:
        self._bells = bells
        super().__init__("kvstore-received", wait)
        self._around = lambda _: nullcontext()  # what has left is there at once

    def put(self, request: Any, array: Array, peer: int = -1, tag: int = -1) -> Future[None]:
        future = super().put(request, array, peer, tag)
        self._bells.nudge()
        return future

    def _run(self) -> None:
        expected: deque[_Message] = deque()
        while True:
            with suppress(queue.Empty):
                while True:
                    expected.append(self._queue.get_nowait())
            if expected and self._bells.has_rung(expected[0].peer, expected[0].tag):
                message = expected.popleft()
                self._bells.take(message.peer, message.tag)
                self._finish(message)
            elif expected and self._bells.has_parted(expected[0].peer):
                message = expected.popleft()
                message.future.set_exception(MismatchError(_FINISHED.format(message.peer)))
            else:
                self._bells.wait()
