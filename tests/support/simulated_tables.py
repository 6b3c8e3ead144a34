"""A table on one worker of a simulated job: as a key of which every third row is never pushed.

What must be true of its rows is what must be true of a key's elements; see ``simulated_key``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import Rows
from support.seeds import check
from support.simulated_key import GARBAGE, KeyRun

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Done
    from support.simulated_plan import KeyPlan, Plan
    from support.simulated_shells import Program, SimulatedWorker

Array = np.ndarray[Any, Any]


class TableRun(KeyRun):
    """One table on one worker; its rows have one element, so that its mirror is a key's buffer."""

    def __init__(self, worker: SimulatedWorker, key: KeyPlan, plan: Plan) -> None:
        """Allocate the mirror."""
        super().__init__(worker, key, plan)
        self._untouched = np.arange(key.size) % 3 == 2
        self._summed: list[Rows] = []

    def init(self) -> Program:
        """Create the table; the mirror is then as the servers have it."""
        ending = self._begin()
        value = self._buffer.reshape(-1, 1)
        partitions = min(self.key.partitions, self.key.size)
        self.worker.init_rows(
            0, self.key.name, value.shape, self.key.dtype, value, ending.append, partitions=partitions
        )
        yield lambda: bool(ending)
        self._look(0)

    def round(self, number: int) -> Program:
        """Do what is planned for a round."""
        ids = np.flatnonzero(~self._untouched)
        values = self._values.pushed(self.worker.rank, number)[ids].astype(self.key.dtype)
        rows = Rows(ids, values.reshape(-1, 1))
        kinds = self.key.kinds[self.worker.client][number]
        for kind in kinds.split():
            if kind != "pull" or self.worker.num_servers:  # without servers a push brings the sum
                last = self._operate_on_rows(kind, rows)
        yield lambda: bool(last)
        rows.values[...] = GARBAGE
        if "pull" in kinds:
            self._take()
            self._look(number + 1)

    def _operate_on_rows(self, kind: str, rows: Rows) -> list[BaseException | None]:
        ending, out = self._begin(), self._summed
        worker, name, priority = self.worker, self.key.name, self.key.priority
        done: Done = ending.append
        if kind == "push" and worker.num_servers:
            worker.push_rows(0, name, rows, priority, done)
        elif kind == "pull":
            worker.pull_rows(0, name, priority, done, out)
        else:
            worker.pushpull_rows(0, name, rows, priority, done, out)
        return ending

    def _take(self) -> None:
        """Put what has come into the mirror."""
        if not self.worker.num_servers:
            self._buffer[...] = 0
        for ids, values in self._summed:
            self._buffer[ids] = values[:, 0]
        self._summed.clear()

    def last_look(self, rounds: int) -> Program:
        """Pull what has changed since the last time, and some rows by their ids: both have everything."""
        if not self.worker.num_servers:
            return
        ending = self._operate_on_rows("pull", Rows(np.empty(0, np.int64), np.empty((0, 1))))
        again: list[Rows] = []
        ids = np.arange(0, self.key.size, 2)
        asked = self._begin()
        self.worker.pull_rows(0, self.key.name, 0, asked.append, again, ids)
        yield lambda: bool(ending) and bool(asked)
        self._take()
        if self.worker.failure() is None:
            for some, values in again:
                check(np.array_equal(self._buffer[some], values[:, 0]), f"{self}: rows differ by their ids")
        self._look(rounds)
        self._check_counts(rounds)

    def _look(self, pushed: int) -> None:
        """Check that rows which nobody pushes are as they were, or zero in a sum; and the others."""
        if self.worker.failure() is not None:
            return
        mirror = self._buffer.copy()
        untouched = self._values.initial() if self._updates or not pushed else 0 * self._values.initial()
        check(np.array_equal(mirror[self._untouched], untouched[self._untouched]), f"{self}: {mirror}")
        # What these rows would be if they were pushed as the others are: by the first row, which is.
        self._buffer[self._untouched] = self._as_pushed(mirror[0], pushed)[self._untouched]
        super()._look(pushed)
        self._buffer[...] = mirror

    def _as_pushed(self, first: Any, pushed: int) -> Array:
        """Return what all rows are where the first one is ``first`` after a number of pushes."""
        signs = self._values.pushed(0, 0) // abs(self._values.pushed(0, 0)[0])
        initial = self._values.initial()
        if not pushed and not self._updates:
            return initial
        rows: Array = initial + (first - initial[0]) * signs if self._updates else first * signs
        return rows
