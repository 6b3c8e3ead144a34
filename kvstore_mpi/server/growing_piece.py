"""A piece of a table whose rows come into being when they are first pushed: memory is for those alone.

Rows of float16 rest in float32, as the weights of an optimizer with multi-precision do: there are few of
them. What workers ask for is made now, and remembered nowhere. Knows nothing of messages or peers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.server.snapshot_records import GONE, LAST_USED, PLACES, UPDATES, USES, VALUE
from kvstore_mpi.server_optimizers import MissedSteps, state_widths, update_rows
from kvstore_mpi.values.coding import RAW
from kvstore_mpi.values.row_index import ABSENT
from kvstore_mpi.values.row_init import initial_rows
from kvstore_mpi.values.row_payloads import CHANGED
from kvstore_mpi.values.row_table import RowTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvstore_mpi.interfaces import Hyper, ServerOptimizer
    from kvstore_mpi.records import Growth, RowInit, Rows
    from kvstore_mpi.server.changed_rows import Mark
    from kvstore_mpi.values.row_sparse import RowSparse
    from kvstore_mpi.values.row_table import Changes

    Array = np.ndarray[Any, Any]


_PART = 1 << 14
"""Rows that go over to another piece at a time."""


class GrowingPiece:
    """One piece.

    Attributes:
        rows: By their places in the piece.
    """

    def __init__(self, layout: RowSparse, number: int, growth: Growth, version: int) -> None:
        """Start without rows.

        Args:
            layout: Of the table.
            number: Of the piece.
            growth: Of the table.
            version: The first one of this server's life.
        """
        self._layout = layout
        self._number = number
        self._version = version
        self._num_updates = 0
        self._has_states = False
        self._life = object()  # of the states: marks of another one say nothing
        self._missed: MissedSteps | None = None  # of rows that are there, if updates are exact
        self._num_slots = 0  # of which that knows
        dtype = np.dtype(np.float32) if layout.dtype == np.float16 else layout.dtype
        # The cap is held by every piece: a part of the rows of the table, rounded down.
        retention = growth.retention._replace(max_rows=growth.retention.max_rows // layout.partitions)
        # No method of this piece: each would keep the other, and their memory, until somebody collects.
        initial = partial(_initial, layout, number, growth.init, dtype)
        self.rows = RowTable(layout.width, dtype, initial, retention)

    def payload(self, request: Any) -> memoryview:
        """Return the rows that a worker asks for by their places, or all that are there."""
        places: Array | None = None
        coding = RAW
        if request is not None:
            asked = self._layout.unpack(request)
            coding = asked.coding
            # A request by version is answered by all rows that it can be about: which have changed, nothing
            # here remembers.
            places = asked.places.astype(np.int64) if asked.form != CHANGED else None
        if places is None:
            ids, _, _, slots = self.rows.content()
            # Without those that wait to be admitted, which have no values; and ascending, as places travel.
            places = np.sort(ids[slots != ABSENT])
        if self._missed is not None:
            # Before they are read: rows without a gradient of late are where they were at their last one.
            self._catch_up(self.rows.slots(places))
        rows = self.rows.read(places)
        return self._layout.pack(self._version, self._layout.places(places), rows, coding=coding)

    def update(
        self, merged: Rows, optimizer: ServerOptimizer, hyper: Hyper, count: int, *, exact: bool
    ) -> None:
        """Update rows, making those that are new; gradients of rows that are not admitted are dropped.

        Args:
            merged: The gradients, by places.
            optimizer: What ``build_for_rows`` returned.
            hyper: The numbers of this update.
            count: Number of the update.
            exact: Steps without a gradient are made up for, from when a row came into being.

        Raises:
            UsageError: More rows than the piece may have.
        """
        # Not ``count``, which begins anew with another optimizer: rows grow old by what is counted here.
        self._num_updates += 1
        self._version += 1
        # This counts, also for rows that are not admitted yet: by their uses they will be.
        slots = self.rows.touch(merged.ids, self._num_updates)
        gradients = merged.values
        if (slots == ABSENT).any():
            admitted = np.flatnonzero(slots != ABSENT)
            slots, gradients = slots[admitted], gradients[admitted]
        # Only now: the optimizer may come after the table, and it says how wide the states are.
        if not self._has_states:
            values = self.rows.values
            self.rows.set_states(state_widths(optimizer, self._layout.width, values.dtype), values.dtype)
            self._has_states = True
            self._life = object()
        rows = self.rows
        # Rows that are lazy have missed nothing that would have to be made up for.
        if exact:
            self._make_up(optimizer, slots)
        update_rows(optimizer, rows.values, slots, gradients, rows.states, hyper=hyper, count=count)
        if self._missed is not None:
            self._missed.note(slots, hyper)

    def _make_up(self, optimizer: ServerOptimizer, slots: Array) -> None:
        """Bring rows to where the piece is, before an exact update; new ones have missed nothing."""
        num_slots = len(self.rows.values)
        if self._missed is None:
            self._missed, self._num_slots = MissedSteps(optimizer, num_slots), num_slots
        # The table has made room: what is noted of missed steps must reach as far.
        if num_slots > self._num_slots:
            self._missed.grow(num_slots)
            self._num_slots = num_slots
        # A slot may have been that of a row that has gone, perhaps in this update, and perhaps of the same
        # id: the steps which that one had missed are not the new one's.
        self._missed.renew(slots[self.rows.are_new(slots)])
        self._catch_up(slots)

    def _catch_up(self, slots: Array) -> None:
        if self._missed is not None:
            self._missed.catch_up(self.rows.values, self.rows.states, slots[slots != ABSENT])

    def forget_states(self) -> None:
        """The store has another update rule: states begin anew."""
        # By the rule that is given up, whose steps they are.
        # Of all rows, as the steps that they have missed go with the rule.
        self._catch_up(self.rows.content()[3])
        self._missed = None
        self._life = object()
        # Made anew at the next update: states of another rule may have another width.
        self._has_states = False

    def _mismatch(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"of key {self._layout.key!r} piece {self._number}: {what}")

    # --- another cut ---

    def deal(self, layout: RowSparse, pieces: Mapping[int, GrowingPiece]) -> None:
        """Give copies of all rows, with what is known of them, to the pieces of another cut.

        Args:
            layout: Of that cut.
            pieces: All that have any of the rows, by ``lo``; perhaps with rows of other pieces already.
        """
        places, last_used, uses, slots = self.rows.content()
        # What rows have missed is noted here alone.
        self._catch_up(slots)
        for piece in pieces.values():
            piece._go_on_as(self)  # noqa: SLF001  of the same class
        order = np.argsort(places)
        for number, which, theirs in layout.deal(self._layout.ids_of(self._number, places[order])):
            chosen = order[which]
            if chosen.size:
                other = pieces[2 * number].rows
                taken = other.insert(theirs.astype(np.int64), last_used[chosen], uses[chosen])
                # Those that wait to be admitted have no values, in either place.
                self._copy(slots[chosen][slots[chosen] != ABSENT], other, taken[taken != ABSENT])

    def _copy(self, slots: Array, other: RowTable, taken: Array) -> None:
        """Copy rows from some slots to those that were taken for them."""
        for new, old in zip((other.values, *other.states), (self.rows.values, *self.rows.states)):
            # In parts, or what is on its way would take as much memory again.
            for lo in range(0, slots.size, _PART):
                new[taken[lo : lo + _PART]] = old[slots[lo : lo + _PART]]

    def _go_on_as(self, other: GrowingPiece) -> None:
        """Count updates and have states as another piece, since all of a table are updated alike."""
        self._num_updates = max(self._num_updates, other._num_updates)
        if other._has_states and not self._has_states:
            states = other.rows.states
            self.rows.set_states([state.shape[1] for state in states], self.rows.values.dtype)
            self._has_states = True

    # --- snapshots ---

    def mark(self) -> Mark:
        """Return what stands for the rows as they are now; see ``changes``."""
        return self._life, self._num_updates

    def changes(self, mark: Mark | None) -> Changes | None:
        """Return what has changed since a mark; ``None`` if everything may have."""
        # An exact step moves rows that no push is for.
        if mark is None or mark[0] is not self._life or self._missed is not None:
            return None
        # By the count of updates, with which rows are stamped as they are touched.
        return self.rows.changes(mark[1])

    def num_bytes(self, mark: Mark | None) -> int:
        """Return about how many bytes ``contents`` has."""
        changes = self.changes(mark)
        row_bytes = sum(each.shape[1] * each.itemsize for each in (self.rows.values, *self.rows.states))
        return (len(self.rows) if changes is None else int((changes.slots != ABSENT).sum())) * row_bytes

    def contents(self, mark: Mark | None = None) -> Iterator[tuple[int, Array]]:
        """Yield copies of all arrays, flat, and the number of each; or of what changed since a mark."""
        changes = self.changes(mark)
        # Also of rows that wait to be admitted: their pushes would otherwise be counted from the start
        # again.
        places, last_used, uses, slots = self.rows.content() if changes is None else changes[:4]
        slots = slots[slots != ABSENT]
        self._catch_up(slots)
        # The value first, and states last: the check of a header wants this order.
        yield VALUE, self.rows.values[slots].reshape(-1)
        yield UPDATES, np.array([self._num_updates])
        yield PLACES, places
        yield LAST_USED, last_used
        yield USES, uses
        if changes is not None:
            yield GONE, changes.evicted
        for index, state in enumerate(self.rows.states if self._has_states else ()):
            yield index, state[slots].reshape(-1)

    def restore(self, arrays: Mapping[int, Array]) -> None:
        """Take the arrays that another server had.

        Raises:
            ConfigurationError: They cannot be those of such a piece.
        """
        self._num_updates = int(arrays[UPDATES][0])
        places, last_used, uses = arrays[PLACES], arrays[LAST_USED], arrays[USES]
        ascending = np.sort(places)
        # The index takes each place once, and a row of a later time would not grow old.
        inside = not places.size or 0 <= ascending[0] <= ascending[-1] < self._layout.rows_of(self._number)
        if not inside or (ascending[1:] == ascending[:-1]).any() or (last_used > self._num_updates).any():
            raise self._mismatch("its rows are not rows of it, or are from a later time")
        # Rows that wait to be admitted take no slot, and have no values.
        slots = self.rows.insert(places, last_used, uses)
        slots = slots[slots != ABSENT]
        if slots.size * self._layout.width != arrays[VALUE].size:
            raise self._mismatch(f"{slots.size} rows are there, and the values of others")
        self.rows.values[slots] = arrays[VALUE].reshape(slots.size, self._layout.width)
        if not slots.size:
            return  # states of no rows are as good as none, and do not say how wide they are
        # States are numbered from 0, and everything else below: there are fewer of them than arrays.
        states = [arrays[index].reshape(slots.size, -1) for index in range(len(arrays)) if index in arrays]
        self._has_states = bool(states)
        self.rows.set_states([state.shape[1] for state in states], self.rows.values.dtype)
        for state, saved in zip(self.rows.states, states):
            state[slots] = saved


def _initial(layout: RowSparse, number: int, init: RowInit, dtype: np.dtype[Any], places: Array) -> Array:
    """Return how rows of a piece begin: by ids, which are the same however the table is cut."""
    return initial_rows(init, layout.ids_of(number, places), layout.width, dtype)
