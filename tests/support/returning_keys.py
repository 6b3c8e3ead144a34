"""A key of a worker that may be started again: a dense one, or a table whose rows have one element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import Rows

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Done
    from support.simulated_shells import SimulatedWorker

Array = np.ndarray[Any, Any]


class DenseKey:
    """A dense key.

    Attributes:
        value: What the worker has of it.
    """

    def __init__(self, worker: SimulatedWorker, number: int, size: int) -> None:
        """Allocate the buffer."""
        self.number = number
        self.value = worker.exchange_buffer(size, "float64")
        self._worker = worker

    def init(self, initial: float, done: Done) -> None:
        """Create it."""
        self.value[...] = initial
        self._worker.init(0, self.number, self.value.shape, self.value, done)

    def give(self, gradient: float) -> None:
        """Write what is pushed next."""
        self.value[...] = gradient

    def call(self, kind: str, done: Done) -> None:
        """Begin an operation."""
        getattr(self._worker, kind)(0, self.number, 0, done)

    def look_again(self, done: Done) -> list[Rows]:
        """Pull; there is no other way to do so."""
        self.call("pull", done)
        return []

    def take(self) -> None:
        """All operations have ended; the value is in the buffer."""


class TableKey:
    """A table; ranks without a gradient push no rows.

    Attributes:
        value: What the worker has of it, of which pulls bring what has changed.
    """

    def __init__(self, worker: SimulatedWorker, number: int, size: int) -> None:
        """Allocate the worker's copy."""
        self.number = number
        self.value: Array = np.zeros(size)
        self._worker = worker
        self._gradient = 0.0
        self._came: list[Rows] = []

    def init(self, initial: float, done: Done) -> None:
        """Create it."""
        self.value[...] = initial
        rows = self.value.reshape(-1, 1)
        pieces = min(2, self.value.size)
        self._worker.init_rows(0, self.number, rows.shape, "float64", rows, done, partitions=pieces)

    def give(self, gradient: float) -> None:
        """Say what is pushed next to each row."""
        self._gradient = gradient

    def call(self, kind: str, done: Done) -> None:
        """Begin an operation."""
        ids = np.arange(self.value.size if self._gradient else 0)
        rows = Rows(ids, np.full((ids.size, 1), self._gradient))
        if kind == "push":
            self._worker.push_rows(0, self.number, rows, 0, done)
        elif kind == "pull":
            self._worker.pull_rows(0, self.number, 0, done, self._came)
        else:
            self._worker.pushpull_rows(0, self.number, rows, 0, done, self._came)

    def look_again(self, done: Done) -> list[Rows]:
        """Pull what has changed, and then all rows by their ids into what is returned."""
        whole: list[Rows] = []
        self.call("pull", lambda _error: None)
        self._worker.pull_rows(0, self.number, 0, done, whole, np.arange(self.value.size))
        return whole

    def take(self) -> None:
        """All operations have ended: write what has come."""
        for ids, values in self._came:
            self.value[ids] = values[:, 0]
        self._came.clear()
