"""Carries out the program of one rank: the one loop with transfers in it.

It says what has to be waited for instead of waiting, so that the same loop runs over MPI and, with the
ranks of a whole group in one thread, under any order that a test chooses. Here it does not matter which
algorithm a program comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
)

import numpy as np

from kvstore_mpi.tensor_collectives.local_reduce import combine, prepared_combine
from kvstore_mpi.tensor_collectives.steps import (
    Await,
    Barrier,
    Collect,
    Combine,
    Exchange,
    Fetch,
    Finish,
    LibraryAllreduce,
    Reduce,
    Share,
    slot_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvstore_mpi.tensor_collectives.steps import Program
    from kvstore_mpi.tensor_collectives.tensor import Operation

Array = np.ndarray[Any, Any]


class Transfers(NamedTuple):
    """Wait until all of these have ended: (peer, array) of what leaves, and of what comes."""

    sends: list[tuple[int, Array]]
    receives: list[tuple[int, Array]]


class LibrarySum(NamedTuple):
    """Wait until all ranks have added up these arrays, in the communicator's own way and in place."""

    array: Array


Phases = list[list[Callable[[], object]]]
"""What a rank does before, between and after the barriers of a collective, as calls to repeat."""

Wait = Transfers | Barrier | LibrarySum


class LocalReducer(Protocol):
    """Works between the vectors of a tensor and a buffer; calls may return before the work is done."""

    def reduce(self, buffer: Array, lo: int, hi: int, incoming: Array | None) -> None:
        """Start to reduce what has come, if anything, and the vectors into a range of the buffer."""
        ...

    def share(self, buffer: Array, lo: int, hi: int) -> None:
        """Start to copy a range of the buffer to all vectors."""
        ...

    def wait(self, lo: int, hi: int) -> None:
        """Wait for what was started on a range."""
        ...


class Memory(NamedTuple):
    """What a program works on.

    Attributes:
        buffer: The own buffer, of the accumulator's type.
        slots: Where segments arrive that are still to be added; see ``make_slots``.
        peers: The buffers of ranks that share their memory, the own one among them.
    """

    buffer: Array
    slots: Sequence[Array] = ()
    peers: Mapping[int, Array] = {}


def make_slots(
    program: Program, dtype: np.dtype[Any], allocate: Callable[..., Array] = np.empty
) -> list[Array]:
    """Allocate the slots that a program needs; they can serve again."""
    return [allocate(size, dtype) for size in slot_sizes(program)]


def execute(
    program: Program,
    reducer: LocalReducer | None,
    memory: Memory,
    operation: Operation,
    divisor: int = 1,
    *,
    add: Callable[..., None] = combine,
) -> Iterator[Wait]:
    """Do what can be done, and yield what must be waited for; take the next item when it has come about.

    Args:
        program: What to do.
        reducer: Reaches the vectors; ``None`` with a program that is ``in_place``.
        memory: Owned until the end, the peers' buffers included.
        operation: What becomes of numbers that meet.
        divisor: What complete sums are divided by.
        add: Reduces arrays where buffers lie.
    """
    buffer, slots, peers = memory
    for step in program:
        if isinstance(step, Exchange):
            yield _transfers(step, buffer, slots)
        elif isinstance(step, Barrier):
            yield step
        elif isinstance(step, Collect):
            sources = [peers[rank][step.lo : step.hi] for rank in step.ranks]
            targets = [peers[rank][step.lo : step.hi] for rank in step.targets]
            add(targets, sources, operation, divisor if step.complete else 1)
        elif isinstance(step, Combine):
            segment = buffer[step.lo : step.hi]
            add([segment], [segment, slots[step.slot][: segment.size]], operation)
        elif isinstance(step, Fetch):
            np.copyto(buffer[step.lo : step.hi], peers[step.rank][step.lo : step.hi])
        elif isinstance(step, LibraryAllreduce):
            segment = buffer[step.lo : step.hi]
            yield LibrarySum(segment)
            _finish(add, segment, operation, divisor)
        elif isinstance(step, Finish):
            _finish(add, buffer[step.lo : step.hi], operation, divisor)
        else:
            assert reducer is not None
            _between_vectors_and_buffer(step, reducer, buffer, slots)


def phases(program: Program, memory: Memory, operation: Operation) -> Phases:
    """Find out once what there is to do; the result may be carried out again and again.

    Args:
        program: Of ranks that share their memory, in place (``hosts.py``): nothing is sent.
        memory: As for ``execute``; kept.
        operation: As for ``execute``.
    """
    calls: Phases = [[]]
    for step in program:
        if isinstance(step, Barrier):
            calls.append([])
        elif isinstance(step, Collect):
            sources = [memory.peers[rank][step.lo : step.hi] for rank in step.ranks]
            targets = [memory.peers[rank][step.lo : step.hi] for rank in step.targets]
            calls[-1] += prepared_combine(targets, sources, operation)
        else:
            assert isinstance(step, Fetch)
            fetched = memory.peers[step.rank][step.lo : step.hi]
            calls[-1].append(partial(np.copyto, memory.buffer[step.lo : step.hi], fetched))
    return calls


def _finish(add: Callable[..., None], segment: Array, operation: Operation, divisor: int) -> None:
    """Make a mean of a sum, where it lies."""
    if divisor != 1:
        add([segment], [segment], operation, divisor)


def _between_vectors_and_buffer(
    step: Reduce | Share | Await, reducer: LocalReducer, buffer: Array, slots: Sequence[Array]
) -> None:
    if isinstance(step, Reduce):
        incoming = None if step.slot is None else slots[step.slot][: step.hi - step.lo]
        reducer.reduce(buffer, step.lo, step.hi, incoming)
    elif isinstance(step, Share):
        reducer.share(buffer, step.lo, step.hi)
    else:
        reducer.wait(step.lo, step.hi)


def _transfers(step: Exchange, buffer: Array, slots: Sequence[Array]) -> Transfers:
    """Say which memory leaves and which is filled."""
    return Transfers(
        [(send.peer, buffer[send.lo : send.hi]) for send in step.sends],
        [
            (
                receive.peer,
                buffer[receive.lo : receive.hi]
                if receive.slot is None
                else slots[receive.slot][: receive.hi - receive.lo],
            )
            for receive in step.receives
        ],
    )
