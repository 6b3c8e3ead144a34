"""Sums of rows in a fixed order, and what they are until they are complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.records import Rows
from kvstore_mpi.tensor_collectives.row_blocks import PartialSums, no_rows
from kvstore_mpi.values.rows import sum_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.tensor_collectives.row_blocks import Table
    from kvstore_mpi.values.rows import RowMerger


def partial_sums(table: Table) -> Table:
    """Return what a host's sums are rows of, which are rounded when they are complete."""
    return PartialSums(table.num_rows, table.width, sum_type(table.dtype))


class RowSums:
    """Sums rows of tables with a merger, which nobody else uses meanwhile."""

    def __init__(self, merger: RowMerger) -> None:
        """Use a merger."""
        self._merger = merger

    def of(self, parts: Sequence[Rows], table: Table) -> Rows:
        """Sum rows in the order in which they are given."""
        filled = [part for part in parts if part.ids.size]
        if not filled:
            return no_rows(table)
        if len(filled) == 1:
            # A sum of others begins with a zero, so that this does: -0.0 would become 0.0 or not, depending
            # on whether another rank has any rows within the same range.
            [(ids, values)] = filled
            return Rows(ids.copy(), (values + values.dtype.type(0)).astype(table.dtype, copy=False))
        return self._merger.merge(filled, table.num_rows, dtype=table.dtype, own=True)
