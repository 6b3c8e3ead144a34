"""Of a table whose rows come and go the ids that are no rows: they wait to be admitted, or have gone."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvstore_mpi.values.row_index import ABSENT, RowIndex

Array = np.ndarray[Any, Any]

NEVER = -1
"""Stands for the number of an update before all."""

_FEWEST_CANDIDATES = 1 << 16
"""Ids that wait to be admitted, if the table has fewer rows than that."""


class Candidates:
    """Ids that have been pushed, and are not admitted yet.

    Attributes:
        forgotten: Those that went without being admitted.
    """

    def __init__(self, admit_after: int) -> None:
        """Start without ids; ``admit_after``: pushes until one is admitted."""
        self.forgotten = Evictions()
        self._needed = admit_after
        self._index = RowIndex()
        self._pushes: Array = np.zeros(0, np.int32)
        self._last_pushed: Array = np.zeros(0, np.int64)

    @property
    def num_bytes(self) -> int:
        """Memory for ids and what is known about them."""
        return int(self._index.num_bytes + self._pushes.nbytes + self._last_pushed.nbytes)

    def num_admitted(self, ids: Array) -> int:
        """Return how many of these ids their next push will admit."""
        if self._needed == 1:
            return ids.size
        slots = self._index.lookup(ids)
        return int((self._pushes[slots[slots != ABSENT]] >= self._needed - 1).sum())

    def admit(self, ids: Array, step: int, num_rows: int) -> Array:
        """Count a push of each id; return which of them have now been pushed often enough."""
        if self._needed == 1:
            return np.ones(ids.size, np.bool_)
        slots = self._index.lookup(ids)
        new = slots == ABSENT
        slots[new] = self.insert(ids[new], step, 0)
        self._pushes[slots] += 1
        self._last_pushed[slots] = step
        admitted: Array = self._pushes[slots] >= self._needed
        self._index.remove(ids[admitted])
        self._bound(max(num_rows, _FEWEST_CANDIDATES), step)
        return admitted

    def insert(self, ids: Array, last_pushed: Array | int, pushes: Array | int) -> Array:
        """Take in ids that are not there; return their slots."""
        slots = self._index.create(ids)
        if self._index.num_slots > self._pushes.size:
            capacity = max(2 * self._pushes.size, self._index.num_slots)
            self._pushes = grown(self._pushes, capacity)
            self._last_pushed = grown(self._last_pushed, capacity)
        self._pushes[slots] = pushes
        self._last_pushed[slots] = last_pushed
        return slots

    def has(self, ids: Array) -> Array:
        """Return which ids are there."""
        found: Array = self._index.lookup(ids) != ABSENT
        return found

    def content(self, since: int = NEVER) -> tuple[Array, Array, Array]:
        """Return ids that were pushed after an update, updates of their last push, numbers of pushes."""
        slots = self._index.used_slots()
        slots = slots[self._last_pushed[slots] > since]
        return self._index.ids_of(slots), self._last_pushed[slots], self._pushes[slots]

    def _bound(self, most: int, step: int) -> None:
        """Forget the older half, if there are more than rows: otherwise they would be what needs memory."""
        if len(self._index) > most:
            pushed = self._last_pushed[self._index.used_slots()]
            # Those of this update stay, or one that is large would admit nothing.
            self.forget_before(min(step, int(np.median(pushed)) + 1), step)

    def forget_before(self, first: int, step: int) -> None:
        """Forget, in update ``step``, who was last pushed before update ``first``."""
        slots = self._index.used_slots()
        ids = self._index.ids_of(slots[self._last_pushed[slots] < first])
        if ids.size:
            self._index.remove(ids)
            self.forgotten.add(ids, step, self._pushes.size)


class Evictions:
    """Which ids have gone, for a reader that knows an older state."""

    def __init__(self) -> None:
        """Start before any has gone."""
        self._first = NEVER  # nothing is missing for a reader that knows this update, or a later one
        self._logged: list[tuple[int, Array]] = []  # (number of the update, ids)
        self._num_ids = 0

    def add(self, ids: Array, step: int, most: int) -> None:
        """Note that rows have gone; of more than ``most`` the older ones are forgotten."""
        self._logged.append((step, ids))
        self._num_ids += ids.size
        while self._num_ids > most:
            self._first, forgotten = self._logged.pop(0)
            self._num_ids -= forgotten.size

    def since(self, step: int) -> Array | None:
        """Return the ids of rows that have gone since an update; ``None`` if some are forgotten."""
        if step < self._first:
            return None
        news = [ids for number, ids in self._logged if number > step]
        gone: Array = np.unique(np.concatenate(news)) if news else np.empty(0, np.int64)
        return gone


def grown(array: Array, length: int) -> Array:
    """Return a longer array with the same beginning; what is beyond has any content, and no memory yet."""
    longer: Array = np.empty((length, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
