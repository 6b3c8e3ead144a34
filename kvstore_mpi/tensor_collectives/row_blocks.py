"""Rows of a table in one piece of memory: what ranks send each other in one message.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from kvstore_mpi.values.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Values begin with a cache line of their own."""

_COUNT = np.dtype(np.int64)


class Table(Protocol):
    """What rows are of; the same on all ranks."""

    @property
    def num_rows(self) -> int:
        """Bound on the ids."""
        ...

    @property
    def width(self) -> int:
        """Elements of a row."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        ...


class DealtTable(Table, Protocol):
    """A table whose rows are dealt to pieces."""

    def pieces_of(self, ids: Array) -> Array:
        """Return the number of the piece of each row."""
        ...


def id_type(table: Table) -> np.dtype[Any]:
    """Return the type in which ids travel: half as large where that will do."""
    return np.dtype(np.int32 if table.num_rows <= 1 << 31 else np.int64)


def row_bytes(table: Table) -> int:
    """Return what one row takes that travels, with its id."""
    return id_type(table).itemsize + table.width * table.dtype.itemsize


def no_rows(table: Table) -> Rows:
    """Return rows that are none."""
    return Rows(np.empty(0, np.int64), np.empty((0, table.width), table.dtype))


class Block(NamedTuple):
    """Several parts of rows, one behind the other, in one piece of memory.

    Attributes:
        counts: Number of rows of each part.
        ids: Of all parts, as they travel.
        values: Of all parts.
    """

    counts: Array
    ids: Array
    values: Array

    @classmethod
    def over(cls, memory: Array, table: Table, num_parts: int, num_rows: int) -> Block:
        """Lay a block over the beginning of a byte array that has ``size`` bytes or more."""
        ids, values, end = _bounds(table, num_parts, num_rows)
        return cls(
            memory[: num_parts * _COUNT.itemsize].view(_COUNT),
            memory[num_parts * _COUNT.itemsize : ids].view(id_type(table)),
            memory[values:end].view(table.dtype).reshape(num_rows, table.width),
        )

    @staticmethod
    def size(table: Table, num_parts: int, num_rows: int) -> int:
        """Return the bytes of a block."""
        return _bounds(table, num_parts, num_rows)[-1]

    def write(self, parts: Sequence[Rows]) -> None:
        """Fill the block."""
        lo = 0
        for index, rows in enumerate(parts):
            hi = lo + rows.ids.size
            self.counts[index] = rows.ids.size
            self.ids[lo:hi] = rows.ids
            self.values[lo:hi] = rows.values
            lo = hi

    def parts(self) -> list[Rows]:
        """Return the parts; the values are views."""
        ids = self.ids.astype(np.int64)
        ends = np.cumsum(self.counts).tolist()
        return [Rows(ids[lo:hi], self.values[lo:hi]) for lo, hi in zip([0, *ends], ends)]


def _bounds(table: Table, num_parts: int, num_rows: int) -> tuple[int, int, int]:
    """Return where ids end, and where values begin and end."""
    ids = num_parts * _COUNT.itemsize + num_rows * id_type(table).itemsize
    values = -(-ids // ALIGNMENT) * ALIGNMENT
    return ids, values, values + num_rows * table.width * table.dtype.itemsize
