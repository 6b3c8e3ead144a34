"""One key of a worker that exchanges parameters with a center in a simulated job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import SkippedError
from support.elastic_client import adopt, elastic_step
from support.seeds import check
from support.simulated_exchange_plan import Plan, initial

if TYPE_CHECKING:
    from support.simulated_shells import Program, SimulatedWorker

Array = np.ndarray[Any, Any]

GARBAGE = 1e3
"""What a client that is started again adds to the initial values, which do not count any more."""


class ClientKey:
    """One key on one worker: its parameters, and the answers to its exchanges."""

    def __init__(self, worker: SimulatedWorker, number: int, plan: Plan) -> None:
        """Allocate the buffer; the ranks of a client have the same parameters."""
        self.worker = worker
        self.number = number
        self._plan = plan
        size = plan.sizes[number]
        self._source = np.random.RandomState([plan.seed, worker.client, number])
        self.params: Array = self._source.normal(size=size).astype(np.float32)
        self.learned = np.zeros(size)
        self.answers: list[Array] = []
        self.endings: list[list[BaseException | None]] = []
        self.begun_with: Array | None = None  # what a late or restarted client was given
        self.first_given: Array | None = None  # what it must then give in its first exchange
        self.buffer = worker.exchange_buffer(size, "float32")
        self.buffer[...] = initial(number, size) if worker.rank == 0 else np.nan

    def init(self, garbage: float = 0.0, *, adopts: bool = False) -> Program:
        """Create the key; who starts again, or late, must be given the center, and begins with it."""
        self.buffer += np.float32(garbage)
        ending: list[BaseException | None] = []
        self.endings.append(ending)
        self.worker.init(0, self.number, (self.buffer.size,), self.buffer, ending.append)
        yield lambda: bool(ending)
        if garbage:
            check(
                np.all(np.abs(self.buffer) < garbage / 2), f"{self.worker.node} begins with {self.buffer}"
            )
            self.answers.append(self.buffer.copy())
        if garbage or adopts:
            self.begun_with = self.buffer.copy()
            adopt(self.params, self.buffer)

    def exchange(self) -> Program:
        """Train a bit, then exchange."""
        learned = (0.1 * self._source.normal(size=self.buffer.size)).astype(np.float32)
        before = self.params.astype(np.float64)
        self.params += learned
        self.learned += self.params - before
        if self.begun_with is not None and self.first_given is None:
            self.first_given = self.begun_with + learned
        self.buffer[...] = self.params
        yield from self._operate("pushpull")
        ended = self.endings[-1][0]
        if ended is None or isinstance(ended, SkippedError):
            self.answers.append(self.buffer.copy())
            if self._plan.elastic:
                elastic_step(self.params, self.buffer, self._plan.rate)
            else:
                adopt(self.params, self.buffer)
        if not self._plan.server_deaths:  # a server that has lost its values is given this
            self.buffer[...] = np.nan

    def look(self) -> Program:
        """Pull the center."""
        yield from self._operate("pull")

    def _operate(self, kind: str) -> Program:
        ending: list[BaseException | None] = []
        self.endings.append(ending)
        getattr(self.worker, kind)(0, self.number, -self.number, ending.append)
        yield lambda: bool(ending)
