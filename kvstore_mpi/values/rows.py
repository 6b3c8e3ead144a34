"""Rows of a table: the ids and values that stand for a row-sparse array, and their sums.

Sums are made in a fixed order, the order of appearance inside an array and that of the parts between
arrays, so that repeated runs have the same bits. float16 and bfloat16 are summed in float32 and rounded
once.
This file must not know where rows come from, or how they travel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.records import Rows
from kvstore_mpi.values.row_kernels import RowAdder

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

__all__ = ["RowMerger", "Rows", "sum_type", "unique_rows"]

_BLOCK_BYTES = 2 << 20
"""Output that is worked on at a time: it stays in the cache while all parts are added to it.

Each block costs some microseconds of Python for each part; half as large ones took 8 to 12 % longer.
"""

_SPARSEST = 32
"""With more rows of the table to a pushed row than this, ids are sorted instead of marked in a mask."""

_MOST_MARKED = np.iinfo(np.int32).max
"""A larger table's positions would need twice the memory."""


def unique_rows(ids: Array, values: Array) -> Rows:
    """Return rows as ``Rows``: in ascending order, repeated ones summed in the order of their appearance.

    Args:
        ids: Of any integer type and any shape; only read.
        values: One row for each id: of shape (number of ids, …) or (shape of ids, …); only read. Where
            nothing has to be done, the result is a view of it.

    Raises:
        MismatchError: The ids are not integers, or there is not one row for each.
    """
    flat = _flat_ids(ids)
    table = _table(values, ids)
    if (flat[1:] > flat[:-1]).all():
        return Rows(flat, np.ascontiguousarray(table))
    unique, positions = np.unique(flat, return_inverse=True)
    out: Array = np.zeros((len(unique), table.shape[1]), sum_type(table.dtype))
    rows = np.ascontiguousarray(table, out.dtype)
    RowAdder().add_repeated(out, positions.reshape(-1).astype(np.int64, copy=False), rows)
    return Rows(unique, out.astype(table.dtype, copy=False))


def sum_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which rows of some type are summed."""
    return np.dtype(np.float32) if dtype.name in {"float16", "bfloat16"} else dtype


class RowMerger:
    """Sums rows of several parts; its memory is used again, since fresh memory is ten times slower.

    One thread at a time may use a merger. For a table of V rows it keeps at most 5 V bytes, and room for
    the largest result.
    """

    def __init__(self) -> None:
        """Start without memory."""
        self._adder = RowAdder()
        self._mask: Array = np.zeros(0, np.bool_)
        self._positions: Array = np.zeros(1, np.int32)
        self._values: Array = np.empty(0, np.uint8)

    def merge(
        self, parts: Sequence[Rows], num_rows: int, *, dtype: np.dtype[Any] | None = None, own: bool = False
    ) -> Rows:
        """Return the union of the ids with the sum of the values of each.

        Args:
            parts: At least one, all of one width and type; only read. The sum is made in their order.
            num_rows: Bound on the ids, of which none is negative.
            dtype: Of the result; ``None`` for the type of the parts.
            own: The result belongs to the caller. Otherwise it is valid until the next call, and may be one
                of the parts itself, if that is the only one with rows.

        Raises:
            MismatchError: The parts differ in width or type.
        """
        _check_alike(parts)
        dtype = parts[0].values.dtype if dtype is None else np.dtype(dtype)
        filled = [part for part in parts if len(part.ids)] or [parts[0]]
        if len(filled) == 1:
            ids, values = filled[0]
            return Rows(ids.copy() if own else ids, values.astype(dtype, copy=own))
        ids, positions = self._union([part.ids for part in filled], num_rows)
        width = filled[0].values.shape[1]
        summed = sum_type(filled[0].values.dtype)
        fresh = own and dtype == summed
        out = np.empty((len(ids), width), summed) if fresh else self._room(len(ids), width, summed)
        self._sum(out, positions, [part.values for part in filled])
        return Rows(ids, out.astype(dtype, copy=False))

    def _sum(self, out: Array, positions: list[Array], values: list[Array]) -> None:
        """Fill ``out`` block by block, so that it is read and written in the cache only."""
        block = max(1, _BLOCK_BYTES // max(1, out.shape[1] * out.itemsize))
        edges = np.arange(0, len(out) + block, block)
        # Of the positions' type, or NumPy converts these.
        cuts = [np.searchsorted(each, edges.astype(each.dtype)).tolist() for each in positions]
        for number, start in enumerate(edges[:-1].tolist()):
            out[start : start + block] = 0
            for position, rows, cut in zip(positions, values, cuts):
                lo, hi = cut[number], cut[number + 1]
                if lo < hi:
                    self._adder.add(out, position[lo:hi], rows[lo:hi].astype(out.dtype, copy=False))

    def _union(self, ids: list[Array], num_rows: int) -> tuple[Array, list[Array]]:
        """Return all ids in ascending order, and the positions of each part's ids among them."""
        if num_rows > min(_SPARSEST * sum(map(len, ids)), _MOST_MARKED):
            union = np.concatenate(ids)
            union.sort(kind="stable")  # which merges what is sorted in parts already
            union = union[np.flatnonzero(np.diff(union, prepend=-1))]
            return union, [np.searchsorted(union, part) for part in ids]
        if len(self._mask) < num_rows:
            self._mask = np.zeros(num_rows, np.bool_)
            self._positions = np.zeros(num_rows + 1, np.int32)
        mask, before = self._mask[:num_rows], self._positions
        for part in ids:
            mask[part] = True
        # How many marked rows lie before each row is its position, if marked; the first entry stays 0.
        np.cumsum(mask, dtype=before.dtype, out=before[1 : num_rows + 1])
        positions = [before[part] for part in ids]
        if sum(map(len, ids)) > num_rows:
            union = np.flatnonzero(mask)
        else:  # each id goes to its position, which takes half as long as to look for the marks
            union = np.empty(before[num_rows], np.int64)
            for part, position in zip(ids, positions):
                union[position] = part
        mask.fill(False)
        return union, positions

    def _room(self, num_rows: int, width: int, dtype: np.dtype[Any]) -> Array:
        """Return an array with any content out of the memory that is used again."""
        num_bytes = num_rows * width * dtype.itemsize
        if len(self._values) < num_bytes:
            self._values = np.empty(num_bytes, np.uint8)
        return self._values[:num_bytes].view(dtype).reshape(num_rows, width)


def _flat_ids(ids: Array) -> Array:
    if ids.dtype.kind not in "iu":
        raise MismatchError(f"ids of rows must be integers, not {ids.dtype}; convert them, rounded")
    return ids.reshape(-1).astype(np.int64, copy=False)


def _table(values: Array, ids: Array) -> Array:
    """Return values with one row for each id."""
    for leading in ((ids.size,), ids.shape):
        if values.shape[: len(leading)] == leading:
            return values.reshape(ids.size, math.prod(values.shape[len(leading) :]))
    raise MismatchError(
        f"values of shape {values.shape} are not one row for each id of an array of shape {ids.shape}"
    )


def _check_alike(parts: Sequence[Rows]) -> None:
    kinds = {(part.values.shape[1], part.values.dtype) for part in parts}
    if len(kinds) > 1:
        found = " and ".join(sorted(f"{width} columns of {dtype}" for width, dtype in kinds))
        raise MismatchError(f"rows of {found} cannot be merged; all workers must push rows of one kind")
