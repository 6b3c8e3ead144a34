"""Adding rows to some rows of a table: the inner loop of merging rows, and of descent along sparse ones.

SciPy's product of a sparse matrix, one entry to a column, with a dense one is just that, compiled and
without the GIL, and runs at about half the speed of a copy; ``out[positions] += rows`` makes two copies of
the rows, and ``numpy.add.at`` is a hundred times slower. What is called is private to SciPy, so it has to
prove itself first, and where it is missing NumPy does the work with the same bits, at half that speed. This
file must not know what rows are.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]
    Kernel = Callable[..., None]

BLOCK_ROWS = 1 << 14
"""Rows that are added in one call: what is remembered for each of them stays in the cache."""


class RowAdder:
    """Adds rows to rows of other arrays, with memory of its own that is used again and again.

    One thread at a time may use an adder.
    """

    def __init__(self) -> None:
        """Choose the kernel; the first adder of a process imports SciPy."""
        self._kernel = compiled_kernel()
        self._starts: Array = np.zeros(0, np.int64)
        self._factors: Array = np.ones(0, np.float32)
        self._factor = 1.0

    def add(self, out: Array, positions: Array, rows: Array, factor: float = 1) -> None:
        """Compute ``out[positions] += factor * rows``, row by row in order.

        Args:
            out: 2-D and C-contiguous, of a type of NumPy's own of at least 32 bits, or an integer.
            positions: int64 or int32, 1-D, not repeated, and inside ``out``: nothing here checks that, and
                what lies beyond is written to.
            rows: 2-D and C-contiguous, a row for each position, of the type of ``out``; only read.
            factor: A number that this type can hold.
        """
        if self._kernel is None:
            out[positions] += rows if factor == 1 else rows * out.dtype.type(factor)
            return
        self._add_compiled(out, positions, rows, factor)

    def add_repeated(self, out: Array, positions: Array, rows: Array) -> None:
        """Add rows in their order to positions that may be repeated; otherwise as ``add``."""
        if self._kernel is None:
            for level in _levels(positions):
                out[positions[level]] += rows[level]
            return
        self._add_compiled(out, positions, rows, 1)

    def _add_compiled(self, out: Array, positions: Array, rows: Array, factor: float) -> None:
        assert self._kernel is not None
        self._remember(min(len(rows), BLOCK_ROWS), factor, positions.dtype, out.dtype)
        for lo in range(0, len(rows), BLOCK_ROWS):
            columns = min(BLOCK_ROWS, len(rows) - lo)
            self._kernel(
                len(out),
                columns,
                out.shape[1],
                self._starts[: columns + 1],
                positions[lo : lo + columns],
                self._factors[:columns],
                rows[lo : lo + columns],
                out,
            )

    def _remember(
        self, columns: int, factor: float, index_type: np.dtype[Any], dtype: np.dtype[Any]
    ) -> None:
        """Make a matrix of one entry to a column; the kernel reads as many as it is told to."""
        if columns >= len(self._starts) or self._starts.dtype != index_type:
            self._starts = np.arange(columns + 1, dtype=index_type)
        if columns > len(self._factors) or self._factor != factor or self._factors.dtype != dtype:
            self._factors = np.full(columns, factor, dtype)
            self._factor = factor


def _levels(positions: Array) -> list[Array]:
    """Part the places of an array so that no value is repeated within a part, nor comes before its turn."""
    order = np.argsort(positions, kind="stable")
    values = positions[order]
    first = np.flatnonzero(np.diff(values, prepend=-1))
    turns: Array = np.empty(len(order), np.int64)
    turns[order] = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    by_turn = np.argsort(turns, kind="stable")
    return np.split(by_turn, np.cumsum(np.bincount(turns))[:-1]) if len(order) else []


@lru_cache(maxsize=1)
def compiled_kernel() -> Kernel | None:
    """Return SciPy's ``csc_matvecs`` if it is there and does what it did, else ``None``."""
    try:
        kernel: Kernel = importlib.import_module("scipy.sparse._sparsetools").csc_matvecs
    except (ImportError, AttributeError):
        return None
    return kernel if _adds_rows(kernel) else None


def _adds_rows(kernel: Kernel) -> bool:
    """Try a kernel on a small table of each type, with all that ``RowAdder`` makes use of."""
    for dtype, index_type in product(
        (np.float32, np.float64, np.int32, np.int64),
        (np.int32, np.int64),
    ):
        rows: Array = np.arange(6).reshape(3, 2).astype(dtype)
        rows.setflags(write=False)
        out: Array = np.ones((4, 2), dtype)
        starts: Array = np.arange(4, dtype=index_type)
        positions: Array = np.array([3, 0, 3], index_type)
        try:
            kernel(4, 3, 2, starts, positions, np.full(3, 2, dtype), rows, out)
        except (TypeError, ValueError, RuntimeError):
            return False
        if not np.array_equal(out, [[5, 7], [1, 1], [1, 1], [9, 13]]):
            return False
    return True
