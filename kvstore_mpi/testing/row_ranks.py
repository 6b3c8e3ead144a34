"""What checks of rows among ranks are given: the ranks, what each of them has, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvstore_mpi.tensor_collectives.rows import RowCollectives
from kvstore_mpi.values.rows import Rows, sum_type

Array = np.ndarray[Any, Any]

NUMBERS = ((0, 0, 0, 0), (5, 0, 3, 0), (0, 1, 0, 0), (700, 650, 900, 1), (400, 400, 400, 400))
"""Rows of each rank; further ranks begin again."""

PIECES = 7


class Table(NamedTuple):
    """What rows are of."""

    num_rows: int
    width: int
    dtype: np.dtype[Any]

    @staticmethod
    def pieces_of(ids: Array) -> Array:
        """Return the number of the piece of each row."""
        return ids % PIECES


class HasRows(Protocol):
    """Ranks that do something together with rows."""

    @property
    def rows(self) -> RowCollectives:
        """What they do."""
        ...


class Ranks(NamedTuple):
    """A group of ranks, as one of them sees it."""

    rank: int
    hosts: Sequence[Sequence[int]]
    rows: RowCollectives
    host: Sequence[int]
    """Those of its host, whether they share memory or not."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(map(len, self.hosts))

    def contributions(self, table: Table, numbers: Sequence[int]) -> list[Rows]:
        """Return what each rank has."""
        return [contribution(rank, table, numbers[rank % len(numbers)]) for rank in range(self.size)]

    def total(self, parts: Sequence[Rows], table: Table) -> Rows:
        """Return the sum of what all ranks have: in their order on each host, then in that of hosts."""
        if self.size == 1:
            return parts[0]
        partial = table._replace(dtype=sum_type(table.dtype))
        return total([total([parts[rank] for rank in host], partial) for host in self.hosts], table)


Check = Callable[[Ranks], None]


def contribution(rank: int, table: Table, number: int) -> Rows:
    """Return what a rank has: rows with ids at random, mostly small ones, and values that need rounding."""
    source = np.random.default_rng((rank, number))
    share = np.sort(source.random(table.num_rows if table.num_rows < 1 << 20 else 2 * number + 1) ** 3)
    ids = np.unique((share * (table.num_rows - 1)).astype(np.int64))
    ids = np.sort(source.permutation(ids)[:number])
    values = 100 * source.standard_normal((ids.size, table.width))
    values[::3] = -0.0
    return Rows(ids, values.astype(table.dtype))


def total(parts: Sequence[Rows], table: Table) -> Rows:
    """Return the sum of rows in their order, by means of a dense array."""
    ids = np.unique(np.concatenate([part.ids for part in parts]))
    wide = np.dtype(np.float32) if table.dtype == np.float16 else table.dtype
    values: Array = np.zeros((ids.size, table.width), wide)
    for part in parts:
        values[np.searchsorted(ids, part.ids)] += part.values
    return Rows(ids, values.astype(table.dtype))


def same(rows: Rows, wanted: Rows) -> None:
    """Make sure that rows have the bits of others."""
    np.testing.assert_array_equal(rows.ids, wanted.ids)
    assert rows.ids.dtype == np.int64
    assert rows.values.dtype == wanted.values.dtype
    assert rows.values.shape == wanted.values.shape
    np.testing.assert_array_equal(rows.values, wanted.values)
    assert rows.values.tobytes() == wanted.values.tobytes()
