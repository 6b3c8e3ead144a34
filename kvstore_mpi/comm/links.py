"""Messages between the ranks of one worker, over MPI, which go on while the ranks compute.

Any thread begins them, and none of those waits in MPI, where no signal reaches it and no wait has a limit:
two threads do, one for what is sent and one for what comes. So MPI must allow calls of several threads at a
time. This file must not know what the messages are.
"""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.comm import waits
from kvstore_mpi.errors import ConfigurationError, DeadlineError, KVStoreError, MismatchError, PeerLostError

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]

_OWN_TAGS = 2
"""Tags of this file's own messages, below those of its callers."""


class Links:
    """The ranks of one worker.

    Attributes:
        rank: This one's number among them.
        size: How many there are.
    """

    def __init__(self, mpi: Any, comm: Any, timeout: float) -> None:
        """Take ownership of a communicator.

        Args:
            mpi: mpi4py's MPI module.
            comm: A communicator of these ranks alone.
            timeout: Seconds after which a wait is an error.
        """
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._comm = comm
        self._max_tag = int(comm.Get_attr(mpi.TAG_UB))
        self._timeout = timeout
        self._sent = _Waiting("kvstore-sent", lambda request, _: request.Wait())
        self._received = _Waiting("kvstore-received", partial(_receive, mpi.Status()))

    def send(self, array: Array, peer: int, tag: int) -> Future[None]:
        """Begin to send a contiguous array, which must stay as it is until the future is done."""
        data = array.reshape(-1).view(np.uint8)
        return self._sent.put(self._comm.Isend(data, peer, self._checked(tag)), array)

    def receive(self, array: Array, peer: int, tag: int) -> Future[None]:
        """Begin to receive into a contiguous array; futures are done in the order of these calls.

        So receive in the order in which the messages are needed. What comes must have the array's size.
        """
        data = array.reshape(-1).view(np.uint8)
        return self._received.put(self._comm.Irecv(data, peer, self._checked(tag)), array)

    def wait(self, future: Future[None], what: Callable[[], str]) -> None:
        """Wait for a message.

        Args:
            future: Of ``send`` or ``receive``.
            what: Says what is waited for, if it does not come.

        Raises:
            DeadlineError: It has not come in time.
            MismatchError: What has come is no such array.
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

    def broadcast(self, data: bytes, root: int) -> bytes:
        """Return what one of the ranks gives; all must call this."""
        if self.rank == root:
            size = np.array([len(data)], np.int64)
            payload = np.frombuffer(data, np.uint8)
            others = [peer for peer in range(self.size) if peer != root]
            parts: list[tuple[int, Array]] = [(0, size), (1, payload)]
            for future in [
                self.send(part, peer, tag - _OWN_TAGS) for peer in others for tag, part in parts
            ]:
                self.wait(future, lambda: "the others to take what all of them need")
            return data
        return self._receive_now(int(self._receive_now(8, root, 0).view(np.int64)[0]), root, 1).tobytes()

    def _receive_now(self, num_bytes: int, root: int, tag: int) -> Array:
        array = np.empty(num_bytes, np.uint8)
        self.wait(self.receive(array, root, tag - _OWN_TAGS), lambda: f"what rank {root} tells all")
        return array

    def _checked(self, tag: int) -> int:
        if tag + _OWN_TAGS > self._max_tag:
            raise ConfigurationError(
                f"this MPI numbers {self._max_tag + 1} messages between two ranks, and one step has more: "
                "take fewer micro-batches or segments"
            )
        return tag + _OWN_TAGS


def _receive(status: Any, request: Any, array: Array) -> None:
    request.Wait(status)
    if status.Get_count() != array.nbytes:  # of another batch
        raise MismatchError(
            f"{status.Get_count()} bytes have come instead of {array.nbytes}: give all ranks the same batch"
        )


class _Waiting:
    """A thread that waits for messages of one kind, in the order in which they have begun."""

    def __init__(self, name: str, wait: Callable[[Any, Array], None]) -> None:
        self._wait = wait
        # A poll and the sleep behind it cost 20 us of a core that computes, 13,000 times a second: a step
        # of two stages took 216 ms instead of 167 (docs/model-parallel.md). A message has two ranks.
        self._around = waits.around_calls(2, os.environ)
        self._queue: queue.SimpleQueue[tuple[Any, Array, Future[None]]] = queue.SimpleQueue()
        # A daemon: stuck with a rank that is dead, it must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, request: Any, array: Array) -> Future[None]:
        future: Future[None] = Future()
        self._queue.put((request, array, future))  # the array, which must live as long
        return future

    def _run(self) -> None:
        while True:
            request, array, future = self._queue.get()
            try:
                with self._around(array.nbytes):
                    self._wait(request, array)
            except Exception as error:  # noqa: BLE001  raised again where it is waited for
                future.set_exception(error)
            else:
                future.set_result(None)
