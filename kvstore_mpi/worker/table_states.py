"""Optimizer states of tables, between the pieces that servers have and one array for each state. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.values.row_sparse import RowSparse
from kvstore_mpi.wire.state_parts import NO_ARRAY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.worker.instructions import ReceivedPart

Array = np.ndarray[Any, Any]


class TableStates:
    """The states of one table, as they come from servers.

    Attributes:
        updates: The most of any piece: servers answer between two updates.
    """

    def __init__(self, received: ReceivedPart) -> None:
        """Start with nothing of the table that something has come of."""
        self.updates = 0
        self._layout = RowSparse(received.spec)
        self._arrays: dict[int, dict[int, Array]] = {}  # by the number of the array, then by the piece

    def add(self, received: ReceivedPart) -> None:
        """Take a part of one piece's array."""
        _, part, payload = received
        # The most, for a rule that corrects its bias must not begin again at a smaller count.
        self.updates = max(self.updates, part.count)
        if part.array == NO_ARRAY:
            return
        pieces = self._arrays.setdefault(part.array, {})
        # A piece stands in messages as the run [2p, 2p + 1), so that no piece has a neighbour.
        array = pieces.get(part.lo // 2)
        if array is None:
            # Not zeroed: the parts of an array cover all of it.
            array = pieces[part.lo // 2] = np.empty(part.total, np.dtype(part.dtype))
        data = np.frombuffer(payload, array.dtype) if len(payload) else array[:0]
        array[part.offset : part.offset + data.size] = data

    def arrays(self) -> dict[int, Array]:
        """Return each array, flat; rows of pieces that have not been updated yet are zero."""
        return {index: self._joined(pieces) for index, pieces in sorted(self._arrays.items())}

    def _joined(self, pieces: dict[int, Array]) -> Array:
        layout = self._layout
        # How wide a state is, any piece says: it is as wide as a row, or one number for each row.
        first, array = next(iter(pieces.items()))
        # Zero where nothing has come: pieces that were never updated have no states on their server either.
        table = np.zeros((layout.num_rows, array.size // layout.rows_of(first)), array.dtype)
        for piece, flat in pieces.items():
            layout.part_of(piece, table)[...] = flat.reshape(-1, table.shape[1])
        return table.reshape(-1)


def assemble_tables(received: Iterable[ReceivedPart]) -> dict[Any, TableStates]:
    """Put what servers have sent of tables together, by key; states of tables that grow stay there."""
    states: dict[Any, TableStates] = {}
    for part in received:
        key = part.spec.key
        # Of its 2**63 rows no array has all: a server says no more than how often it was updated.
        if part.spec.growth is not None:
            continue
        # The first part says what the table is like; the others are only added.
        if key not in states:
            states[key] = TableStates(part)
        states[key].add(part)
    return states


def rows_of_piece(layout: RowSparse, piece: int, array: Array) -> Array:
    """Return the part of a state, flat, that belongs to a piece."""
    # Copied together: of a table that is cut by modulus the rows of a piece are not neighbours, and parts
    # are cut out of contiguous memory.
    return np.ascontiguousarray(layout.part_of(piece, array.reshape(layout.num_rows, -1))).reshape(-1)
