"""Carries out programs of one rank over a communicator, and keeps them for the next tensor of the size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.executor import LibrarySum, Memory, Transfers, execute, make_slots
from kvstore_mpi.tensor_collectives.local_reduce import combine
from kvstore_mpi.tensor_collectives.steps import in_place

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.tensor_collectives.executor import LocalReducer, Wait
    from kvstore_mpi.tensor_collectives.steps import Program
    from kvstore_mpi.tensor_collectives.tensor import Operation

Array = np.ndarray[Any, Any]
Make = Callable[..., "Program"]
"""Computes a program from the ranks, the own one, the elements, and what else it needs."""

Shared = tuple[Array, Mapping[int, Array], tuple[Any, ...]]
"""A whole buffer, those of all ranks of its host, and what the algorithm needs besides."""


class Runner:
    """One rank of a communicator, used by one thread."""

    def __init__(
        self,
        communicator: Communicator,
        allocate: Callable[..., Array] = np.empty,
        add: Callable[..., None] = combine,
    ) -> None:
        """Make a runner.

        Args:
            communicator: The ranks; stays the caller's.
            allocate: Makes slots, from a number of elements and a type.
            add: Reduces arrays where buffers lie.
        """
        self.rank = communicator.rank
        self.size = communicator.size
        self._waiting: Wait | None = None
        self._communicator = communicator
        self._allocate = allocate
        self._add = add
        self._known: dict[tuple[Any, ...], tuple[Program, list[Array]]] = {}

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The ranks that it waits for now; another thread may ask, and only then is it found out."""
        wait = self._waiting
        if wait is None:
            return ()
        if isinstance(wait, Transfers):
            return tuple(peer for peer, _ in (*wait.sends, *wait.receives))
        ranks = range(self.size) if isinstance(wait, LibrarySum) else wait.ranks
        return tuple(rank for rank in ranks if rank != self.rank)

    def run(
        self,
        make: Make,
        buffer: Array,
        reducer: LocalReducer | None,
        operation: Operation,
        *arguments: Any,
        peers: Mapping[int, Array] | None = None,
        divisor: int = 1,
    ) -> None:
        """Carry out a collective on a whole buffer.

        Args:
            make: The algorithm.
            buffer: The own buffer, of the accumulator's type, or with shared memory of any.
            reducer: Reaches the vectors; ``None`` if the buffer is the only one.
            operation: What becomes of numbers that meet.
            *arguments: What the algorithm needs besides ranks and elements; hashable.
            peers: The buffers of the ranks that share their memory.
            divisor: What complete sums are divided by.
        """
        program, slots = self._program(make, buffer, arguments, alone=reducer is None)
        memory = Memory(buffer, slots, peers or {})
        for wait in execute(program, reducer, memory, operation, divisor, add=self._add):
            self._await(wait)

    def run_together(self, make: Make, parts: Sequence[Shared], operation: Operation) -> None:
        """Carry out collectives side by side: they wait together at each barrier, and transfer at once.

        Args:
            make: The algorithm; it waits for the same things in the same order whatever the size.
            parts: What each works on.
            operation: What becomes of numbers that meet.
        """
        runs = []
        alike: Counter[tuple[Any, ...]] = Counter()  # of these each needs slots of its own
        for buffer, peers, arguments in parts:
            kind = (buffer.size, buffer.dtype, arguments)
            program, slots = self._program(make, buffer, arguments, alone=True, number=alike[kind])
            alike[kind] += 1
            runs.append(execute(program, None, Memory(buffer, slots, peers), operation))
        for waits in zip_longest(*runs):
            self._await(_together(waits))

    def _await(self, wait: Wait) -> None:
        self._waiting = wait
        if isinstance(wait, Transfers):
            self._communicator.exchange(wait.sends, wait.receives)
        elif isinstance(wait, LibrarySum):
            self._communicator.allreduce(wait.array)
        else:
            self._communicator.barrier(wait.ranks)
        self._waiting = None

    def _program(
        self, make: Make, buffer: Array, arguments: tuple[Any, ...], *, alone: bool, number: int = 0
    ) -> tuple[Program, list[Array]]:
        """Return a program and its slots, which are those of the number-th that is under way at once."""
        key = (make, buffer.size, buffer.dtype, arguments, alone, number)
        known = self._known.get(key)
        if known is None:
            program = make(range(self.size), self.rank, (0, buffer.size), *arguments)
            program = in_place(program) if alone else program
            known = self._known[key] = (program, make_slots(program, buffer.dtype, self._allocate))
        return known


def _together(waits: Sequence[Wait]) -> Wait:
    """Return one wait for several of one kind."""
    transfers = [wait for wait in waits if isinstance(wait, Transfers)]
    if not transfers:
        return waits[0]
    sends, receives = zip(*transfers)
    return Transfers(list(chain(*sends)), list(chain(*receives)))
