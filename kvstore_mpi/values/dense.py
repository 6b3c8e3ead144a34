"""The dense layout: all elements of a key, one beside the other.

A slice is a range of elements, its payload their bytes, and neighbouring slices are neighbouring bytes: a
*run* of them travels as one entry of a message and one payload, although each is summed and updated by
itself. This file must not know who pushes, what an optimizer does with a sum, or how a payload travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.p3.slicing import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvstore_mpi.records import Key, Shard, Slice

    Array = np.ndarray[Any, Any]


_BLOCK = 16_384
"""Elements."""

_UPDATED_BLOCK = 65_536
"""Elements of a large slice that are summed, updated and written back before the next: they, the states of
a rule and its temporary arrays stay in a core's own cache."""

Entry = tuple[Any, ...]
"""(key number, lo, hi, …), as messages have it; it covers all slices between ``lo`` and ``hi``."""


class Dense:
    """How a key of some type is cut, read, summed and given back; see ``layout.Layout``."""

    __slots__ = ("_itemsize", "_key", "dtype")

    def __init__(self, key: Key, dtype: str) -> None:
        """Lay out a key."""
        self._key = key
        self.dtype = np.dtype(dtype)
        self._itemsize = self.dtype.itemsize

    @staticmethod
    def cut(key_id: int, shards: Iterable[Shard], slice_elements: int) -> list[tuple[int, Slice]]:
        """Cut shards into slices: (server, slice)."""
        return cut(key_id, shards, slice_elements)

    def num_bytes(self, lo: int, hi: int) -> int:
        """Return the size of a run."""
        return (hi - lo) * self._itemsize

    def part(self, payload: Any, start: int, lo: int, hi: int) -> Any:
        """Return the bytes of ``[lo, hi)`` out of the payload of a run from ``start`` on; no copy."""
        return payload[(lo - start) * self._itemsize : (hi - start) * self._itemsize]

    def check(self, payload: Any, lo: int, hi: int) -> None:
        """Raise where a payload is not that of the run ``[lo, hi)``.

        Once for each run that comes, before it is taken apart: ``part`` would give the slices of a payload
        that is too long their bytes, and nobody would miss the rest.

        Raises:
            MismatchError: It has another size.
        """
        num_bytes = memoryview(payload).nbytes
        if num_bytes != (hi - lo) * self._itemsize:
            raise MismatchError(
                f"key {self._key!r}: elements {lo} to {hi} of {self.dtype} are "
                f"{(hi - lo) * self._itemsize} bytes, but {num_bytes} came; all processes must run the "
                "same version of kvstore_mpi"
            )

    def read(self, payload: Any, size: int) -> Array:
        """View the payload of a slice of ``size`` elements, which has been checked, as an array."""
        return np.frombuffer(payload, self.dtype) if size else np.empty(0, self.dtype)

    def sum_into(self, out: Array, arrays: Sequence[Array]) -> None:
        """Sum what clients have pushed of a slice, in their order, so that runs are repeatable.

        float16 is summed in float32: rounding each of many sums would lose small gradients beside large.
        """
        if len(arrays) == 1:
            np.copyto(out, arrays[0], casting="same_kind")
        elif out.dtype == np.float16:
            np.copyto(out, _sum(arrays, np.empty(out.size, np.float32)), casting="same_kind")
        else:
            _sum(arrays, out)

    @staticmethod
    def payload(value: Array, *, stable: bool) -> memoryview | bytes:
        """Return a slice's value for sending.

        With ``stable`` it cannot change before the peer has acknowledged it, so that no copy is needed.
        """
        return value.view(np.uint8).data if stable else value.tobytes()

    def write_back(self, value: Array, buffer: memoryview, lo: int) -> None:
        """Write a run's value from element ``lo`` on into a buffer that its peer shares."""
        if value.size:
            np.copyto(np.frombuffer(buffer, value.dtype, value.size, lo * self._itemsize), value)


def _sum(arrays: Sequence[Array], out: Array) -> Array:
    np.add(arrays[0], arrays[1], out=out, dtype=out.dtype)
    for array in arrays[2:]:
        # One after the other: NumPy's own order over a list of arrays is not promised, and bits depend on
        # it.
        np.add(out, array, out=out, dtype=out.dtype)
    return out


def blocks(size: int, *, whole: bool) -> list[slice]:
    """Return in which parts ``size`` elements are updated: blocks that stay in the cache, or all of it."""
    if whole or size <= _UPDATED_BLOCK:
        return [slice(0, size)]
    return [slice(first, min(first + _UPDATED_BLOCK, size)) for first in range(0, size, _UPDATED_BLOCK)]


def sum_of_squares(array: Array) -> float:
    """Return the sum of the squares of an array's elements, added up in float64."""
    flat = array.reshape(-1)
    total = 0.0
    # In blocks that stay in the cache: a float64 copy of all would be twice the gradient.
    for first in range(0, flat.size, _BLOCK):
        block = flat[first : first + _BLOCK].astype(np.float64)
        total += float(block @ block)
    return total


def neighbours(positions: Iterable[int]) -> Iterator[range]:
    """Join numbers in ascending order to ranges."""
    # The caller has sorted: positions come from a range, of which some are left out.
    start = end = None
    for position in positions:
        if end is None or position != end:
            if start is not None and end is not None:
                yield range(start, end)
            start = position
        end = position + 1
    if start is not None and end is not None:
        yield range(start, end)


def merge(entries: Iterable[Entry]) -> list[Entry]:
    """Join entries that follow each other: same key, adjoining elements, and all else equal.

    Args:
        entries: (key number, lo, hi, …).
    """
    merged: list[Entry] = []
    for entry in entries:
        if merged:
            key_id, lo, hi, *rest = merged[-1]
            # All else equal: slices of two rounds, or of which one wants a value and the other does not,
            # are neighbours in memory and still two requests. An empty entry, of a key without elements,
            # joins nothing: it would vanish, and its operation would never end.
            if key_id == entry[0] and hi == entry[1] and tuple(rest) == entry[3:] and hi < entry[2]:
                merged[-1] = (key_id, lo, entry[2], *rest)
                continue
        merged.append(entry)
    return merged
