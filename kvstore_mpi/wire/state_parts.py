"""How the arrays of an optimizer's state are cut into parts that travel. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.wire.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]

PART_BYTES = 1 << 20
"""Optimizer states travel in parts of this size: large enough to be cheap, small enough to interleave."""

MASTER, NO_ARRAY = -1, -2


class StatePart(Message, frozen=True, tag=False):
    """A run of one state array of elements ``[lo, hi)`` of a key.

    ``array`` counts the arrays of the state from 0; ``MASTER`` is the float32 master copy of the weight
    (multi-precision), ``NO_ARRAY`` says that there is nothing but the count. The payload holds elements
    from ``offset`` on, of ``total``. ``count`` is that of updates so far, ``arrays`` that of arrays.
    """

    # No tag: it travels inside of messages only, and their types say what it is.
    key_id: int
    lo: int
    hi: int
    count: int
    array: int
    arrays: int
    offset: int
    total: int
    dtype: str


def split_state(
    head: tuple[int, int, int, int], index: int, arrays: int, array: Array
) -> Iterator[tuple[StatePart, memoryview]]:
    """Cut one state array into parts: (key number, lo, hi, count) and the array's place in the state."""
    # Contiguous, so that the parts can leave as views: they are not copied.
    flat = np.ascontiguousarray(array).reshape(-1)
    step = max(1, PART_BYTES // flat.itemsize)
    # An empty array is one empty run: the receiver counts arrays, and would wait for this one.
    for offset in range(0, flat.size, step) if flat.size else (0,):
        run = flat[offset : offset + step]
        # Each part says the size and dtype of its array: the receiver allocates by the first that it gets,
        # and that may come from any server.
        part = StatePart(*head, index, arrays, offset, flat.size, flat.dtype.name)
        yield part, run.view(np.uint8).data


def count_alone(head: tuple[int, int, int, int]) -> tuple[StatePart, memoryview]:
    """Return the part of a state that has no arrays: its ``head`` says how often it was updated."""
    return StatePart(*head, NO_ARRAY, 0, 0, 0, "uint8"), memoryview(b"")
