"""The driver of all collectives: one rank of a communicator, blocking, for one thread.

The MPI thread of a store and the thread of a tensor group each have one. It knows where the ranks are and
which of them this one waits for, and carries out their programs. It keeps a program for the next array of
the size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvstore_mpi.tensor_collectives.choice import Algorithm, Chooser
from kvstore_mpi.tensor_collectives.executor import (
    LibrarySum,
    Memory,
    Transfers,
    execute,
    make_slots,
    phases,
)
from kvstore_mpi.tensor_collectives.local_reduce import combine
from kvstore_mpi.tensor_collectives.profile import Profile, built_in
from kvstore_mpi.tensor_collectives.steps import Barrier, in_place
from kvstore_mpi.transport.shared_memory import Directory, Place

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.tensor_collectives.executor import LocalReducer, Phases, Wait
    from kvstore_mpi.tensor_collectives.steps import Program
    from kvstore_mpi.tensor_collectives.tensor import Operation

Array = np.ndarray[Any, Any]
Make = Callable[..., "Program"]
"""Computes a program from the ranks, the own one, the elements, and what else it needs."""

Allocate = Callable[..., Array]
"""Makes an array that transfers may fill, from a number of elements and a type."""

Shared = tuple[Array, Mapping[int, Array], tuple[Any, ...]]
"""A whole buffer, those of all ranks of its host, and what the algorithm needs besides."""

_TEXT_BYTES = 128
"""Of what a rank says of its call, in ASCII."""


class Driver:
    """One rank of a communicator.

    Attributes:
        rank: The own one.
        size: Number of ranks.
        communicator: Theirs; owned.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        profile: Profile | None = None,
        add: Callable[..., None] = combine,
    ) -> None:
        """Take ownership of a communicator.

        Args:
            communicator: The ranks.
            profile: What ``auto`` goes by, the same on all ranks; otherwise the MPI library's built-in one.
            add: Reduces arrays where buffers lie.
        """
        self.rank = communicator.rank
        self.size = communicator.size
        self.communicator = communicator
        self._profile = profile or built_in(communicator.library())
        self._add = add
        self._waiting: Wait | None = None
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

    # --- where the ranks are ---

    def chooser(self, wanted: Algorithm, *, buckets: bool) -> Chooser:
        """Find out together which host each rank is on, and return what chooses; called by all ranks.

        Args:
            wanted: One algorithm, or ``AUTO``.
            buckets: As for ``Chooser``.
        """
        with self._waiting_for_all():
            hosts = self.communicator.hosts()
        return Chooser(wanted, self._profile, hosts, buckets=buckets)

    def map_peers(
        self, hosts: Sequence[Sequence[int]], directory: Directory, place: Place | None
    ) -> dict[int, memoryview]:
        """Tell each other where a buffer lies, and map those of the own host; called by all ranks.

        Args:
            hosts: The ranks of each host.
            directory: Maps buffers.
            place: Where the own one lies, if others can map it.

        Returns:
            The buffers of the ranks of this host, the own one among them; none at all if any rank of any
            host does not reach one: all ranks must take the same way.
        """
        communicator, mine = self.communicator, msgspec.msgpack.encode(place)
        with self._waiting_for_all():
            told = [communicator.broadcast_bytes(mine, rank) for rank in range(self.size)]
            places = [msgspec.msgpack.decode(each, type=tuple[Any, ...] | None) for each in told]
            [host] = [ranks for ranks in hosts if self.rank in ranks]
            found = [(rank, places[rank]) for rank in host]
            views = {rank: directory.open(Place(*place)) if place else None for rank, place in found}
            reached = {rank: view for rank, view in views.items() if view is not None}
            return reached if communicator.minimum(len(reached) == len(host)) else {}

    def said_before_me(self, text: str) -> str:
        """Tell the next rank a text, and return what the one before tells this one; called by all ranks."""
        mine, other = (np.zeros(_TEXT_BYTES, np.uint8) for _ in range(2))
        encoded = text.encode()[:_TEXT_BYTES]
        mine[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self._await(Transfers([(after, mine)], [(before, other)]))
        return other.tobytes().rstrip(b"\0").decode()

    @contextmanager
    def _waiting_for_all(self) -> Iterator[None]:
        """Say meanwhile that this rank waits for all others."""
        self._waiting = Barrier(tuple(range(self.size)))
        try:
            yield
        finally:
            self._waiting = None

    # --- carrying out ---

    def run(
        self,
        make: Make,
        buffer: Array,
        reducer: LocalReducer | None,
        operation: Operation,
        *arguments: Any,
        peers: Mapping[int, Array] | None = None,
        divisor: int = 1,
        allocate: Allocate = np.empty,
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
            allocate: Makes slots, the first time.
        """
        program, slots = self._program(make, buffer, arguments, alone=reducer is None, allocate=allocate)
        memory = Memory(buffer, slots, peers or {})
        for wait in execute(program, reducer, memory, operation, divisor, add=self._add):
            self._await(wait)

    def run_together(self, make: Make, buffers: Sequence[Shared], operation: Operation) -> None:
        """Carry out collectives side by side: they wait together at each barrier, and transfer at once.

        Args:
            make: The algorithm; it waits for the same things in the same order whatever the size.
            buffers: What each works on.
            operation: What becomes of numbers that meet.
        """
        runs = []
        alike: Counter[tuple[Any, ...]] = Counter()  # of these each needs slots of its own
        for buffer, peers, arguments in buffers:
            kind = (buffer.size, buffer.dtype, arguments)
            program, slots = self._program(make, buffer, arguments, alone=True, number=alike[kind])
            alike[kind] += 1
            runs.append(execute(program, None, Memory(buffer, slots, peers), operation))
        for waits in zip_longest(*runs):
            self._await(_together(waits))

    def phases(
        self, make: Make, buffer: Array, peers: Mapping[int, Array], operation: Operation, *arguments: Any
    ) -> Phases:
        """Return a collective of ranks that share their memory, to be carried out again and again.

        Args:
            make: The algorithm: one of ``hosts.py``.
            buffer: The own buffer; kept, as are the peers'.
            peers: The buffers of all ranks.
            operation: What becomes of numbers that meet.
            *arguments: What the algorithm needs besides ranks and elements.
        """
        program = in_place(make(range(self.size), self.rank, (0, buffer.size), *arguments))
        return phases(program, Memory(buffer, peers=peers), operation)

    def close(self) -> None:
        """Free the communicator."""
        self.communicator.close()

    def _await(self, wait: Wait) -> None:
        self._waiting = wait
        if isinstance(wait, Transfers):
            self.communicator.exchange(wait.sends, wait.receives)
        elif isinstance(wait, LibrarySum):
            self.communicator.allreduce(wait.array)
        else:
            self.communicator.barrier(wait.ranks)
        self._waiting = None

    def _program(
        self,
        make: Make,
        buffer: Array,
        arguments: tuple[Any, ...],
        *,
        alone: bool,
        number: int = 0,
        allocate: Allocate = np.empty,
    ) -> tuple[Program, list[Array]]:
        """Return a program and its slots, which are those of the number-th that is under way at once."""
        key = (make, buffer.size, buffer.dtype, arguments, alone, number, allocate)
        known = self._known.get(key)
        if known is None:
            program = make(range(self.size), self.rank, (0, buffer.size), *arguments)
            program = in_place(program) if alone else program
            known = self._known[key] = (program, make_slots(program, buffer.dtype, allocate))
        return known


def _together(waits: Sequence[Wait]) -> Wait:
    """Return one wait for several of one kind."""
    transfers = [wait for wait in waits if isinstance(wait, Transfers)]
    if not transfers:
        return waits[0]
    sends, receives = zip(*transfers)
    return Transfers(list(chain(*sends)), list(chain(*receives)))
