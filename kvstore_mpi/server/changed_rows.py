"""Which rows of a piece of a table have changed since it was copied for a snapshot.

Kept from the first copy on, with 4 bytes for each row: a job without snapshots pays nothing. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

Mark = tuple[object, int]
"""Stands for the rows at one moment: which life of the arrays, and a number within it."""

Marks = dict[int, Mark]
"""Of the pieces of a table, by their ``lo``."""


class ChangedRows:
    """What has changed since any mark; one stays good also if what was copied then was never written."""

    __slots__ = ("_life", "_num_marks", "_num_rows", "_stamps")

    def __init__(self, num_rows: int) -> None:
        """Start before the first mark."""
        self._num_rows = num_rows
        self._num_marks = 0
        # Of each row, how many marks there were when it last changed.
        self._stamps: Array | None = None
        # An object of its own, and no number: marks of another piece with this ``lo`` are none of this one.
        self._life = object()

    def note(self, places: Array) -> None:
        """Rows have changed."""
        # Until there is a mark nobody asks what has changed since one.
        if self._stamps is not None:
            self._stamps[places] = self._num_marks

    def note_all(self) -> None:
        """All rows may have changed, or there are other arrays: what earlier marks stand for is gone."""
        self._stamps = None
        self._life = object()

    def mark(self) -> Mark:
        """Return what stands for the rows as they are now."""
        if self._stamps is None:
            # Zeros that the system gives: pages of rows that never change are not touched.
            self._stamps = np.zeros(self._num_rows, np.int32)
        self._num_marks += 1
        return self._life, self._num_marks

    def since(self, mark: Mark | None) -> Array | None:
        """Return the places of the rows that have changed since a mark, ascending; ``None`` for all."""
        if mark is None or mark[0] is not self._life or self._stamps is None:
            return None
        # Also those with the mark's own number: a row is stamped with the number of marks that there are,
        # which until the next mark is this one's.
        return np.flatnonzero(self._stamps >= mark[1])
