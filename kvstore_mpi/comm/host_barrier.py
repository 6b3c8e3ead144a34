"""A barrier of ranks of one host, by words in shared memory: they meet at once or sleep until they do.

MPI's barriers poll until all have come. That takes a core from a rank that still computes, and where
there are fewer cores than ranks, from the one that all wait for. Here each rank counts how often it has
come, in a word that the others see. Who waits looks a few times, lets others have its core for a while,
and then sleeps until it is told.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.transport.shared_memory import Arena, Directory, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMES, _NUMBERS, _ASLEEP, _BELL, NUM_BYTES = 0, 8, 64, 128, 192
"""Where in its part of the memory a rank counts and tells a number, says for whom it sleeps, and has the
semaphore that it sleeps on: three cache lines."""

LOOKS = 20
"""Before a rank lets others have its core: two that come together are no further apart."""

YIELDING_NS = 20_000
"""Before it sleeps: about as long as it takes to be woken, so that a wait costs twice that at most.

With 100 us one client of two ranks and a server, on two cores, take 4 and 6 % less for 4 and 200 KB, and
5 % more for ResNet-50's keys; with 50 us about the same as with this (seven jobs of each in turn)."""

_LIBRARY = ctypes.CDLL(None)
"""The C library: while it is called, other threads of this process run."""


class _Rank(NamedTuple):
    """What a rank's part of the memory holds.

    Attributes:
        name: One more than its number.
        times: How often it has come.
        numbers: What it has told after it had come an even number of times, and an odd one.
        asleep: The name of the rank for which it sleeps, or 0.
        bell: Address of the semaphore that it sleeps on.
    """

    name: int
    times: memoryview
    numbers: memoryview
    asleep: memoryview
    bell: ctypes.c_void_p


class HostBarrier:
    """One of the ranks that wait for each other; for one thread."""

    def __init__(self, rank: int, parts: Sequence[memoryview]) -> None:
        """Take the parts of the memory, which ``clear`` has cleared.

        Args:
            rank: The own one, among these.
            parts: By rank; kept.
        """
        ranks = [_rank(number, part) for number, part in enumerate(parts)]
        self._mine = ranks[rank]
        self._others = ranks[rank + 1 :] + ranks[:rank]  # so that not all wait for the same one first
        self._come = 0
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        """Return when all ranks have called this as often as this one.

        What they have written before is there for this one to read.
        """
        self._come = come = self._come + 1
        self._fence()  # who sees the count sees what was written before
        self._mine.times[0] = come
        self._fence()  # who says after this that it sleeps sees the count
        for other in self._others:
            if other.asleep[0] == self._mine.name:
                _LIBRARY.sem_post(other.bell)
        for other in self._others:
            if other.times[0] < come:
                self._wait_for(other, come)
        self._fence()  # nothing that follows was read before

    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers, which are of 64 bits; all come together for it."""
        # A rank that has read the numbers may come the next time while others read: it tells another one.
        place = self._come & 1
        self._mine.numbers[place] = number
        self.wait()
        return min(number, *(other.numbers[place] for other in self._others))

    def _wait_for(self, other: _Rank, come: int) -> None:
        for _ in range(LOOKS):
            if other.times[0] >= come:
                return
        until = time.perf_counter_ns() + YIELDING_NS
        while other.times[0] < come:
            if time.perf_counter_ns() < until:
                _LIBRARY.sched_yield()
            else:
                self._sleep_until_come(other, come)

    def _sleep_until_come(self, other: _Rank, come: int) -> None:
        """Sleep; who comes counts first and looks who sleeps then, so that one of the two sees the other.

        A bell may have been rung for an earlier wait, which saw the count in time: so it looks again.
        """
        self._mine.asleep[0] = other.name
        self._fence()
        while other.times[0] < come:
            _LIBRARY.sem_wait(self._mine.bell)
        self._mine.asleep[0] = 0

    def _fence(self) -> None:
        """Keep what memory is asked before this apart from what it is asked after, on any processor.

        Nothing before moves behind a lock's release, nothing after before its taking, and those two stay in
        order.
        """
        self._lock.release()
        self._lock.acquire()


def _rank(number: int, part: memoryview) -> _Rank:
    words = part.cast("B").cast("q")
    times, numbers, asleep = (words[at // 8 :] for at in (_TIMES, _NUMBERS, _ASLEEP))
    return _Rank(number + 1, times, numbers, asleep, _bell(part))


def _bell(part: memoryview) -> ctypes.c_void_p:
    return ctypes.c_void_p(np.frombuffer(part, np.uint8).ctypes.data + _BELL)


def clear(part: memoryview) -> None:
    """Make a rank's part of the memory ready, before another rank sees it.

    Args:
        part: ``NUM_BYTES`` that begin with a cache line.

    Raises:
        OSError: The system has no semaphores that processes share.
    """
    part[:] = bytes(NUM_BYTES)
    if _LIBRARY.sem_init(_bell(part), 1, 0):
        raise OSError("this system has no semaphores that processes share")


def barrier_of_host(comm: Any) -> HostBarrier | None:
    """Share memory among all ranks of a communicator of mpi4py; all must call this.

    Returns:
        Their barrier; none if one of them does not reach another's memory.
    """
    arena, directory = Arena(), Directory()
    places = [Place(*place) if place else None for place in comm.allgather(_own_place(arena))]
    parts = [directory.open(place) for place in places if place is not None]
    reached = [part for part in parts if part is not None]
    all_reached = all(comm.allgather(len(reached) == len(places)))
    arena.close()  # the memory stays as long as it is mapped
    return HostBarrier(comm.Get_rank(), reached) if all_reached else None


def _own_place(arena: Arena) -> tuple[Any, ...] | None:
    if not Arena.available():
        return None
    try:
        part = arena.allocate(NUM_BYTES, np.dtype(np.uint8))
        clear(part.data)
    except OSError:
        return None
    place = arena.place(part)
    return tuple(place) if place else None
