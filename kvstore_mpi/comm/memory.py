"""A communicator whose ranks are threads of one process, for tests and for a client of one worker.

Sums are taken in the order of ranks, so that all ranks get the same bits.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = np.ndarray[Any, Any]

DEADLINE_S = 60.0
"""A rank that never arrives is a bug in the test: the others raise ``BrokenBarrierError``."""


class _Shared:
    def __init__(self, size: int, hosts: list[list[int]]) -> None:
        self.hosts = hosts
        self.barrier = threading.Barrier(size, timeout=DEADLINE_S)
        self.values: list[Any] = [None] * size
        self.messages: dict[tuple[int, int], queue.SimpleQueue[Array]] = {
            (source, target): queue.SimpleQueue() for source in range(size) for target in range(size)
        }
        self.barriers: dict[tuple[int, ...], threading.Barrier] = {}
        self.lock = threading.Lock()

    def barrier_of(self, ranks: tuple[int, ...]) -> threading.Barrier:
        """Return the barrier of some ranks."""
        with self.lock:
            if ranks not in self.barriers:
                self.barriers[ranks] = threading.Barrier(len(ranks), timeout=DEADLINE_S)
            return self.barriers[ranks]


class MemoryCommunicator:
    """One rank of a group of threads."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        """Use ``memory_communicators`` to make a group."""
        self.rank = rank
        self.size = len(shared.values)
        self._shared = shared

    def _exchange(self, value: Any) -> list[Any]:
        """Return what each rank brought; all have read it before the next exchange begins."""
        self._shared.values[self.rank] = value
        self._shared.barrier.wait()
        values = list(self._shared.values)
        self._shared.barrier.wait()
        return values

    def allreduce(self, array: Array) -> None:
        """See ``interfaces.Communicator``."""
        array[...] = _sum(self._exchange(array.copy()))

    def begin_allreduce(self, _array: Array) -> None:
        """See ``interfaces.Communicator``."""

    def begin_reduce(self, _array: Array, _root: int) -> None:
        """See ``interfaces.Communicator``."""

    def begin_broadcast(self, _array: Array, _root: int) -> None:
        """See ``interfaces.Communicator``."""

    def prepare_allreduce(self, array: Array) -> Callable[[], None]:
        """See ``interfaces.Communicator``."""
        return partial(self.allreduce, array)

    def reduce(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        arrays = self._exchange(array.copy())
        if self.rank == root:
            array[...] = _sum(arrays)

    def broadcast(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        array[...] = self._exchange(array.copy())[root]

    def minimum(self, number: int) -> int:
        """See ``interfaces.Communicator``."""
        return int(min(self._exchange(number)))

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """See ``interfaces.Communicator``."""
        value: bytes = self._exchange(data)[root]
        return value

    def exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """See ``interfaces.Communicator``."""
        messages = self._shared.messages
        for target, data in sends:
            messages[self.rank, target].put(data.copy())
        for source, space in receives:
            space[...] = messages[source, self.rank].get(timeout=DEADLINE_S)

    def barrier(self, ranks: tuple[int, ...]) -> None:
        """See ``interfaces.Communicator``."""
        self._shared.barrier_of(ranks).wait()

    def hosts(self) -> list[list[int]]:
        """See ``interfaces.Communicator``."""
        return [list(ranks) for ranks in self._shared.hosts]

    def local_rank(self) -> int:
        """Return this rank's number among those of its host."""
        [host] = [ranks for ranks in self._shared.hosts if self.rank in ranks]
        return host.index(self.rank)

    def library(self) -> str:
        """See ``interfaces.Communicator``."""
        return ""

    def close(self) -> None:
        """See ``interfaces.Communicator``."""


def _sum(arrays: list[Array]) -> Array:
    total = arrays[0].astype(np.float32) if arrays[0].dtype == np.float16 else arrays[0].copy()
    for array in arrays[1:]:
        np.add(total, array, out=total)
    return total.astype(arrays[0].dtype)


def memory_communicators(size: int, hosts: list[list[int]] | None = None) -> list[MemoryCommunicator]:
    """Make a group of ``size`` ranks, one for each thread, on one host or on these by number."""
    shared = _Shared(size, hosts or [list(range(size))])
    return [MemoryCommunicator(rank, shared) for rank in range(size)]
