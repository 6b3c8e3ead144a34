"""Messages between the ranks of one worker, over MPI, which go on while the ranks compute.

Any thread begins them, and none of those waits in MPI, where no signal reaches it and no wait has a limit:
two threads do, one for what is sent and one for what comes. So MPI must allow calls of several threads at a
time. Between ranks of one host a bell says when a message has left, and MPI is asked for it only then
(``bells.py``); between those of several MPI itself brings the word that one has finished. This file must
not know what the messages are.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import wait as wait_for
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.comm import waits
from kvstore_mpi.errors import ConfigurationError, DeadlineError, KVStoreError, MismatchError, PeerLostError
from kvstore_mpi.metrics.status import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvstore_mpi.comm.bells import Bells

log = logging.getLogger("kvstore_mpi.worker")

Array = np.ndarray[Any, Any]

_SHARED, _PARTING = -1, -2
_OWN_TAGS = 2
"""Tags of this file's own messages, below those of its callers."""

_LOOK_S = 1.0
"""From one look at whether another rank has finished to the next, of who waits for it."""

_REPEAT_S = 60.0
"""From one line about a wait to the next."""

_LEAVE_S = 5.0
"""For the word that this rank has finished to leave."""

_FINISHED = "rank {} has finished; let all ranks of a worker make the same number of steps"


class UnderWay(Future[None]):
    """The end of a message.

    Attributes:
        peer: The rank at its other end.
    """

    def __init__(self, peer: int) -> None:
        """Begin."""
        super().__init__()
        self.peer = peer


class _Called(NamedTuple):
    """Somebody waits for a message: for what, in words, and since when."""

    what: Callable[[], str]
    since: float


class Links:
    """The ranks of one worker.

    Attributes:
        rank: This one's number among them.
        size: How many there are.
        taken: A net has been divided among them.
    """

    def __init__(
        self, mpi: Any, comm: Any, timeout: float, bells: Bells | None = None, *, warn_after: float
    ) -> None:
        """Take ownership of a communicator, and of bells.

        Args:
            mpi: mpi4py's MPI module.
            comm: A communicator of these ranks alone.
            timeout: Seconds after which a wait is an error.
            bells: Between these ranks, if all are on one host.
            warn_after: Seconds after which the log says of a wait for whom it is.
        """
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.taken = False
        self._comm = comm
        # Open MPI knows it of that communicator alone, as the standard says; MPICH of any.
        self._max_tag = int(mpi.COMM_WORLD.Get_attr(mpi.TAG_UB))
        self._timeout, self._warn_after = timeout, warn_after
        self._called: dict[UnderWay, _Called] = {}
        self._sent = _Waiting("kvstore-sent", lambda request, _: request.Wait())
        self._bells = bells
        self._partings = _Partings(comm) if bells is None else None
        take = partial(_receive, mpi, mpi.Status())
        self._received = _Waiting("kvstore-received", take) if bells is None else _Hearing(bells, take)

    def send(self, array: Array, peer: int, tag: int) -> UnderWay:
        """Begin to send a contiguous array, which must stay as it is until the future is done."""
        data = array.reshape(-1).view(np.uint8)
        tag = self._checked(tag)
        request = self._comm.Isend(data, peer, tag)
        if self._bells is not None:
            self._bells.ring(peer, tag)
        if self._partings is not None:
            self._partings.count(peer)
        return self._sent.put(request, array, peer)

    def receive(self, array: Array, peer: int, tag: int) -> UnderWay:
        """Begin to receive into a contiguous array; futures are done in the order of these calls.

        So receive in the order in which the messages are needed. What comes must have the array's size.
        """
        data = array.reshape(-1).view(np.uint8)
        tag = self._checked(tag)
        return self._received.put(self._comm.Irecv(data, peer, tag), array, peer, tag)

    def wait(self, future: UnderWay, what: Callable[[], str]) -> None:
        """Wait for a message.

        Args:
            future: Of ``send`` or ``receive``.
            what: Says what is waited for, if it does not come.

        Raises:
            DeadlineError: It has not come in time.
            MismatchError: What has come is no such array, or who would send it has finished.
            PeerLostError: MPI says that it cannot come.
        """
        self._called[future] = called = _Called(what, time.monotonic())
        try:
            self._await(future, called)
        except FutureTimeoutError:
            raise DeadlineError(
                f"rank {self.rank} of this worker has waited {self._timeout:g} s for {what()}: another of "
                "its ranks is stuck or does something else; --set step_timeout=S waits longer"
            ) from None
        except KVStoreError as error:
            raise type(error)(f"rank {self.rank} of this worker waits for {what()}: {error}") from None
        except Exception as error:
            raise PeerLostError(f"rank {self.rank} of this worker waits for {what()}: {error}") from error
        finally:
            del self._called[future]

    def waits(self, names: Sequence[str], now: float) -> list[Wait]:
        """Return what is waited for at a time; any thread may ask.

        Args:
            names: Of the processes, by rank.
            now: The time.
        """
        # A copy, made in one step: other threads begin and end waits meanwhile.
        return [
            Wait("call", called.what(), now - called.since, self._timeout, [names[future.peer]])
            for future, called in list(self._called.items())
        ]

    def _await(self, future: UnderWay, called: _Called) -> None:
        end, tells = called.since + self._timeout, called.since + self._warn_after
        while (now := time.monotonic()) < end:
            if now >= tells:
                tells = now + _REPEAT_S
                told = self.rank, now - called.since, called.what(), future.peer
                log.warning("rank %d of this worker has waited %.0f s for %s; rank %d is awaited", *told)
            pause = min(end, tells) - now
            with suppress(FutureTimeoutError):
                future.result(pause if self._partings is None else min(pause, _LOOK_S))
                return
            if self._partings is not None:
                self._look(self._partings)
        future.result(0.0)

    def _look(self, partings: _Partings) -> None:
        """Raise an error if what this rank expects next would be sent by one that has finished."""
        expected = self._received.expected
        if expected is None:
            return
        # In this order: what is counted is done, so that what is not done then is none of it.
        num_come = self._received.num_come[expected.peer]
        if partings.has_sent_all(expected.peer, num_come) and not expected.future.done():
            raise MismatchError(_FINISHED.format(expected.peer))

    def share(self, array: Array, root: int) -> list[UnderWay]:
        """Begin to give all ranks what one of them has, of a size that all know; all must call this."""
        if self.rank != root:
            return [self.receive(array, root, _SHARED)]
        return [self.send(array, peer, _SHARED) for peer in range(self.size) if peer != root]

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
        """Tell the others that this rank has finished: who waits for it then is told."""
        if self._bells is not None:
            self._bells.part()
        if self._partings is not None:
            wait_for([self._sent.put(*leaving) for leaving in self._partings.send()], _LEAVE_S)

    def _checked(self, tag: int) -> int:
        if tag + _OWN_TAGS > self._max_tag:
            raise ConfigurationError(
                f"this MPI numbers {self._max_tag + 1} messages between two ranks, and one step has more: "
                "take fewer micro-batches or segments"
            )
        return tag + _OWN_TAGS


class _Partings:
    """Which ranks have finished, where they are on several hosts.

    Each says how many messages it has sent, for this word may come before them.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._lock = threading.Lock()
        peers = [peer for peer in range(comm.Get_size()) if peer != comm.Get_rank()]
        self._num_sent = dict.fromkeys(peers, 0)
        self._told = {peer: np.zeros(1, np.int64) for peer in peers}
        self._coming: dict[int, Any] = {}

    def count(self, peer: int) -> None:
        """Note that one more message leaves for a rank."""
        with self._lock:
            self._num_sent[peer] += 1

    def send(self) -> Iterator[tuple[Any, Array, int]]:
        """Begin to tell the others that no more will leave; yield each message, its array and its rank."""
        for peer, number in self._num_sent.items():
            with self._lock:
                self._expected(peer)
            array = np.array([number], np.int64)
            yield self._comm.Isend(array, peer, _PARTING + _OWN_TAGS), array, peer

    def has_sent_all(self, peer: int, num_come: int) -> bool:
        """Return whether a rank has finished, and has sent no more than what has come."""
        with self._lock:
            return bool(self._expected(peer).Test()) and num_come >= int(self._told[peer][0])

    def _expected(self, peer: int) -> Any:
        """Return what a rank's word is received by.

        Not begun before: a program that does not end by ``part`` must leave nothing for MPI to complain of.
        """
        if peer not in self._coming:
            self._coming[peer] = self._comm.Irecv(self._told[peer], peer, _PARTING + _OWN_TAGS)
        return self._coming[peer]


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
    future: UnderWay


class _Waiting:
    """A thread that waits for messages of one kind, in the order in which they have begun.

    Attributes:
        expected: What it waits for.
        num_come: How many it has waited for, by the rank at the other end.
    """

    def __init__(self, name: str, wait: Callable[[Any, Array], None]) -> None:
        self._wait = wait
        # A poll and the sleep behind it cost 20 us of a core that computes, 13,000 times a second: a step
        # of two stages took 216 ms instead of 167 (docs/model-parallel.md). A message has two ranks.
        self._around = waits.around_calls(2, os.environ)
        self._queue: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self.expected: _Message | None = None
        self.num_come: Counter[int] = Counter()
        # A daemon: stuck with a rank that is dead, it must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, request: Any, array: Array, peer: int, tag: int = -1) -> UnderWay:
        message = _Message(request, array, peer, tag, UnderWay(peer))
        self._queue.put(message)
        return message.future

    def _run(self) -> None:
        while True:
            self._finish(self._queue.get())

    def _finish(self, message: _Message) -> None:
        self.expected = message
        try:
            with self._around(message.array.nbytes):
                self._wait(message.request, message.array)
        except Exception as error:  # noqa: BLE001  raised again where it is waited for
            message.future.set_exception(error)
        else:
            message.future.set_result(None)
        self.expected = None
        self.num_come[message.peer] += 1


class _Hearing(_Waiting):
    """The same for what comes, where a bell says when."""

    def __init__(self, bells: Bells, wait: Callable[[Any, Array], None]) -> None:
        self._bells = bells
        super().__init__("kvstore-received", wait)
        self._around = lambda _: nullcontext()  # what has left is there at once

    def put(self, request: Any, array: Array, peer: int, tag: int = -1) -> UnderWay:
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
