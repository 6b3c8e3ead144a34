"""Rows of a table from rank to rank, as messages, and where they arrive.

It knows nothing of sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.row_blocks import Block, id_type
from kvstore_mpi.values.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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

    def swap(self, parts: Mapping[int, Rows], counts: Mapping[int, int], table: Table) -> dict[int, Rows]:
        """Send rows to ranks; return those of others, of which the values are valid until the next call.

        Args:
            parts: For each rank.
            counts: Number of rows that each rank sends to this one.
            table: What they are rows of.
        """
        num_rows = sum(counts.values())
        space = Block.over(self.room(Block.size(table, 0, num_rows)), table, 0, num_rows)
        return self.fill(parts, counts, Rows(space.ids, space.values), table)

    def fill(
        self, parts: Mapping[int, Rows], counts: Mapping[int, int], space: Rows, table: Table
    ) -> dict[int, Rows]:
        """Send rows to ranks; fill a space with those of others, in the order of ``counts``; return them.

        Args:
            parts: For each rank; what this one has for itself is copied.
            counts: Number of rows that each rank has for this one.
            space: For all of them; its ids are of the type in which they travel.
            table: What they are rows of.
        """
        spaces, lo = {}, 0
        for source, count in counts.items():
            spaces[source] = Rows(space.ids[lo : lo + count], space.values[lo : lo + count])
            lo += count
        rank, ids_type = self._communicator.rank, id_type(table)
        sends = {
            target: Rows(ids.astype(ids_type), values)
            for target, (ids, values) in parts.items()
            if target != rank
        }
        if rank in spaces:
            spaces[rank].ids[:], spaces[rank].values[:] = parts[rank]
        receives = {source: rows for source, rows in spaces.items() if source != rank}
        self._communicator.exchange(_arrays(sends), _arrays(receives))
        return {source: Rows(ids.astype(np.int64), values) for source, (ids, values) in spaces.items()}

    def broadcast(self, array: Array, root: int) -> None:
        """Overwrite a 1-D array with that of one rank."""
        self._communicator.broadcast(array, root)

    def room(self, num_bytes: int) -> Array:
        """Return memory that is valid until the next call."""
        if self._memory.size < num_bytes:
            # More than is needed: rows are of another number each time, and fresh memory is slow.
            self._memory = np.empty(num_bytes + num_bytes // 2, np.uint8)
        return self._memory[:num_bytes]


def _arrays(parts: Mapping[int, Rows]) -> list[tuple[int, Array]]:
    """Return the messages that carry rows; none for no rows, which the other side expects, too."""
    return [(rank, array.reshape(-1)) for rank, rows in parts.items() if rows.ids.size for array in rows]
