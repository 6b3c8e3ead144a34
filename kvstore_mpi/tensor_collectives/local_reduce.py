"""Reductions and copies within one process, with NumPy: on the host, between a tensor and its buffer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.tensor import Tensor, accumulator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.tensor_collectives.executor import LocalReducer
    from kvstore_mpi.tensor_collectives.tensor import Operation

Array = np.ndarray[Any, Any]

CACHED_BYTES = 256 << 10
"""Sums go segment by segment, so that what has been read or summed is still in a cache of 2 MB when it is
written. Smaller segments cost more of Python than they save (sum of 2 x 2 MB into both: 237, 217 and 231 us
with segments of 128 KB, 256 KB and 1 MB; of 4 x 4 MB: 1081, 1026 and 1075 us with 128, 256 and 512 KB)."""


class NumpyReducer:
    """Works on a tensor of NumPy arrays; everything is done when a call returns."""

    def __init__(self, tensor: Tensor, operation: Operation, *, into: Tensor | None = None) -> None:
        """Reduce a tensor.

        Args:
            tensor: What is reduced; not changed, unless it is also what the result is for.
            operation: What becomes of numbers that meet.
            into: Where results go; the tensor itself if not given.
        """
        self._tensor = tensor
        self._operation = operation
        self._into = tensor if into is None else into

    def reduce(self, buffer: Array, lo: int, hi: int, incoming: Array | None) -> None:
        """Start to reduce what has come, if anything, and the vectors into a range of the buffer."""
        sources = [] if incoming is None else [incoming]
        sources += [vector[lo:hi] for vector in self._tensor.vectors]
        combine([buffer[lo:hi]], sources, self._operation)

    def share(self, buffer: Array, lo: int, hi: int) -> None:
        """Start to copy a range of the buffer to all vectors."""
        for vector in self._into.vectors:
            if not _same_memory(vector, buffer):
                copy_rounded(vector[lo:hi], buffer[lo:hi])

    def wait(self, lo: int, hi: int) -> None:
        """Wait for what was started on a range."""


class EachVector:
    """Works on the vectors of a tensor one by one; each has a region of the buffer, in their order."""

    def __init__(self, memory: Any, tensor: Tensor, operation: Operation, into: Tensor) -> None:
        """Reduce a tensor into as many vectors; ``memory`` says how one of them is worked on."""
        pairs = zip(tensor.vectors, into.vectors)
        self._reducers = [memory.reducer(Tensor([one]), operation, Tensor([to])) for one, to in pairs]
        self._size = tensor.size

    def reduce(self, buffer: Array, lo: int, hi: int, incoming: Array | None) -> None:
        """Start to reduce what has come, if anything, and one vector into a range of its region."""
        if lo < hi:
            index, region, by = self._region(buffer, lo)
            self._reducers[index].reduce(region, lo - by, hi - by, incoming)

    def share(self, buffer: Array, lo: int, hi: int) -> None:
        """Start to copy a range of a region to its vector."""
        if lo < hi:
            index, region, by = self._region(buffer, lo)
            self._reducers[index].share(region, lo - by, hi - by)

    def wait(self, lo: int, hi: int) -> None:
        """Wait for what was started on a range."""
        if lo < hi:
            index = lo // self._size
            self._reducers[index].wait(lo - index * self._size, hi - index * self._size)

    def _region(self, buffer: Array, lo: int) -> tuple[int, Array, int]:
        index = lo // self._size
        by = index * self._size
        return index, buffer[by : by + self._size], by


def combine(
    targets: Sequence[Array], sources: Sequence[Array], operation: Operation, divisor: int = 1
) -> None:
    """Reduce arrays in their order, and write the result to others, some of which may be the same.

    Segment by segment, so that what has been read is still in the cache when it is written.

    Args:
        targets: Where the result goes; at least one, all of one type.
        sources: At least one, as long as the targets.
        operation: What becomes of numbers that meet.
        divisor: What the result is divided by.
    """
    _combine(_at_once, targets, sources, operation, divisor)


def prepared_combine(
    targets: Sequence[Array], sources: Sequence[Array], operation: Operation
) -> list[Callable[[], object]]:
    """Return ``combine`` of these arrays as calls to repeat.

    What there is to find out about 4 KB takes four times as long as to add them up. About long ones, and
    those that need memory for sums of a wider type, nothing is kept.
    """
    first = targets[0]
    if first.nbytes > CACHED_BYTES or accumulator(first.dtype) != first.dtype:
        return [partial(combine, targets, sources, operation)]
    calls: list[Callable[[], object]] = []

    def keep(function: Callable[..., object], *arguments: Any, **how: Any) -> None:
        calls.append(partial(function, *arguments, **how))

    _combine(keep, targets, sources, operation)
    return calls


def _at_once(function: Callable[..., object], *arguments: Any, **how: Any) -> None:
    function(*arguments, **how)


def _combine(
    do: Callable[..., None],
    targets: Sequence[Array],
    sources: Sequence[Array],
    operation: Operation,
    divisor: int = 1,
) -> None:
    """Let ``do`` do what ``combine`` does: a function and its arguments at a time."""
    size, dtype = targets[0].size, targets[0].dtype
    wide = accumulator(dtype)
    if len(sources) == len(targets) == 1 and _same_memory(targets[0], sources[0]):
        do(divide, targets[0], divisor)
        return
    # The first target can take the partial sum, unless it is a source that is still to be added.
    direct = wide == dtype and not any(_same_memory(targets[0], source) for source in sources[2:])
    step = CACHED_BYTES // wide.itemsize
    scratch = np.empty(0 if direct else min(step, size), wide)
    copies = targets[direct:]
    for lo in range(0, size, step):
        here = slice(lo, lo + step)
        segment = targets[0][here] if direct else scratch[: size - lo]
        _reduce_segment(do, segment, [source[here] for source in sources], operation)
        if divisor != 1:
            do(divide, segment, divisor)
        for target in copies:
            do(target[here].__setitem__, ..., segment)  # rounds if need be; np.copyto takes 0.6 us


def _reduce_segment(
    do: Callable[..., None], segment: Array, sources: Sequence[Array], operation: Operation
) -> None:
    """Reduce into a segment of the accumulator's type, which may be one of the first two sources."""
    rest, dtype = sources[1:], segment.dtype
    if not rest:
        do(np.copyto, segment, sources[0], casting="same_kind")
    else:
        do(operation.ufunc, sources[0], rest[0], out=segment, dtype=dtype, casting="same_kind")
    for source in rest[1:]:
        do(operation.ufunc, segment, source, out=segment, dtype=dtype, casting="same_kind")


def divide(array: Array, divisor: int) -> None:
    """Divide in place."""
    if divisor != 1:
        np.divide(array, divisor, out=array, casting="same_kind")


def copy_rounded(target: Array, source: Array) -> None:
    """Copy, and round where the target is narrower.

    Of bfloat16, whose kind is that of all types that are not NumPy's own, NumPy does not know that it is.
    """
    np.copyto(target, source, casting="unsafe" if target.dtype.kind == "V" else "same_kind")


def _same_memory(one: Array, other: Array) -> bool:
    return one.ctypes.data == other.ctypes.data


class HostMemory:
    """Where tensors of NumPy arrays and their buffers lie."""

    @staticmethod
    def reducer(tensor: Tensor, operation: Operation, into: Tensor) -> LocalReducer:
        """Make what works on a tensor."""
        return NumpyReducer(tensor, operation, into=into)

    @staticmethod
    def allocate(size: int, dtype: np.dtype[Any]) -> Array:
        """Make an array that transfers may fill."""
        return np.empty(size, dtype)

    @staticmethod
    def buffer(into: Tensor) -> Array:
        """Return a buffer for a tensor: its own first vector, unless sums need a wider type."""
        wide = accumulator(into.dtype)
        return into.vectors[0] if wide == into.dtype else np.empty(into.size, wide)

    @staticmethod
    def pin(buffer: Array) -> Callable[[], None]:  # noqa: ARG004  devices need it
        """Let memory of the host that is not from ``allocate`` be a buffer; return what ends that."""
        return lambda: None
