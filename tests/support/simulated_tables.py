"""A table on one worker of a simulated job, of which every rank pushes other rows in every round, or none.

What must be true of its rows is what must be true of a key's elements; see ``simulated_key``.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import Growth, RowInit, Rows
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
        self._plan = plan
        self._came: list[Rows] = []
        self._seen: list[Array] = []
        self._pieces = min(key.partitions, key.size)
        # Before which round it is cut anew, into how many pieces: by what all workers know.
        self._cuts: dict[int, int] = {}
        servers, choose = plan.topology.num_servers, random.Random(f"{plan.seed} {key.name} cuts")
        if key.grows and plan.mode == "sync" and key.size >= servers:
            self._pieces = servers
            most = key.size // servers
            self._cuts = {
                each: servers * choose.randint(1, most)
                for each in range(plan.rounds)
                if choose.getrandbits(1)
            }

    # --- what is pushed ---

    def _ids(self, rank: int, number: int) -> Array:
        """Return which rows a worker pushes in a round: all, some or none."""
        choose = random.Random(f"{self._plan.seed} {self.key.name} {rank} {number}")
        share = choose.choice([0.0, 0.5, 0.5, 1.0])
        return np.flatnonzero([choose.random() < share for _ in range(self.key.size)])

    def _pushed(self, ranks: range, rounds: range) -> Array:
        """Return the sum of what some workers push in some rounds."""
        total: Array = np.zeros(self.key.size, np.int64)
        for rank in ranks:
            for number in rounds:
                ids = self._ids(rank, number)
                total[ids] += self._values.pushed(rank, number)[ids]
        return total

    # --- what is called ---

    def init(self) -> Program:
        """Create the table; the mirror is then as the servers have it."""
        yield from self._make(self._pieces)
        self._look(0)

    def _make(self, pieces: int, **how: Any) -> Program:
        ending = self._begin()
        value: Array | None = self._buffer.reshape(-1, 1)
        growth = None
        if self.key.grows:
            self._buffer[...] = self._values.initial()
            value, growth = None, Growth(RowInit("constant", float(self._values.initial()[0])))
        self.worker.init_rows(
            0,
            self.key.name,
            (self.key.size, 1),
            self.key.dtype,
            value,
            ending.append,
            partitions=pieces,
            growth=growth,
            **how,
        )
        yield lambda: bool(ending)

    def round(self, number: int) -> Program:
        """Do what is planned for a round."""
        if number in self._cuts and self.worker.failure() is None:
            yield from self._make(self._cuts[number], anew=True)
            self.first_round = number
        ids = self._ids(self.worker.rank, number)
        values = self._values.pushed(self.worker.rank, number)[ids].astype(self.key.dtype)
        rows = Rows(ids, values.reshape(-1, 1))
        if not self.worker.num_servers:
            self._came.clear()  # the sum of a round before, which nobody has looked at
        kinds = self.key.kinds[self.worker.client][number]
        if self.key.grows:
            kinds = kinds.replace("pushpull", "push pull")  # nobody knows what has changed
        for kind in kinds.split():
            if kind != "pull" or self.worker.num_servers:  # without servers a push brings the sum
                last = self._operate_on_rows(kind, rows)
        yield lambda: bool(last)
        if number in self._cuts and self.worker.failure() is None:
            self.worker.release_rows(0, self.key.name)
        rows.values[...] = GARBAGE
        if "pull" in kinds:
            self._take()
            self._look(number + 1)

    def _operate_on_rows(self, kind: str, rows: Rows) -> list[BaseException | None]:
        ending, out = self._begin(), self._came
        worker, name, priority = self.worker, self.key.name, self.key.priority
        done: Done = ending.append
        if kind == "push" and worker.num_servers:
            worker.push_rows(0, name, rows, priority, done)
        elif kind == "pull":
            ids = np.arange(self.key.size) if self.key.grows else None
            worker.pull_rows(0, name, priority, done, out, ids)
        else:
            worker.pushpull_rows(0, name, rows, priority, done, out)
        return ending

    def _take(self) -> None:
        """Put what has come into the mirror."""
        if not (self.worker.num_servers and self._updates):
            self._buffer[...] = 0  # a sum came
        for ids, values in self._came:
            self._buffer[ids] = values[:, 0]
        self._came.clear()

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
            if self._updates:
                everything = self._pushed(range(self._plan.topology.num_workers), range(rounds))
                left = self._values.initial() - everything
                check(np.array_equal(self._buffer, left), f"{self}: pushes are missing")

    # --- what must be true ---

    def _look(self, pushed: int) -> None:
        """Check the rows that this worker sees after ``pushed`` pushes of its client."""
        if self.worker.failure() is not None:
            return
        initial, topology = self._values.initial(), self._plan.topology
        if self._updates:
            self._look_at_sum_of_rounds(pushed)
        elif pushed:
            expected = self._pushed(range(topology.num_workers), range(pushed - 1, pushed))
            check(np.array_equal(self._buffer, expected), f"{self}: {self._buffer} is not {expected}")
        else:
            check(np.array_equal(self._buffer, initial), f"{self}: {self._buffer} is not {initial}")

    def _look_at_sum_of_rounds(self, pushed: int) -> None:
        """Of each client there are its first pushes, once each, and all that this one has made."""
        topology, rounds = self._plan.topology, self._plan.rounds
        signs = np.sign(self._values.pushed(0, 0))
        total = (self._values.initial() - self._buffer) * signs
        whole = total.astype(np.int64)
        check(np.array_equal(whole, total) and np.all(whole >= 0), f"{self}: {self._buffer}")
        for client in range(topology.num_clients):
            ranks = topology.members_of(client)
            every = sum(int(abs(self._values.pushed(rank, n)[0])) for rank in ranks for n in range(rounds))
            part = whole & every
            whole = whole - part
            ways = [self._pushed(ranks, range(number)) * signs for number in range(rounds + 1)]
            mine = ways[pushed : pushed + 1] if client == self.worker.client else ways
            good = np.any([part == way for way in mine], axis=0)
            check(np.all(good), f"{self}: pushes of client {client}: {part}")
        check(not np.any(whole), f"{self}: {self._buffer} has what nobody has pushed")
        now = total.astype(np.int64)
        gone = [np.any(before & ~now) for before in self._seen[-1:]]
        check(not any(gone), f"{self}: the value has gone back")
        self._seen.append(now)
