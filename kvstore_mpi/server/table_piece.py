"""A piece of a table all of whose rows are there: rows, optimizer states, and which rows have changed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.server.changed_rows import ChangedRows
from kvstore_mpi.server.snapshot_records import VALUE
from kvstore_mpi.wire.state_parts import MASTER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.records import Rows
    from kvstore_mpi.server.changed_rows import Mark
    from kvstore_mpi.server_optimizers import MissedSteps

Array = np.ndarray[Any, Any]


class TablePiece:
    """One piece."""

    __slots__ = (
        "changes",
        "edited",
        "first",
        "master",
        "missed",
        "num_logged",
        "states",
        "summed",
        "value",
        "version",
    )

    def __init__(self, num_rows: int, width: int, dtype: np.dtype[Any], version: int) -> None:
        """Make room; the content is undefined until filled.

        Args:
            num_rows: Of the piece.
            width: Elements of a row.
            dtype: Of them.
            version: The first one of this server's life.
        """
        # Not zeroed, as for a dense shard: its pages are touched when the first value is written.
        self.value: Array = np.empty((num_rows, width), dtype)
        self.master: Array | None = None  # float32 copy of a float16 value, under multi-precision
        self.states: tuple[Array, ...] | None = None
        # With a rule that must not be lazy: what the rows have missed that are not in any push.
        self.missed: MissedSteps | None = None
        self.version = version
        # From which version on ``changes`` is complete: who knows an older one is sent everything.
        self.first = version
        self.changes: deque[Array] = deque()  # places of the rows that each version after ``first`` changed
        self.num_logged = 0
        self.edited = ChangedRows(num_rows)  # for snapshots, which are rarer than that log is long
        # Without an optimizer the value is the last sum, and these are its rows; ``None``: the initial
        # value, of which every row counts.
        self.summed: Array | None = None

    def changed(self, places: Array) -> None:
        """Note that rows have changed: the piece has its next version."""
        self.version += 1
        self.changes.append(places)
        # For snapshots besides: their marks outlive the log, which is cut below.
        self.edited.note(places)
        self.num_logged += places.size
        # A log that names more rows than there are says less than sending all of them.
        while self.num_logged > len(self.value):
            self.num_logged -= self.changes.popleft().size
            self.first += 1

    def since(self, version: int) -> Array | None:
        """Return the places of the rows that have changed since a version, ascending; ``None`` for all.

        Where the value is a sum, those of its rows: all others are zero.
        """
        # Without those that only the sum before had: who updates with it must know which rows were pushed,
        # also of those that are zero.
        return self._changed_since(version) if self.summed is None else self.summed

    def _changed_since(self, version: int) -> Array | None:
        if self.missed is not None:
            return None  # an exact step changes the rows that it has no gradient for as well
        # Older than the log, or of a run of this server that is over: what has changed since then nobody
        # knows.
        if not self.first <= version <= self.version:
            return None
        # Asked for by index, since versions are consecutive: no version is stored.
        news = [self.changes[index] for index in range(version - self.first, len(self.changes))]
        if len(news) == 1:  # nearly always: the one round since the worker's last value
            return news[0]
        places: Array = np.unique(np.concatenate(news)) if news else np.empty(0, np.int64)
        return places

    def newer(self, places: Array, version: int) -> Array:
        """Return which of some places are of rows that have changed since a version, ascending."""
        changed = self._changed_since(version)
        return places if changed is None else np.intersect1d(places, changed, assume_unique=True)

    def arrays(self) -> Iterator[tuple[int, Array]]:
        """Yield what a snapshot has of the piece, and the number of each."""
        # The value first, then the master: the check of a header wants this order.
        yield VALUE, self.value
        if self.master is not None:
            yield MASTER, self.master
        yield from enumerate(self.states or ())

    def edits(self, mark: Mark | None) -> Array | None:
        """Return the places of the rows that have changed since a mark; ``None`` if all may have."""
        return None if self.missed is not None else self.edited.since(mark)  # as in ``since``

    def catch_up(self, places: Array | None = None) -> None:
        """Bring some rows, or all, to where the piece is; they must not be looked at before."""
        if self.missed is None:
            return
        late = np.arange(len(self.value)) if places is None else places.astype(np.int64, copy=False)
        # In the master, if there is one, as every update: half precision would swallow small steps.
        weight = self.value if self.master is None else self.master
        self.missed.catch_up(weight, self.states or (), late)
        if weight is not self.value:
            self.value[late] = weight[late]

    def assign(self, merged: Rows) -> Array:
        """Make a sum the value; return the places of the rows that differ from before."""
        # Rows of the last sum that this one lacks become zero: they have changed, too, and workers must
        # hear of it.
        before = np.arange(len(self.value)) if self.summed is None else self.summed
        # Before the new ones are written: a row may be in both sums.
        self.value[before] = 0
        self.value[merged.ids] = merged.values
        self.summed = merged.ids
        return np.union1d(before, merged.ids)
