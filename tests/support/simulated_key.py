"""One key on one worker of a simulated job, and what must be true of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from support.seeds import check
from support.simulated_plan import KeyPlan, Plan, Values

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Done
    from support.simulated_shells import Program, SimulatedWorker

Array = np.ndarray[Any, Any]

GARBAGE = 99
"""What a worker writes into a buffer that is its own again, so that whoever still reads it shows."""


class KeyRun:
    """One key on one worker.

    Attributes:
        endings: For each operation how it has ended: once, if all is well.
        first_round: Of those to which the key has been as it is in the end.
    """

    def __init__(self, worker: SimulatedWorker, key: KeyPlan, plan: Plan) -> None:
        """Allocate the buffer."""
        self.worker = worker
        self.key = key
        self.endings: list[list[BaseException | None]] = []
        self.first_round = 0
        self._values = Values(plan, key)
        self._updates = plan.updates
        self._buffer = worker.exchange_buffer(key.size, key.dtype)
        self._buffer[...] = self._values.initial() if worker.rank == 0 else GARBAGE
        self._counts: list[Array] | None = None

    def init(self) -> Program:
        """Create the key; its value is rank 0's, and may include others' pushes in async mode."""
        ending = self._begin()
        self.worker.init(0, self.key.name, (self.key.size,), self._buffer, ending.append)
        yield lambda: bool(ending)
        self._look(0)

    def round(self, number: int) -> Program:
        """Do what is planned for a round."""
        self._buffer[...] = self._values.pushed(self.worker.rank, number)
        kinds = self.key.kinds[self.worker.client][number]
        came: list[BaseException | None] = []
        # Ranks of a client may differ in what they expect.
        expects = kinds != "pushpull" and (self.worker.rank + number + self.key.size) % 2 == 0
        first, *then = kinds.split()
        last = self._operate(first, *([came.append] if expects else []))
        if expects:
            yield lambda: bool(last)
        if then and not came:
            last = self._operate("pull")
        yield lambda: bool(last)
        if "pull" in kinds or came:
            self._look(number + 1)
        self._buffer[...] = GARBAGE

    def last_look(self, rounds: int) -> Program:
        """Pull the value when all workers have done all: it must have everything."""
        if self.worker.num_servers:  # without, the buffer is the value, and garbage by now
            ending = self._operate("pull")
            yield lambda: bool(ending)
            self._look(rounds)
            self._check_counts(rounds)

    def _check_counts(self, rounds: int) -> None:
        if self._counts is not None and self.worker.failure() is None:
            check(all(np.all(count == rounds) for count in self._counts), f"{self}: pushes are missing")

    def _operate(self, kind: str, *arrived: Done) -> list[BaseException | None]:
        ending = self._begin()
        getattr(self.worker, kind)(0, self.key.name, self.key.priority, ending.append, *arrived)
        return ending

    def _begin(self) -> list[BaseException | None]:
        self.endings.append([])
        return self.endings[-1]

    def _look(self, pushed: int) -> None:
        """Check the value that this worker sees after ``pushed`` pushes of its client."""
        if self.worker.failure() is not None:
            return
        if self._updates:
            self._look_at_sum_of_rounds(pushed)
        else:
            expected = self._values.round_sum(pushed - 1) if pushed else self._values.initial()
            if not np.array_equal(self._buffer, expected):  # no _check: to print arrays takes its time
                raise AssertionError(f"{self}: {self._buffer} is not {expected}")

    def _look_at_sum_of_rounds(self, pushed: int) -> None:
        counts = self._values.counts(self._buffer)
        own = counts[self.worker.client]
        if np.any(own != pushed):
            raise AssertionError(f"{self} does not see the {pushed} pushes of its client, but {own}")
        before = counts if self._counts is None else self._counts
        check(all(np.all(b <= c) for b, c in zip(before, counts)), f"{self}: the value has gone back")
        self._counts = counts

    def __str__(self) -> str:
        """Name worker and key."""
        return f"{self.worker.node}, key {self.key.name!r}"
