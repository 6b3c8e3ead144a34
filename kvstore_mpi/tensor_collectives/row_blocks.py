"""Rows of a table in one piece of memory: what ranks send each other in one message, or share.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from kvstore_mpi.records import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


class PartialSums(NamedTuple):
    """What sums that are not complete are rows of: they are of a wider type."""

    num_rows: int
    width: int
    dtype: np.dtype[Any]


class Share(NamedTuple):
    """Some of the rows that somebody has; they are copied once, to where they go.

    Attributes:
        rows: All.
        which: Those that are meant: a range, or their places.
    """

    rows: Rows
    which: slice | Array = slice(None)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.rows.ids[self.which])

    def taken(self) -> Rows:
        """Return the rows; views, if they are a range."""
        return Rows(self.rows.ids[self.which], self.rows.values[self.which])

    def copy_to(self, ids: Array, values: Array) -> None:
        """Copy the rows."""
        ids[:] = self.rows.ids[self.which]
        if isinstance(self.which, slice):
            values[:] = self.rows.values[self.which]
        else:
            np.take(self.rows.values, self.which, axis=0, out=values, mode="clip")  # "raise" copies twice


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

    def write(self, shares: Iterable[Share]) -> None:
        """Fill the block."""
        lo = 0
        for index, share in enumerate(shares):
            hi = lo + share.size
            self.counts[index] = hi - lo
            share.copy_to(self.ids[lo:hi], self.values[lo:hi])
            lo = hi

    def copy(self) -> Block:
        """Return the same in memory of its own."""
        return Block(*(array.copy() for array in self))

    def part(self, index: int) -> Rows:
        """Return a part; the values are a view."""
        lo = int(self.counts[:index].sum())
        hi = lo + int(self.counts[index])
        return Rows(self.ids[lo:hi].astype(np.int64), self.values[lo:hi])

    def parts(self) -> list[Rows]:
        """Return all parts."""
        return [self.part(index) for index in range(self.counts.size)]


class Batch(NamedTuple):
    """Blocks of several tables, one behind the other, in one piece of memory.

    Attributes:
        tables: What the rows of each block are of.
        shapes: Parts and rows of each block.
    """

    tables: Sequence[Table]
    shapes: Sequence[Sequence[int]]

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return self._bounds()[1]

    def over(self, memory: Array) -> list[Block]:
        """Lay the blocks over the beginning of a byte array that has ``size`` bytes or more."""
        starts, _ = self._bounds()
        return [
            Block.over(memory[lo:], table, *shape)
            for lo, table, shape in zip(starts, self.tables, self.shapes)
        ]

    def _bounds(self) -> tuple[list[int], int]:
        """Return where each block begins, and where the last one ends."""
        starts, end = [], 0
        for table, shape in zip(self.tables, self.shapes):
            starts.append(-(-end // ALIGNMENT) * ALIGNMENT)
            end = starts[-1] + Block.size(table, *shape)
        return starts, end


def _bounds(table: Table, num_parts: int, num_rows: int) -> tuple[int, int, int]:
    """Return where ids end, and where values begin and end."""
    ids = num_parts * _COUNT.itemsize + num_rows * id_type(table).itemsize
    values = -(-ids // ALIGNMENT) * ALIGNMENT
    return ids, values, values + num_rows * table.width * table.dtype.itemsize
