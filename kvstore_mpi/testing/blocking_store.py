"""A store for tests that waits for each operation, in NumPy arrays: what a scenario is written in.

This file must not know where the worker's servers or its network are.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.records import Key

Array = np.ndarray[Any, Any]

DEADLINE_S = 60.0
"""No test waits longer than this for an operation."""


class BlockingStore:
    """One store of one worker.

    Attributes:
        number: Which one, in the order in which the worker has opened its stores.
    """

    def __init__(self, worker: KVWorker, mode: str = "sync") -> None:
        """Open the worker's next store."""
        self.worker = worker
        self.number = worker.open_store(mode)
        self._buffers: dict[Key, Array] = {}
        self._shapes: dict[Key, tuple[int, ...]] = {}

    def begin_init(self, key: Key, value: Any) -> Future[None]:
        """Create a key, with this value if the worker is rank 0."""
        array = np.asarray(value)
        buffer = self.worker.exchange_buffer(array.size, array.dtype.name)
        buffer[...] = array.reshape(-1)
        self._buffers[key], self._shapes[key] = buffer, array.shape
        future: Future[None] = Future()
        self.worker.init(self.number, key, array.shape, buffer, _resolver(future))
        return future

    def begin_push(self, key: Key, value: Any, priority: int = 0) -> Future[None]:
        """Start to push a value."""
        return self._begin(self.worker.push, key, priority, value)

    def begin_pull(self, key: Key, priority: int = 0) -> Future[None]:
        """Start to pull; ``value`` has the result."""
        return self._begin(self.worker.pull, key, priority)

    def begin_pushpull(self, key: Key, value: Any, priority: int = 0) -> Future[None]:
        """Start to push a value and to pull the new one; ``value`` has the result."""
        return self._begin(self.worker.pushpull, key, priority, value)

    def init(self, key: Key, value: Any) -> Array:
        """Create a key; return the value of rank 0."""
        self.begin_init(key, value).result(DEADLINE_S)
        return self.value(key)

    def push(self, key: Key, value: Any) -> None:
        """Push a value."""
        self.begin_push(key, value).result(DEADLINE_S)

    def pull(self, key: Key) -> Array:
        """Return the key's value."""
        self.begin_pull(key).result(DEADLINE_S)
        return self.value(key)

    def pushpull(self, key: Key, value: Any, priority: int = 0) -> Array:
        """Push a value; return the new one."""
        self.begin_pushpull(key, value, priority).result(DEADLINE_S)
        return self.value(key)

    def close(self) -> None:
        """Give up the store, as all workers do."""
        self.worker.close_store(self.number)
        self._buffers.clear()

    def value(self, key: Key) -> Array:
        """Return a copy of the buffer; to be called between operations."""
        return self._buffers[key].copy().reshape(self._shapes[key])

    def _begin(self, call: Callable[..., None], key: Key, priority: int, value: Any = None) -> Future[None]:
        if value is not None and key in self._buffers:
            self._buffers[key][...] = np.asarray(value).reshape(-1)
        future: Future[None] = Future()
        call(self.number, key, priority, _resolver(future))
        return future


def _resolver(future: Future[None]) -> Callable[[BaseException | None], None]:
    def done(error: BaseException | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done
