"""The MPI of one client in a simulation: collectives that check that all ranks call the same.

A call returns at once and takes effect when all ranks have called; what its caller does afterwards happens
at a random time on each rank, because MPI lets ranks leave a collective at different times. This file must
not know of workers, keys or time.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = np.ndarray[Any, Any]


class _Call(NamedTuple):
    """A collective that one rank waits in."""

    name: str
    root: int
    array: Array


class SimulatedMpi:
    """Each rank's calls, and what it does after them, in order."""

    def __init__(self, size: int, later: Callable[[Callable[[], None]], None]) -> None:
        """Make a group; ``later`` makes a call after a random time."""
        self.ranks: list[deque[_Call | Callable[[], None]]] = [deque() for _ in range(size)]
        self._outside: list[deque[Callable[[], None]]] = [deque() for _ in range(size)]
        self._later = later

    def add(self, rank: int, item: _Call | Callable[[], None]) -> None:
        """A rank calls a collective, or wants a call to be made when its collectives so far have ended."""
        self.ranks[rank].append(item)
        self._release()
        while all(self.ranks):
            self._carry_out()
            self._release()

    def _carry_out(self) -> None:
        calls: list[Any] = [queue.popleft() for queue in self.ranks]
        kinds = [(call.name, call.root, call.array.size, call.array.dtype.name) for call in calls]
        if len(set(kinds)) != 1:
            raise AssertionError(f"the ranks of a client are in different collectives: {kinds}")
        name, root, _ = calls[0]
        arrays = [call.array for call in calls]
        if name == "broadcast":
            result = arrays[root].copy()
        elif name == "gather":
            result = np.empty(1, object)
            result[0] = [array[0] for array in arrays]
        else:
            result = np.sum(arrays, axis=0, dtype=arrays[0].dtype)
        for rank, array in enumerate(arrays):
            if name != "reduce" or rank == root:
                array[...] = result

    def _release(self) -> None:
        """Let ranks go on whose collectives have ended."""
        for rank, queue in enumerate(self.ranks):
            while queue and not isinstance(queue[0], _Call):
                self._outside[rank].append(queue.popleft())  # type: ignore[arg-type]  # it is no _Call
                self._later(partial(self._go_on, rank))

    def _go_on(self, rank: int) -> None:
        self._outside[rank].popleft()()


class SimulatedCommunicator:
    """One rank of a client."""

    def __init__(self, rank: int, collectives: SimulatedMpi) -> None:
        """Be a rank of a group."""
        self.rank = rank
        self.size = len(collectives.ranks)
        self._collectives = collectives

    def then(self, call: Callable[[], None]) -> None:
        """Make a call when the collectives so far have ended on this rank."""
        self._collectives.add(self.rank, call)

    def allreduce(self, array: Array) -> None:
        """See ``interfaces.Communicator``."""
        self._collectives.add(self.rank, _Call("allreduce", 0, array))

    def prepare_allreduce(self, array: Array) -> Callable[[], None]:
        """See ``interfaces.Communicator``."""
        return partial(self.allreduce, array)

    def begin_allreduce(self, _array: Array) -> None:
        """See ``interfaces.Communicator``."""

    def begin_reduce(self, _array: Array, _root: int) -> None:
        """See ``interfaces.Communicator``."""

    def begin_broadcast(self, _array: Array, _root: int) -> None:
        """See ``interfaces.Communicator``."""

    def reduce(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        self._collectives.add(self.rank, _Call("reduce", root, array))

    def broadcast(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        self._collectives.add(self.rank, _Call("broadcast", root, array))

    def gather(self, box: Array) -> None:
        """Put what each rank has in its box, an array of one object, into a list in the boxes of all."""
        self._collectives.add(self.rank, _Call("gather", 0, box))

    def minimum(self, number: int) -> int:
        """Not used: a simulated rank cannot wait in a call, and carries out collectives one by one."""
        raise NotImplementedError

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """Not used: a simulated job has its secret from the start."""
        raise NotImplementedError

    def exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """Not used: simulated clients sum with the communicator's own collectives."""
        raise NotImplementedError

    def barrier(self, ranks: tuple[int, ...]) -> None:
        """Not used, like ``exchange``."""
        raise NotImplementedError

    def hosts(self) -> list[list[int]]:
        """See ``interfaces.Communicator``; a simulated client has one host."""
        return [[*range(self.size)]]

    def local_rank(self) -> int:
        """See ``interfaces.Communicator``."""
        return self.rank

    def library(self) -> str:
        """See ``interfaces.Communicator``."""
        return ""

    def close(self) -> None:
        """See ``interfaces.Communicator``."""
