"""Collectives on tensors for whoever has a communicator: blocking, or in the background.

One thread owns the communicator and carries out the calls (``blocking.py``) in their order, which must be
the same on all ranks. Users wait for it with a deadline: a rank that does not come is named instead of
waited for.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import DeadlineError, MismatchError, UsageError
from kvstore_mpi.tensor_collectives import designs
from kvstore_mpi.tensor_collectives.blocking import BlockingTensorGroup
from kvstore_mpi.tensor_collectives.designs import DESIGNS, Design
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Operation, Tensor, accumulator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.tensor_collectives.profile import Profile
    from kvstore_mpi.tensor_collectives.steps import Range

Array = np.ndarray[Any, Any]

CLOSE_S = 10.0


class Work:
    """A collective that is under way."""

    def __init__(self, what: str, waits_for: Callable[[], Sequence[int]]) -> None:
        """Describe it; ``waits_for`` tells which ranks this one waits for now."""
        self._what = what
        self._waits_for = waits_for
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end.

        Args:
            timeout: Seconds; ``None`` waits for ever.

        Raises:
            DeadlineError: It has not ended in time; the message names the ranks that were waited for. The
                group cannot be used any more.
            BaseException: What it ended with.
        """
        if not self._ended.wait(timeout):
            ranks = ", ".join(map(str, self._waits_for())) or "the collectives before it"
            raise DeadlineError(
                f"{self._what} has not ended within {timeout:g} s; it waits for rank {ranks}"
            )
        if self._error is not None:
            raise self._error

    def end(self, error: BaseException | None = None) -> None:
        """Say that it has ended."""
        self._error = error
        self._ended.set()


class TensorGroup:
    """The ranks of a communicator, as one of them sees them; calls may come from any one thread.

    Every collective has a twin ``start_...`` that returns a ``Work`` at once. From the call until its end
    the arrays belong to the group.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        design: Design = DESIGNS["ring"],
        profile: Profile | None = None,
    ) -> None:
        """Take ownership of a communicator.

        Args:
            communicator: The ranks.
            design: How allreduce goes; ``DESIGNS["multiring"]`` overlaps reductions on a device with
                transfers, ``DESIGNS["auto"]`` chooses by size and place.
            profile: As for ``Driver``.

        Raises:
            UsageError: The design contradicts itself.
        """
        designs.check(design)
        self.rank = communicator.rank
        self.size = communicator.size
        self._design = design
        self._blocking = BlockingTensorGroup(communicator, design, profile)
        self._closed = False
        self._calls: queue.SimpleQueue[tuple[Work, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="tensor-group", daemon=True)
        self._thread.start()

    # --- the collectives ---

    def allreduce(
        self,
        tensor: Tensor,
        operation: str = "sum",
        *,
        out: Tensor | None = None,
        timeout: float | None = None,
    ) -> None:
        """Reduce all vectors of all ranks, and write the result to all of them, or to those of ``out``.

        Args:
            tensor: k vectors; on all ranks of the same length, type and k.
            operation: ``sum``, ``mean``, ``max`` or ``min``.
            out: Where the result goes, if the tensor is to stay as it is.
            timeout: Seconds.

        Raises:
            UsageError: There is no such operation, integers have no mean, or the design cannot do it.
            MismatchError: ``out`` is of another length or type; or, which is looked at in a group's first
                calls, the rank before this one has made another call.
            DeadlineError: Time is up; the message names the ranks that this one waits for.
        """
        self.start_allreduce(tensor, operation, out=out).wait(timeout)

    def start_allreduce(self, tensor: Tensor, operation: str = "sum", *, out: Tensor | None = None) -> Work:
        """Begin an ``allreduce``."""
        rule, into = _operation(operation, tensor), _into(tensor, out)
        designs.check_use(self._design, tensor, into, rule)
        call = partial(self._blocking.allreduce, tensor, rule, into)
        return self._put(f"{operation} allreduce of {_vectors(tensor)}", call)

    def reduce_scatter(
        self, tensor: Tensor, out: Array, operation: str = "sum", *, timeout: float | None = None
    ) -> None:
        """Reduce all vectors of all ranks; this rank gets the elements ``chunk(tensor.size)``.

        Args:
            tensor: As for ``allreduce``; not changed.
            out: Where the chunk goes, on the host; of the tensor's type and the chunk's length.
            operation: As for ``allreduce``.
            timeout: Seconds.

        Raises:
            UsageError: There is no such operation, or integers have no mean.
            MismatchError: As for ``allreduce``.
            DeadlineError: Time is up; the message names the ranks that this one waits for.
        """
        self.start_reduce_scatter(tensor, out, operation).wait(timeout)

    def start_reduce_scatter(self, tensor: Tensor, out: Array, operation: str = "sum") -> Work:
        """Begin a ``reduce_scatter``."""
        lo, hi = self.chunk(tensor.size)
        _check_chunk(out, hi - lo, tensor)
        rule = _operation(operation, tensor)
        call = partial(self._blocking.reduce_scatter, tensor, out, rule)
        return self._put(f"{operation} reduce_scatter of {_vectors(tensor)}", call)

    def allgather(self, chunk: Array, tensor: Tensor, *, timeout: float | None = None) -> None:
        """Put the chunks of all ranks together in all vectors of the tensors of all ranks.

        Args:
            chunk: The elements ``chunk(tensor.size)``, on the host; of the tensor's type.
            tensor: Where the whole goes.
            timeout: Seconds.

        Raises:
            MismatchError: The chunk is of another length or type, or as for ``allreduce``.
            DeadlineError: Time is up; the message names the ranks that this one waits for.
        """
        self.start_allgather(chunk, tensor).wait(timeout)

    def start_allgather(self, chunk: Array, tensor: Tensor) -> Work:
        """Begin an ``allgather``."""
        lo, hi = self.chunk(tensor.size)
        _check_chunk(chunk, hi - lo, tensor)
        # Ranks may want the whole in different numbers of vectors, and so what one has broadcast.
        what = f"allgather of {tensor.size} {tensor.dtype}"
        return self._put(what, partial(self._blocking.allgather, chunk, tensor))

    def broadcast(self, tensor: Tensor, root: int, *, timeout: float | None = None) -> None:
        """Copy the first vector of one rank's tensor to all vectors of all ranks.

        Args:
            tensor: The source at the root, the target elsewhere.
            root: Whose vector it is.
            timeout: Seconds.

        Raises:
            UsageError: There is no such rank.
            MismatchError: As for ``allreduce``.
            DeadlineError: Time is up; the message names the ranks that this one waits for.
        """
        self.start_broadcast(tensor, root).wait(timeout)

    def start_broadcast(self, tensor: Tensor, root: int) -> Work:
        """Begin a ``broadcast``."""
        if not 0 <= root < self.size:
            raise UsageError(f"there is no rank {root} in a group of {self.size}")
        what = f"broadcast from rank {root} of {tensor.size} {tensor.dtype}"
        return self._put(what, partial(self._blocking.broadcast, tensor, root))

    def chunk(self, size: int) -> Range:
        """Return which elements of a tensor this rank has between ``reduce_scatter`` and ``allgather``."""
        return self._blocking.chunk(size)

    def close(self) -> None:
        """End the thread after what was asked for, and free the communicator; twice is no mistake."""
        if self._closed:
            return
        self._closed = True
        self._calls.put(None)
        self._thread.join(CLOSE_S)
        self._blocking.end_threads()
        if not self._thread.is_alive():
            self._blocking.close()

    # --- the thread ---

    def _put(self, what: str, call: Callable[[], None]) -> Work:
        here = f"{what} on rank {self.rank}"
        if self._closed:
            raise UsageError(f"{here}: the group is closed, and nothing can follow that")
        work = Work(here, lambda: self._blocking.waits_for)
        self._calls.put((work, partial(self._compared, what, call)))
        return work

    def _compared(self, what: str, call: Callable[[], None]) -> None:
        self._blocking.compare(what)
        call()

    def _serve(self) -> None:
        while True:
            item = self._calls.get()
            if item is None:
                return
            work, call = item
            try:
                call()
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                work.end(error)
            else:
                work.end()


def _vectors(tensor: Tensor) -> str:
    return f"{len(tensor.vectors)} x {tensor.size} {tensor.dtype}"


def _operation(name: str, tensor: Tensor) -> Operation:
    operation = OPERATIONS.get(name)
    if operation is None:
        raise UsageError(f"there is no operation {name!r}; there are {', '.join(OPERATIONS)}")
    if operation.is_mean and accumulator(tensor.dtype).kind != "f":
        raise UsageError(f"{tensor.dtype} has no mean; sum it and divide as you mean it")
    return operation


def _into(tensor: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return tensor
    if (out.size, out.dtype) != (tensor.size, tensor.dtype):
        raise MismatchError(
            f"out has vectors of {out.size} {out.dtype}, the tensor of {tensor.size} {tensor.dtype}"
        )
    return out


def _check_chunk(chunk: Array, size: int, tensor: Tensor) -> None:
    if chunk.shape != (size,) or chunk.dtype != tensor.dtype:
        raise MismatchError(
            f"this rank's chunk of the tensor is {size} {tensor.dtype}, not {chunk.shape} {chunk.dtype}"
        )
