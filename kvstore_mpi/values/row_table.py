"""Tables whose rows come into being when they are first pushed, and go when they are not used any more.

A row that is not there reads as its initial value, which can be made again at any time (``row_init``), so
that reading needs no memory, and changes nothing. Only pushes create rows, and only they count as a use:
their order is the same in every run of a synchronous store, that of reads is not. So the same pushes leave
the same rows.

Memory is for the rows there are: the arrays double when they are full, which copies each row once more on
average, and takes half as much again for as long as it lasts; under a cap they never hold more rows than
that. This file must not know what an update does to a row, or what travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import FREQUENT, RECENT
from kvstore_mpi.values.row_candidates import NEVER, Candidates, Evictions, grown
from kvstore_mpi.values.row_index import ABSENT, RowIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.records import Retention

    Array = np.ndarray[Any, Any]

_FIRST_ROWS = 64

_PART = 16
"""Eviction makes room for this part of the cap at least, and rows that are too old are sought this many
times in a lifetime: both look at all rows."""

_MOST_USES = (1 << 23) - 1
_USES_SHIFT = 40


class Changes(NamedTuple):
    """What has happened to a table since some update.

    Attributes:
        ids: What was pushed, in no order; as ``RowTable.content`` has it.
        last_used: Update of the last push of each.
        uses: Number of pushes of each.
        slots: Where they are; ``ABSENT`` of ids that wait to be admitted.
        evicted: Ids that went, whether they were rows or waited, and are not there again; ascending.
    """

    ids: Array
    last_used: Array
    uses: Array
    slots: Array
    evicted: Array


_MOST = 2**63 - 1


def check_retention(retention: Retention) -> None:
    """Raise where rows cannot be kept like that.

    Raises:
        UsageError: A number is none, or negative, or the word is not one of those there are.
    """
    given = (retention.max_rows, retention.max_age, retention.admit_after)
    # By the very type: what a message cannot carry would end the job as a network that is lost.
    if any(type(each) is not int or each > _MOST for each in given):
        raise UsageError(f"{retention}: the numbers must be whole numbers, such as 10**6, below 2**63")
    if min(retention.max_rows, retention.max_age, retention.admit_after - 1) < 0:
        raise UsageError(
            f"{retention}: the numbers must not be negative, and the first push is the first that can admit"
        )
    if retention.keep not in {RECENT, FREQUENT}:
        raise UsageError(f"keep={retention.keep!r}: a full table keeps {RECENT!r} or {FREQUENT!r} rows")


class RowTable:
    """Some rows out of a large range, their values and optimizer states.

    ``values`` and ``states`` are tables by slot, to be updated in place; they are others after ``touch``,
    ``insert`` or ``set_states``.

    Attributes:
        values: (slots, width).
        states: (slots, its own width) each; zero for new rows.
    """

    def __init__(
        self,
        width: int,
        dtype: np.dtype[Any],
        initial: Callable[[Array], Array],
        retention: Retention,
    ) -> None:
        """Start without rows.

        Args:
            width: Elements of a row.
            dtype: Of the values.
            initial: Gives the initial values of ids, (ids, width) of this type.
            retention: One that ``check_retention`` lets pass.
        """
        self._initial = initial
        self._retention = retention
        self._index = RowIndex()
        self._candidates = Candidates(retention.admit_after)
        self._evictions = Evictions()
        self._step = 0
        self._last_used: Array = np.empty(0, np.int64)  # by slot; NEVER where it is free
        self._uses: Array = np.empty(0, np.int32)
        self.values: Array = np.empty((0, width), dtype)
        self.states: tuple[Array, ...] = ()

    def __len__(self) -> int:
        """Return the number of rows there are."""
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        """Memory for rows, states and what is known about them."""
        arrays = (self.values, *self.states, self._last_used, self._uses)
        return sum(array.nbytes for array in arrays) + self._index.num_bytes + self._candidates.num_bytes

    # --- rows ---

    def slots(self, ids: Array) -> Array:
        """Return where rows are, ``ABSENT`` for those that are not there."""
        return self._index.lookup(ids)

    def read(self, ids: Array) -> Array:
        """Return a copy of rows, (ids, width); of those that are not there, the initial values.

        Args:
            ids: int64, 1-D, not negative; in any order, and they may be repeated.
        """
        slots = self._index.lookup(ids)
        absent = np.flatnonzero(slots == ABSENT)
        if absent.size == ids.size:
            return self._initial(ids)
        out: Array = np.empty((ids.size, self.values.shape[1]), self.values.dtype)
        np.take(self.values, slots, axis=0, out=out, mode="clip")
        if absent.size:
            out[absent] = self._initial(ids[absent])
        return out

    def touch(self, ids: Array, step: int) -> Array:
        """Return the slots of rows that an update is for, making those that are not there yet.

        Where a row is not admitted, its slot is ``ABSENT``, and its gradient is to be dropped.

        Args:
            ids: int64, 1-D, not negative, not repeated.
            step: Number of the update; never less than the last one.

        Raises:
            UsageError: The table may not have as many rows; none has come or been updated.
        """
        retention = self._retention
        self._step = step
        self._expire()
        slots = self._index.lookup(ids)
        if 0 < retention.max_rows < ids.size:
            self._check_room(ids[slots == ABSENT], ids.size)
        there = slots[slots != ABSENT]
        self._last_used[there] = step
        self._uses[there] += self._uses[there] < _MOST_USES
        new = np.flatnonzero(slots == ABSENT)
        if new.size:
            admitted = new[self._candidates.admit(ids[new], step, len(self._index))]
            self._make_room(admitted.size)
            made = self._create(ids[admitted], step, retention.admit_after)
            self.values[made] = self._initial(ids[admitted])
            slots[admitted] = made
        return slots

    def _check_room(self, new: Array, num_pushed: int) -> None:
        """Raise where a push has more rows than there may be; ids that are not admitted are none."""
        num_rows = num_pushed - new.size + self._candidates.num_admitted(new)
        if num_rows > self._retention.max_rows:
            raise UsageError(
                f"a push has {num_rows} rows of a piece of a table that may keep "
                f"{self._retention.max_rows} in each; raise the bound"
            )

    def are_new(self, slots: Array) -> Array:
        """Return of rows that the last ``touch`` was for whether it has made them."""
        # The push that admits a row is its last one without it; of others it was one more.
        made: Array = self._uses[slots] == self._retention.admit_after
        return made

    def insert(self, ids: Array, last_used: Array, uses: Array) -> Array:
        """Take up what ``content`` of another table was; return the slots of rows, to be filled.

        Args:
            ids: int64, 1-D, not negative, not repeated, none of which is there.
            last_used: Number of the update that each was last pushed for.
            uses: Number of pushes of each; those that are too few to be admitted go on waiting.
        """
        slots = np.full(ids.size, ABSENT, np.int64)
        rows = uses >= self._retention.admit_after
        slots[rows] = self._create(ids[rows], last_used[rows], uses[rows])
        self._candidates.insert(ids[~rows], last_used[~rows], uses[~rows])
        return slots

    def _create(self, ids: Array, last_used: Array | int, uses: Array | int) -> Array:
        slots = self._index.create(ids)
        self._grow()
        for state in self.states:
            state[slots] = 0  # also of the row that had the slot before
        self._last_used[slots] = last_used
        self._uses[slots] = uses
        return slots

    def set_states(self, widths: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Give all rows states of zeros, instead of those that they have."""
        self.states = tuple(np.zeros((len(self.values), width), dtype) for width in widths)

    def _grow(self) -> None:
        """Make the arrays long enough for all slots."""
        used, capacity = self._index.num_slots, len(self.values)
        if used <= capacity:
            return
        capacity = max(used, 2 * capacity, _FIRST_ROWS)
        if self._retention.max_rows:
            capacity = max(used, min(capacity, self._retention.max_rows))
        self.values = grown(self.values, capacity)
        self.states = tuple(grown(state, capacity) for state in self.states)
        free = len(self._last_used)
        self._last_used = grown(self._last_used, capacity)
        self._last_used[free:] = NEVER
        self._uses = grown(self._uses, capacity)

    # --- eviction ---

    def _expire(self) -> None:
        """Let rows go that have not been used for too long."""
        age = self._retention.max_age
        # By the number of the update alone, so that a server that was started again does the same.
        if not age or self._step % max(1, age // _PART):
            return
        slots = self._index.used_slots()
        self._evict(slots[self._last_used[slots] < self._step - age])
        self._candidates.forget_before(self._step - age, self._step)

    def _make_room(self, count: int) -> None:
        """Let rows go, none of which this update is for, until there is room for others."""
        cap = self._retention.max_rows
        if not cap or len(self._index) + count <= cap:
            return
        slots = self._index.used_slots()
        slots = slots[self._last_used[slots] < self._step]
        excess = len(self._index) + count - cap
        # More than has to go, as finding them costs a look at all rows.
        excess = min(slots.size, max(excess, cap // _PART))
        self._evict(slots[self._least(slots, excess)])

    def _least(self, slots: Array, count: int) -> Array:
        """Return which rows are worth least, by their places among ``slots``; ids decide between equals."""
        worth = self._last_used[slots]
        if self._retention.keep == FREQUENT:
            worth += self._uses[slots].astype(np.int64) << _USES_SHIFT
        bound = np.partition(worth, count - 1)[count - 1]
        below, equal = np.flatnonzero(worth < bound), np.flatnonzero(worth == bound)
        by_id = np.argsort(self._index.ids_of(slots[equal]))
        return np.concatenate([below, equal[by_id[: count - below.size]]])

    def _evict(self, slots: Array) -> None:
        if slots.size:
            ids = np.sort(self._index.ids_of(slots))
            self._index.remove(ids)
            self._last_used[slots] = NEVER
            self._evictions.add(ids, self._step, len(self.values))

    # --- content ---

    def content(self) -> tuple[Array, Array, Array, Array]:
        """Return what ``insert`` needs: ids, update of the last push, number of pushes; and the slots.

        Slots are ``ABSENT`` of ids that wait to be admitted.
        """
        return self._described(self._index.used_slots(), self._candidates.content())

    def _described(
        self, slots: Array, waiting: tuple[Array, Array, Array]
    ) -> tuple[Array, Array, Array, Array]:
        rows = (self._index.ids_of(slots), self._last_used[slots], self._uses[slots])
        ids, last_used, uses = map(np.concatenate, zip(rows, waiting))
        return ids, last_used, uses, np.append(slots, np.full(ids.size - slots.size, ABSENT))

    def changes(self, since: int) -> Changes | None:
        """Return what updates after one with a number have changed; ``None`` if that is not known any more.

        What is known goes back to the beginning, or until as many rows have gone as the arrays can hold.
        """
        evicted, forgotten = self._evictions.since(since), self._candidates.forgotten.since(since)
        if evicted is None or forgotten is None:
            return None
        gone = np.union1d(evicted, forgotten)
        gone = gone[(self._index.lookup(gone) == ABSENT) & ~self._candidates.has(gone)]
        slots = np.flatnonzero(self._last_used > since)
        return Changes(*self._described(slots, self._candidates.content(since)), gone)
