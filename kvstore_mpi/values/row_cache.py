"""A worker's cache of rows: which of them must be asked for, if none may be older than a number of steps.

The clock counts the pushes that this worker has made. A row that is used at clock t was asked for at clock
t - staleness at the earliest, so it lacks at most that number of this worker's own updates, and of every
other worker's those that were not at the servers by then. With a staleness of 0 every row is asked for at
every use, and training is the same as without a cache.

A row that a batch has with probability p is asked for in p / (1 + staleness * p) of all steps. Rows that
have become too old are of no use and go, so that the cache needs memory for the rows of staleness + 1
batches at most. This file must not know who asks, or how rows come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.values.row_index import ABSENT, RowIndex

if TYPE_CHECKING:
    from kvstore_mpi.records import Rows

    Array = np.ndarray[Any, Any]

_NEVER = np.iinfo(np.int64).min


class RowCache:
    """Rows of one table that a worker has been sent, and at which clock it asked for them."""

    def __init__(self, staleness: int, width: int, dtype: np.dtype[Any]) -> None:
        """Start without rows.

        Raises:
            UsageError: The staleness is negative.
        """
        if staleness < 0:
            raise UsageError(f"rows cannot be {staleness} steps old; give 0 for rows as they are")
        self._staleness = staleness
        self._index = RowIndex()
        self._asked: Array = np.empty(0, np.int64)  # by slot
        self._values: Array = np.empty((0, width), dtype)

    def __len__(self) -> int:
        """Return the number of rows that are there, or on their way."""
        return len(self._index)

    def ask(self, ids: Array, now: int, use: int) -> Array:
        """Return which rows must be asked for now, to be used later; they count as being on their way.

        Args:
            ids: int64, 1-D, ascending, not repeated.
            now: The clock.
            use: The clock at which they will be used; ``may_ask`` says when it is too early for that.
        """
        assert self.may_ask(now, use), "rows would be too old when they are used"
        slots = self._index.lookup(ids)
        asked = np.full(ids.size, _NEVER, np.int64)
        there = slots != ABSENT
        asked[there] = self._asked[slots[there]]
        wanted = asked < use - self._staleness
        new = wanted & ~there
        slots[new] = self._index.create(ids[new])
        self._grow()
        self._asked[slots[wanted]] = now
        chosen: Array = ids[wanted]
        return chosen

    def may_ask(self, now: int, use: int) -> bool:
        """Return whether rows that are asked for now are not too old at a later clock."""
        return now >= use - self._staleness

    def forget(self) -> None:
        """Each row must be asked for again before it is used."""
        self._asked[:] = _NEVER

    def fill(self, rows: Rows) -> None:
        """Take rows that have come, all of which were asked for."""
        slots = self._index.lookup(rows.ids)
        # A row that was asked for long ago may have become too old on its way.
        there = slots != ABSENT
        self._values[slots[there]] = rows.values[there]

    def take(self, ids: Array, now: int) -> Array:
        """Return a copy of rows, all of which have come; what is too old at this clock goes.

        Args:
            ids: As for ``ask``.
            now: The clock, as ``use`` was when they were asked for.
        """
        slots = self._index.lookup(ids)
        assert slots.size == 0 or slots.min() >= 0, "a row that was not asked for"
        taken: Array = self._values[slots]
        used = self._index.used_slots()
        old = self._asked[used] < now - self._staleness
        self._index.remove(self._index.ids_of(used[old]))
        return taken

    def drop(self, ids: Array) -> None:
        """Forget rows that are there: of passes between two steps there may be any number."""
        self._index.remove(ids[self._index.lookup(ids) != ABSENT])

    def _grow(self) -> None:
        slots, length = self._index.num_slots, len(self._asked)
        if slots > length:
            more = max(slots, 2 * length) - length
            self._asked = np.concatenate([self._asked, np.full(more, _NEVER, np.int64)])
            grown: Array = np.empty((length + more, self._values.shape[1]), self._values.dtype)
            grown[:length] = self._values
            self._values = grown
