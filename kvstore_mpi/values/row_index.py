"""Where the rows of a table are that come into being when they are first used: ids, and slots in memory.

The ids of such a table are any numbers below 2**63, of which few are ever used. Memory is for these: 25 to
35 bytes for each, whatever the range of the ids.

A query is answered by a few passes over all its ids, without Python for each. With ascending ids out of
10**8, ns for each id on one core of a virtual machine, the best of seven::

    rows   ids asked   found   absent   created   searchsorted   dict
    10**4      10**4      10       14        37             10     30
    10**5      10**5      16       28        42             12     75
    10**6      10**4      18       19        38             57    618
    10**6      10**6      38       52        37             15    254

``searchsorted`` needs the ids sorted, so that one new row moves half of the others. This file must not know
what is in a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvstore_mpi.errors import UsageError

Array = np.ndarray[Any, Any]

ABSENT = -1
"""Stands for the slot of an id that has none."""

_REMOVED = -2
"""In the table: an id was here, and those that came after it may be further along their ways."""

_NO_ID = -1

_SMALLEST = 64
_MAX_LOAD = 0.45
"""Part of the table that may be occupied: half of the queries for absent ids end at the first look."""

_BLOCK = 1 << 14
"""Ids that are looked up at a time: what is remembered for them stays in the cache."""

_MAX_SLOTS = np.iinfo(np.int32).max

_FIRST_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_SECOND_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class RowIndex:
    """Slots of ids: numbers from 0 on, those of ids that were removed being given again.

    The slots depend on the calls alone, and on the order of ids in them, not on where ids hash to.

    Attributes:
        num_slots: Bound on the slots that have ever been given.
    """

    def __init__(self) -> None:
        """Start without ids."""
        self.num_slots = 0
        self._size = 0
        self._occupied = 0  # places of the table with a slot, or where one was
        self._table: Array = np.full(_SMALLEST, ABSENT, np.int32)
        # By slot. Two more than there can be slots, so that ABSENT and _REMOVED, counted from the end, are
        # places too, where no id ever is: one comparison then tells whether a place has the id.
        self._ids: Array = np.full(_SMALLEST + 2, _NO_ID, np.int64)
        self._free: Array = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Return the number of ids that have a slot."""
        return self._size

    @property
    def num_bytes(self) -> int:
        """Memory that is in use."""
        return int(self._table.nbytes + self._ids.nbytes + self._free.nbytes)

    def lookup(self, ids: Array) -> Array:
        """Return the slot of each id, ``ABSENT`` where it has none.

        Args:
            ids: int64, 1-D, not negative; in any order, and they may be repeated.
        """
        slots: Array = np.empty(ids.size, np.int64)
        for lo in range(0, ids.size, _BLOCK):
            self._find(ids[lo : lo + _BLOCK], slots[lo : lo + _BLOCK])
        return slots

    def create(self, ids: Array) -> Array:
        """Return new slots for ids that have none yet; those of removed ids first, in ascending order.

        Args:
            ids: int64, 1-D, not negative, not repeated, none of which has a slot.

        Raises:
            UsageError: There would be more than 2**31 slots.
        """
        count = ids.size
        slots = self._take_slots(count)
        if self._occupied + count > len(self._table) * _MAX_LOAD:
            self._rehash(self._size + count)
        self._ids[slots] = ids
        self._put(ids, slots)
        self._size += count
        return slots

    def remove(self, ids: Array) -> Array:
        """Take the slots of ids away, and return them.

        Args:
            ids: int64, 1-D, not repeated, all of which have a slot.
        """
        slots = self.lookup(ids)
        assert slots.size == 0 or slots.min() >= 0, "an id without a slot cannot be removed"
        places = self._places_of(slots, ids)
        self._table[places] = _REMOVED
        self._ids[slots] = _NO_ID
        self._free = np.sort(np.concatenate([self._free, slots]))
        self._size -= ids.size
        return slots

    def ids_of(self, slots: Array) -> Array:
        """Return the ids of slots, -1 where one is free."""
        ids: Array = self._ids[slots]
        return ids

    def used_slots(self) -> Array:
        """Return all slots that have an id, in ascending order."""
        used: Array = np.flatnonzero(self._ids[: self.num_slots] != _NO_ID)
        return used

    # --- the table ---

    def _find(self, ids: Array, slots: Array) -> None:
        """Fill ``slots`` with those of ids."""
        places = self._first_places(ids)
        found = self._table.take(places)
        slots[:] = found
        pending = np.flatnonzero(self._ids.take(found, mode="wrap") != ids)
        pending = pending[found[pending] != ABSENT]
        step = 0
        while pending.size:
            step += 1
            places[pending] = onward = self._next_places(places[pending], step)
            found = self._table[onward]
            slots[pending] = found
            pending = pending[(self._ids[found] != ids[pending]) & (found != ABSENT)]

    def _places_of(self, slots: Array, ids: Array) -> Array:
        """Return where in the table slots stand."""
        places = self._first_places(ids)
        pending = np.flatnonzero(self._table[places] != slots)
        step = 0
        while pending.size:
            step += 1
            places[pending] = onward = self._next_places(places[pending], step)
            pending = pending[self._table[onward] != slots[pending]]
        return places

    def _put(self, ids: Array, slots: Array) -> None:
        """Enter slots into the table, which has room, and where none of the ids is."""
        places = self._first_places(ids)
        entries = slots.astype(np.int32)
        step = 0
        while entries.size:
            before = self._table[places]
            vacant = before < 0
            self._table[places[vacant]] = entries[vacant]
            # Of several ids for one place the last one written has it; the others go on.
            waiting = self._table[places] != entries
            self._occupied += int(np.count_nonzero(~waiting & (before == ABSENT)))
            step += 1
            places = self._next_places(places[waiting], step)
            entries = entries[waiting]

    def _first_places(self, ids: Array) -> Array:
        """Hash ids to places: two rounds, as ids that are dealt to servers have regular gaps."""
        hashed: Array = ids.view(np.uint64) * _FIRST_FACTOR
        hashed ^= hashed >> _HALF
        hashed *= _SECOND_FACTOR
        hashed >>= np.uint64(65 - len(self._table).bit_length())
        places: Array = hashed.view(np.int64)
        return places

    def _next_places(self, places: Array, step: int) -> Array:
        # Steps that grow by one reach every place of a table whose size is a power of two, and part ids
        # whose ways have crossed; the longest way decides over the number of passes.
        onward: Array = (places + step) & (len(self._table) - 1)
        return onward

    def _rehash(self, wanted: int) -> None:
        """Make a table with room for ids to come, and without the places of removed ones."""
        # At most 0.3 of it, so that the next time is not before the ids have grown by half, or as many
        # have been removed and created.
        size = _SMALLEST
        while size * _MAX_LOAD < wanted * 1.5:
            size *= 2
        self._table = np.full(size, ABSENT, np.int32)
        self._occupied = 0
        slots = self.used_slots()
        self._put(self._ids[slots], slots)

    # --- slots ---

    def _take_slots(self, count: int) -> Array:
        reused = self._free[:count]
        fresh = count - reused.size
        if self.num_slots + fresh > _MAX_SLOTS:
            raise UsageError(
                f"a piece of a table would have more than {_MAX_SLOTS} rows; use more partitions"
            )
        self._free = self._free[count:]
        slots: Array = np.concatenate([reused, np.arange(self.num_slots, self.num_slots + fresh)])
        self.num_slots += fresh
        if self.num_slots + 2 > len(self._ids):
            grown: Array = np.full(max(self.num_slots, 2 * len(self._ids)) + 2, _NO_ID, np.int64)
            # Not the two at its end, which are where the table's marks point to.
            grown[: self.num_slots - fresh] = self._ids[: self.num_slots - fresh]
            self._ids = grown
        return slots
