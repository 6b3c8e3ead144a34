"""An adapter for NumPy's own arrays, as small as one can be: the contract of adapters with no framework.

Calls return before values have travelled, as they must, since workers may go through keys in different
orders. What NumPy lacks is an engine that knows who uses which array: a call waits for earlier ones that
write to memory that it reads.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.adapters.place import Place
from kvstore_mpi.adapters.store_keys import StoreKeys
from kvstore_mpi.errors import UsageError
from kvstore_mpi.testing.adapter_contract import AdapterUnderTest, Array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.records import Key

DEADLINE_S = 60.0


@dataclass
class _Staged:
    """A key's exchange buffer, and the thread that carries out its operations one after the other."""

    shape: tuple[int, ...]
    dtype: str
    buffer: Array
    thread: ThreadPoolExecutor


class _UnderWay:
    """A worker's operations that have not ended, with the arrays that they write to."""

    def __init__(self) -> None:
        """Begin with none."""
        self._pending: list[tuple[Future[None], list[Array]]] = []

    def add(self, operation: Future[None], outs: list[Array]) -> None:
        """Remember one more."""
        self._pending.append((operation, outs))

    def settle(self, arrays: list[Array] | None = None) -> None:
        """Wait for operations that write to some arrays, or for all."""
        for operation, outs in self._pending:
            if arrays is None or any(np.may_share_memory(a, out) for a in arrays for out in outs):
                operation.result(DEADLINE_S)
        self._pending = [each for each in self._pending if not each[0].done()]


class NumpyStore(Place):
    """A store of NumPy arrays."""

    def __init__(self, worker: KVWorker, under_way: _UnderWay) -> None:
        """Open the worker's next store; ``under_way`` is what all its stores have begun."""
        self._worker = worker
        self._store = worker.open_store("sync")
        self._keys: StoreKeys[_Staged] = StoreKeys(worker.rank, self._store)
        self._under_way = under_way

    def init(self, key: Any, value: Any) -> None:
        """See ``adapter_contract.Store``."""
        for each, values in _grouped(key, value).items():
            self._under_way.settle(values)
            first = values[0]
            self._keys.check_new(each, first.shape, first.dtype.name)
            buffer = self._worker.exchange_buffer(first.size, first.dtype.name)
            buffer[...] = first.reshape(-1)
            staged = _Staged(first.shape, first.dtype.name, buffer, ThreadPoolExecutor(1))
            self._keys[each] = staged
            call = partial(self._worker.init, self._store, each, first.shape, buffer)
            self._queue(staged, call, [])

    def broadcast(self, key: Any, value: Any, out: Any) -> None:
        """See ``adapter_contract.Store``."""
        self.init(key, value)
        self.pull(key, out)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """See ``adapter_contract.Store``."""
        for each, values in _grouped(key, value).items():
            self._checked(each, values)
            self._send(self._worker.push, each, self._sum(each, values), [], priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0) -> None:
        """See ``adapter_contract.Store``."""
        for each, outs in _grouped(key, out).items():
            staged = self._checked(each, outs, converts=True)
            self._queue(staged, partial(self._worker.pull, self._store, each, priority), outs)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """See ``adapter_contract.Store``."""
        targets = _grouped(key, value if out is None else out)
        pushed = _grouped(key, value)
        for each, values in pushed.items():
            self._checked(each, [*values, *targets[each]])
        # All are read before any is written: keys may have arrays in common.
        sums = {each: self._sum(each, values) for each, values in pushed.items()}
        for each, total in sums.items():
            self._send(self._worker.pushpull, each, total, targets[each], priority)

    def barrier(self) -> None:
        """See ``adapter_contract.Store``."""
        # Of the worker's other stores, too: who is settled begins no push before all have come.
        self._under_way.settle()
        self._worker.barrier(settled=True)

    def _checked(self, key: Key, arrays: list[Array], *, converts: bool = False) -> _Staged:
        staged = self._keys.known(key)
        for array in arrays:
            if (array.shape, array.dtype.name) != (staged.shape, staged.dtype):
                self._keys.check_other(key, array.shape, array.dtype.name, converts=converts)
        return staged

    def _sum(self, key: Key, values: list[Array]) -> Array:
        self._keys.check_sum(key)
        self._under_way.settle(values)
        total = values[0].copy()
        for value in values[1:]:
            total += value
        return total

    def _send(
        self, call: Callable[..., None], key: Key, total: Array, outs: list[Array], priority: int
    ) -> None:
        staged = self._keys[key]

        def start(done: Any) -> None:
            staged.buffer[...] = total.reshape(-1)
            call(self._store, key, priority, done)

        self._queue(staged, start, outs)

    def _queue(self, staged: _Staged, start: Callable[[Any], None], outs: list[Array]) -> None:
        def run() -> None:
            ended: Future[BaseException | None] = Future()
            start(ended.set_result)
            error = ended.result(DEADLINE_S)
            if error is not None:
                raise error
            for out in outs:
                out[...] = staged.buffer.reshape(staged.shape)

        self._under_way.add(staged.thread.submit(run), outs)


def _grouped(keys: Any, values: Any) -> dict[Key, list[Array]]:
    groups: dict[Key, list[Array]] = {}
    for key, value in _pairs(keys, values):
        if not isinstance(key, (str, int, np.integer)):
            raise UsageError(f"keys are strings or integers, not {key!r}")
        arrays = value if isinstance(value, list) else [value]
        groups.setdefault(key if isinstance(key, str) else int(key), []).extend(arrays)
    return groups


def _pairs(keys: Any, values: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(keys, list):
        return iter([(keys, values)])
    if len(keys) != len(values):
        raise UsageError(f"there are {len(keys)} keys and {len(values)} values")
    return zip(keys, values)


class NumpyAdapter(AdapterUnderTest):
    """NumPy's arrays are their own."""

    dtypes = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")

    def __init__(self, worker: KVWorker) -> None:
        """Open stores of a worker."""
        self._worker = worker
        self._under_way = _UnderWay()

    def open_store(self) -> NumpyStore:
        """See ``AdapterUnderTest``."""
        return NumpyStore(self._worker, self._under_way)

    def array(self, value: Array, device: int = 0) -> Array:
        """See ``AdapterUnderTest``."""
        return value.copy()

    def numpy(self, array: Array) -> Array:
        """See ``AdapterUnderTest``."""
        self._under_way.settle([array])
        return array
