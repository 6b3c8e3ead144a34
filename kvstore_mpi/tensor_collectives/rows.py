"""The ranks of one client: sum rows of a table, and spread them, by messages.

The MPI thread alone uses it. Sums are made in the order of ranks, whatever way the rows take, so that all
ways lead to the same bits. Ranks have different numbers of rows each time: small messages say beforehand
how many come.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives import row_cuts
from kvstore_mpi.tensor_collectives.row_blocks import Block, id_type, no_rows, row_bytes
from kvstore_mpi.tensor_collectives.row_messages import RowMessages
from kvstore_mpi.values.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.tensor_collectives.row_blocks import DealtTable, Table
    from kvstore_mpi.values.rows import RowMerger

Array = np.ndarray[Any, Any]


class RowCollectives:
    """Sums and spreads rows, blocking; all ranks call the same methods in the same order.

    What is given must not change until a method returns; what it returns belongs to the caller.
    """

    def __init__(self, communicator: Communicator, merger: RowMerger) -> None:
        """Use a communicator and a merger, which are used by nobody else meanwhile."""
        self._rank = communicator.rank
        self._others = [rank for rank in range(communicator.size) if rank != communicator.rank]
        self._messages = RowMessages(communicator)
        self._merger = merger
        self._overlap: dict[Hashable, float] = {}

    @property
    def _size(self) -> int:
        return len(self._others) + 1

    # --- sums ---

    def reduce(self, rows: Rows, table: DealtTable, owners: Sequence[int]) -> Rows:
        """Sum the rows of all ranks; return those of the pieces that this rank owns.

        Args:
            rows: Of this rank; they are what is returned if there is no other.
            table: What they are rows of.
            owners: The rank that gets the rows of each piece.
        """
        if self._size == 1:
            return rows
        parts = _deal(rows, table, owners)
        own = parts.pop(self._rank, None)
        sources = [] if own is None else self._others
        told = self._messages.tell({rank: _number(part) for rank, part in parts.items()}, sources, 1)
        counts = {source: int(number[0]) for source, number in told.items()}
        came = self._messages.swap(parts, counts, table)
        if own is None:
            return no_rows(table)
        return self._sum({**came, self._rank: own}, table)

    def allreduce(self, rows: Rows, table: Table, key: Hashable) -> Rows:
        """Sum the rows of all ranks; return the union, which has the same bits on all.

        Args:
            rows: Of this rank; they are what is returned if there is no other.
            table: What they are rows of.
            key: Names it; the overlap of the ranks' ids is taken to be about that of the last time.
        """
        if self._size == 1:
            return rows
        mine = row_cuts.sample(rows.ids, self._size)
        told = self._messages.tell(dict.fromkeys(self._others, mine), self._others, mine.size)
        samples = [told.get(rank, mine) for rank in range(self._size)]
        num_rows = sum(int(each[0]) for each in samples)
        overlap = self._overlap.get(key, 1.0)
        if row_cuts.merges_first(num_rows, row_bytes(table), self._size, overlap):
            union = self._merge_and_gather(rows, table, row_cuts.cuts(samples, table.num_rows))
        else:
            counts = {source: int(told[source][0]) for source in self._others}
            came = self._messages.swap(dict.fromkeys(self._others, rows), counts, table)
            union = self._sum({**came, self._rank: rows}, table)
        if num_rows:
            self._overlap[key] = union.ids.size / num_rows
        return union

    def _merge_and_gather(self, rows: Rows, table: Table, starts: Array) -> Rows:
        """Sum the rows of a range on each rank, then gather the ranges."""
        bounds = np.searchsorted(rows.ids, starts).tolist()
        parts = {
            rank: Rows(rows.ids[lo:hi], rows.values[lo:hi])
            for rank, (lo, hi) in enumerate(itertools.pairwise(bounds))
        }
        own = parts.pop(self._rank)
        told = self._messages.tell({rank: _number(part) for rank, part in parts.items()}, self._others, 1)
        counts = {source: int(number[0]) for source, number in told.items()}
        came = self._messages.swap(parts, counts, table)
        return self._gather(self._sum({**came, self._rank: own}, table), table)

    def _gather(self, part: Rows, table: Table) -> Rows:
        """Return the parts of all ranks, one behind the other."""
        told = self._messages.tell(dict.fromkeys(self._others, _number(part)), self._others, 1)
        counts = {rank: int(told[rank][0]) if rank in told else part.ids.size for rank in range(self._size)}
        num_rows = sum(counts.values())
        values = np.empty((num_rows, table.width), table.dtype)
        space = Rows(np.empty(num_rows, id_type(table)), values)
        self._messages.fill(dict.fromkeys(counts, part), counts, space, table)
        return Rows(space.ids.astype(np.int64), values)

    def _sum(self, parts: Mapping[int, Rows], table: Table) -> Rows:
        """Sum rows in the order of ranks."""
        filled = [parts[rank] for rank in sorted(parts) if parts[rank].ids.size]
        if not filled:
            return no_rows(table)
        if len(filled) == 1:
            # A sum of others begins with a zero, so that this does: -0.0 would become 0.0 or not, depending
            # on whether another rank has any rows within the same range.
            [(ids, values)] = filled
            return Rows(ids.copy(), values + table.dtype.type(0))
        return self._merger.merge(filled, table.num_rows, own=True)

    # --- spreading ---

    def broadcast(self, parts: Sequence[Rows] | None, table: Table, root: int) -> list[Rows]:
        """Return the root's parts on every rank.

        Args:
            parts: The root's, of any number; their ids need not differ. The root gets these back.
            table: What they are rows of.
            root: The rank that has them.
        """
        if self._size == 1:
            return list(parts or ())
        here = parts or ()
        shape = np.array([len(here), sum(rows.ids.size for rows in here)], np.int64)
        self._messages.broadcast(shape, root)
        num_parts, num_rows = map(int, shape)
        num_bytes = Block.size(table, num_parts, num_rows)
        memory = self._messages.room(num_bytes) if self._rank == root else np.empty(num_bytes, np.uint8)
        block = Block.over(memory, table, num_parts, num_rows)
        if self._rank == root:
            block.write(here)
        self._messages.broadcast(memory, root)
        return list(here) if self._rank == root else block.parts()

    def broadcast_value(self, value: Array, root: int) -> None:
        """Overwrite a whole table with the root's."""
        self._messages.broadcast(value.reshape(-1), root)


def _deal(rows: Rows, table: DealtTable, owners: Sequence[int]) -> dict[int, Rows]:
    """Return the rows for each owner of pieces."""
    receivers = sorted(set(owners))
    if len(receivers) == 1:
        return {receivers[0]: rows}
    # Numbers this short are sorted by their digits, four times faster than others.
    ranks = np.array(owners, np.uint16)[table.pieces_of(rows.ids)]
    order = np.argsort(ranks, kind="stable")
    bounds = np.searchsorted(ranks, [*receivers, receivers[-1] + 1], sorter=order).tolist()
    return {
        rank: Rows(rows.ids[order[lo:hi]], rows.values[order[lo:hi]])
        for rank, (lo, hi) in zip(receivers, itertools.pairwise(bounds))
    }


def _number(rows: Rows) -> Array:
    """Return what others are told of a part."""
    return np.array([rows.ids.size], np.int64)
