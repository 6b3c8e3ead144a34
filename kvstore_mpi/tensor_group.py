"""Collectives on tensors for whoever has a communicator: blocking, or in the background.

One thread owns the communicator and carries out what is asked for, in the order of the calls, which must be
the same on all ranks. Users wait for it with a deadline: a rank that does not come is named instead of
waited for.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Sequence

import numpy as np

from .background_reducer import BackgroundMemory
from .errors import DeadlineError, MismatchError, UsageError
from .tensor_collectives import rings, trees
from .tensor_collectives.local_reduce import HostMemory
from .tensor_collectives.runner import Runner
from .tensor_collectives.steps import split
from .tensor_collectives.tensor import OPERATIONS, Operation, Tensor, accumulator

if TYPE_CHECKING:
    from .interfaces import Communicator
    from .tensor_collectives.runner import Make
    from .tensor_collectives.steps import Range

Array = np.ndarray[Any, Any]

SMALL_BYTES = 16 << 10
"""Up to here few messages are worth more than few bytes: recursive doubling instead of rings."""

SEGMENT_BYTES = 4 << 20
"""Of a large tensor so much goes around at once: what is received is then added while it is in the
cache."""

SEGMENTS = 16
"""So many of them follow each other without a pause where rings take turns. More would hide a little more,
and need larger buffers."""

CLOSE_S = 10.0


class Work:
    """A collective that is under way."""

    def __init__(self, what: str, waits_for: Callable[[], Sequence[int]]) -> None:
        """Describe it; ``waits_for`` tells whom the rank waits for now."""
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
            group
                cannot be used any more.
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

    def __init__(self, communicator: Communicator, *, num_rings: int = 1) -> None:
        """Take ownership of a communicator.

        Args:
            communicator: The ranks.
            num_rings: Rings that large tensors are dealt over; 2 overlap transfers between hosts with local
                reductions, which are done on the device where the tensor lies, or in a thread.

        Raises:
            UsageError: There is no ring.
        """
        if num_rings < 1:
            raise UsageError(f"num_rings must be at least 1, not {num_rings}")
        self.rank = communicator.rank
        self.size = communicator.size
        self._num_rings = num_rings
        self._communicator = communicator
        self._host: BackgroundMemory | HostMemory = BackgroundMemory() if num_rings > 1 else HostMemory()
        self._runners: dict[Any, Runner] = {}
        self._running: Runner | None = None
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
            UsageError: There is no such operation, or integers have no mean.
            MismatchError: ``out`` is of another length or type.
            DeadlineError: Time is up; the message names whom this rank waits for.
        """
        self.start_allreduce(tensor, operation, out=out).wait(timeout)

    def start_allreduce(self, tensor: Tensor, operation: str = "sum", *, out: Tensor | None = None) -> Work:
        """Begin an ``allreduce``."""
        rule, into = _operation(operation, tensor), _into(tensor, out)
        return self._put("allreduce", tensor, partial(self._allreduce, tensor, rule, into))

    def reduce_scatter(
        self, tensor: Tensor, out: Array, operation: str = "sum", *, timeout: float | None = None
    ) -> None:
        """Reduce all vectors of all ranks; this rank gets the elements ``block(tensor.size)``.

        Args:
            tensor: As for ``allreduce``; not changed.
            out: Where the block goes; of the tensor's type and the block's length.
            operation: As for ``allreduce``.
            timeout: Seconds.

        Raises:
            UsageError: There is no such operation, or integers have no mean.
            MismatchError: ``out`` is of another length or type.
            DeadlineError: Time is up; the message names whom this rank waits for.
        """
        self.start_reduce_scatter(tensor, out, operation).wait(timeout)

    def start_reduce_scatter(self, tensor: Tensor, out: Array, operation: str = "sum") -> Work:
        """Begin a ``reduce_scatter``."""
        lo, hi = self.block(tensor.size)
        _check_block(out, hi - lo, tensor)
        rule = _operation(operation, tensor)
        return self._put("reduce_scatter", tensor, partial(self._reduce_scatter, tensor, out, rule))

    def allgather(self, block: Array, tensor: Tensor, *, timeout: float | None = None) -> None:
        """Put the blocks of all ranks together in all vectors of the tensors of all ranks.

        Args:
            block: The elements ``block(tensor.size)``; of the tensor's type.
            tensor: Where the whole goes.
            timeout: Seconds.

        Raises:
            MismatchError: The block is of another length or type.
            DeadlineError: Time is up; the message names whom this rank waits for.
        """
        self.start_allgather(block, tensor).wait(timeout)

    def start_allgather(self, block: Array, tensor: Tensor) -> Work:
        """Begin an ``allgather``."""
        lo, hi = self.block(tensor.size)
        _check_block(block, hi - lo, tensor)
        return self._put("allgather", tensor, partial(self._allgather, block, tensor))

    def broadcast(self, tensor: Tensor, root: int, *, timeout: float | None = None) -> None:
        """Copy the first vector of one rank's tensor to all vectors of all ranks.

        Args:
            tensor: The source at the root, the target elsewhere.
            root: Whose vector it is.
            timeout: Seconds.

        Raises:
            UsageError: There is no such rank.
            DeadlineError: Time is up; the message names whom this rank waits for.
        """
        self.start_broadcast(tensor, root).wait(timeout)

    def start_broadcast(self, tensor: Tensor, root: int) -> Work:
        """Begin a ``broadcast``."""
        if not 0 <= root < self.size:
            raise UsageError(f"there is no rank {root} in a group of {self.size}")
        return self._put("broadcast", tensor, partial(self._broadcast, tensor, root))

    def block(self, size: int) -> Range:
        """Return which elements of a tensor this rank has between ``reduce_scatter`` and ``allgather``."""
        return split(0, size, self.size)[self.rank]

    def close(self) -> None:
        """End the thread after what was asked for, and free the communicator."""
        self._calls.put(None)
        self._thread.join(CLOSE_S)
        if isinstance(self._host, BackgroundMemory):
            self._host.close()
        if not self._thread.is_alive():
            self._communicator.close()

    def _missing(self) -> Sequence[int]:
        """Return whom this rank waits for."""
        return self._running.waits_for if self._running is not None else ()

    # --- the thread ---

    def _put(self, name: str, tensor: Tensor, call: Callable[[], None]) -> Work:
        what = f"{name} of {len(tensor.vectors)} x {tensor.size} {tensor.dtype} on rank {self.rank}"
        work = Work(what, self._missing)
        self._calls.put((work, call))
        return work

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

    def _allreduce(self, tensor: Tensor, operation: Operation, into: Tensor) -> None:
        divisor = self.size * len(tensor.vectors) if operation.is_mean else 1
        itemsize = accumulator(tensor.dtype).itemsize
        segment = SEGMENT_BYTES // itemsize
        step = segment * SEGMENTS if self._num_rings > 1 else segment
        for lo in range(0, tensor.size, step):
            part, target = tensor.part(lo, lo + step), into.part(lo, lo + step)
            if part.size * itemsize <= SMALL_BYTES:
                self._run(trees.recursive_doubling, part, target, operation, divisor=divisor)
            else:
                self._run(
                    rings.pipelined, part, target, operation, self._num_rings, segment, divisor=divisor
                )

    def _reduce_scatter(self, tensor: Tensor, out: Array, operation: Operation) -> None:
        divisor = self.size * len(tensor.vectors) if operation.is_mean else 1
        buffer = self._memory(tensor).allocate(tensor.size, accumulator(tensor.dtype))
        self._run(rings.reduce_scatter_blocks, tensor, tensor, operation, divisor=divisor, buffer=buffer)
        lo, hi = self.block(tensor.size)
        np.copyto(out, buffer[lo:hi], casting="same_kind")

    def _allgather(self, block: Array, tensor: Tensor) -> None:
        lo, hi = self.block(tensor.size)
        buffer = self._memory(tensor).allocate(tensor.size, accumulator(tensor.dtype))
        np.copyto(buffer[lo:hi], block)
        self._run(rings.allgather_blocks, tensor, tensor, OPERATIONS["sum"], buffer=buffer)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        self._run(trees.broadcast, Tensor(tensor.vectors[:1]), tensor, OPERATIONS["sum"], root)

    def _memory(self, tensor: Tensor) -> Any:
        """Return where a tensor lies: on the host, or on devices."""
        if isinstance(tensor.vectors[0], np.ndarray):
            return self._host
        from .tensor_collectives.gpu import DeviceMemory  # noqa: PLC0415  CuPy is needed for its own arrays only

        return DeviceMemory

    def _run(
        self,
        make: Make,
        tensor: Tensor,
        into: Tensor,
        operation: Operation,
        *arguments: int,
        divisor: int = 1,
        buffer: Array | None = None,
    ) -> None:
        """Carry out a collective where the tensor lies, in its own buffer unless another is given."""
        memory = self._memory(tensor)
        runner = self._runners.get(memory)
        if runner is None:
            runner = self._runners[memory] = Runner(self._communicator, memory.allocate)
        self._running = runner
        work = memory.buffer(into) if buffer is None else buffer
        runner.run(
            make, work, memory.reducer(tensor, operation, into), operation, *arguments, divisor=divisor
        )


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


def _check_block(block: Array, size: int, tensor: Tensor) -> None:
    if block.shape != (size,) or block.dtype != tensor.dtype:
        raise MismatchError(
            f"this rank's block of the tensor is {size} {tensor.dtype}, not {block.shape} {block.dtype}"
        )
