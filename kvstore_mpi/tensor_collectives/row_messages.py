"""Rows of a table from rank to rank, as messages, and where they arrive.

It knows nothing of sums.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.row_blocks import ALIGNMENT, Batch, Block, Share, id_type
from kvstore_mpi.values.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.tensor_collectives.row_blocks import Table

Array = np.ndarray[Any, Any]


class RowMessages:
    """One rank of a communicator, blocking. What comes lies in memory that is used again and again."""

    def __init__(self, communicator: Communicator) -> None:
        """Use a communicator, which somebody else owns."""
        self._communicator = communicator
        self._memory: Array = np.empty(0, np.uint8)

    def tell(self, numbers: Mapping[int, Array], sources: Iterable[int], length: int) -> dict[int, Array]:
        """Send int64 numbers to ranks, and return those that others send.

        Args:
            numbers: For each rank, as many as ``length``.
            sources: The ranks that send some to this one.
            length: The same on all ranks.
        """
        told: dict[int, Array] = {source: np.empty(length, np.int64) for source in sources}
        self._communicator.exchange(list(numbers.items()), list(told.items()))
        return told

    def swap_untold(
        self, parts: Mapping[int, Sequence[Rows]], sources: Sequence[int], tables: Sequence[Table]
    ) -> dict[int, list[Rows]]:
        """Do what ``swap`` does among ranks that do not know how many rows will come from others."""
        told = self.tell({rank: numbers(each) for rank, each in parts.items()}, sources, len(tables))
        return self.swap(parts, {rank: told[rank].tolist() for rank in sources}, tables)

    def swap(
        self,
        parts: Mapping[int, Sequence[Rows]],
        counts: Mapping[int, Sequence[int]],
        tables: Sequence[Table],
    ) -> dict[int, list[Rows]]:
        """Send rows of some tables to ranks; return those of others, valid until the next call.

        Of several tables the rows travel in one message to each rank, which costs a copy; those of a single
        one are sent from where they lie.

        Args:
            parts: For each rank, of each table; what is one object for several ranks is copied once.
            counts: Number of rows of each table that each rank sends to this one.
            tables: What they are rows of.
        """
        if len(tables) > 1:
            return self._swap_packed(parts, counts, tables)
        [table] = tables
        numbers = {source: count for source, [count] in counts.items()}
        num_rows = sum(numbers.values())
        space = Block.over(self.room(Block.size(table, 0, num_rows)), table, 0, num_rows)
        ends = [0, *itertools.accumulate(numbers.values())]
        came = {
            source: Rows(space.ids[lo:hi], space.values[lo:hi])
            for source, (lo, hi) in zip(numbers, itertools.pairwise(ends))
        }
        sends = {
            target: Rows(ids.astype(id_type(table)), values) for target, [(ids, values)] in parts.items()
        }
        self._communicator.exchange(_arrays(sends), _arrays(came))
        return {source: [Rows(ids.astype(np.int64), values)] for source, (ids, values) in came.items()}

    def _swap_packed(
        self,
        parts: Mapping[int, Sequence[Rows]],
        counts: Mapping[int, Sequence[int]],
        tables: Sequence[Table],
    ) -> dict[int, list[Rows]]:
        contents = {id(each): each for each in parts.values()}
        incoming = [Batch(tables, [(0, number) for number in each]) for each in counts.values()]
        outgoing = [
            Batch(tables, [(0, rows.ids.size) for rows in content]) for content in contents.values()
        ]
        spaces = self._spaces([batch.size for batch in (*incoming, *outgoing)])
        received = dict(zip(counts, spaces))
        packed = dict(zip(contents, spaces[len(incoming) :]))
        for batch, (name, content) in zip(outgoing, contents.items()):
            for block, rows in zip(batch.over(packed[name]), content):
                Share(rows).copy_to(block.ids, block.values)
        self._communicator.exchange(
            [(target, packed[id(each)]) for target, each in parts.items() if packed[id(each)].size],
            [(source, space) for source, space in received.items() if space.size],
        )
        return {
            source: [Rows(block.ids.astype(np.int64), block.values) for block in batch.over(space)]
            for batch, (source, space) in zip(incoming, received.items())
        }

    def broadcast(self, array: Array, root: int) -> None:
        """Overwrite a 1-D array with that of one rank."""
        self._communicator.broadcast(array, root)

    def _spaces(self, sizes: Sequence[int]) -> list[Array]:
        """Return memory of these sizes, valid until the next call."""
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
        memory = self.room(starts[-1])
        return [memory[lo : lo + size] for lo, size in zip(starts, sizes)]

    def room(self, num_bytes: int) -> Array:
        """Return memory that is valid until the next call."""
        if self._memory.size < num_bytes:
            # More than is needed: rows are of another number each time, and fresh memory is slow.
            self._memory = np.empty(num_bytes + num_bytes // 2, np.uint8)
        return self._memory[:num_bytes]


def _arrays(parts: Mapping[int, Rows]) -> list[tuple[int, Array]]:
    """Return the messages that carry rows; none for no rows, which the other side expects, too."""
    return [(rank, array.reshape(-1)) for rank, rows in parts.items() if rows.ids.size for array in rows]


def numbers(parts: Sequence[Rows]) -> Array:
    """Return what others are told of parts."""
    return np.array([rows.ids.size for rows in parts], np.int64)
