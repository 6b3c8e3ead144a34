"""What one rank does in a collective, as a list of steps.

A *tensor* is k vectors of equal length on the devices of one worker (MXNET-MPI, section 6.1); to the other
ranks it is one vector of *n* elements. Every rank has a *buffer* of n elements on the host, in which sums
are formed and which is what crosses between ranks; and *slots*, where segments arrive that are still to be
added. Ranges are elements from ``lo`` up to ``hi``. Which rank does what is decided beforehand, by the
modules beside this one; ``executor.py`` carries it out.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Range = tuple[int, int]


class Reduce(NamedTuple):
    """Start to reduce the tensor's vectors into the buffer; the paper's ``GpuStart``.

    Attributes:
        lo: First element.
        hi: End of the elements.
        slot: A slot whose content comes before the vectors, if there is one.
    """

    lo: int
    hi: int
    slot: int | None = None


class Combine(NamedTuple):
    """Reduce a slot into the buffer."""

    lo: int
    hi: int
    slot: int


class Collect(NamedTuple):
    """Reduce the buffers of ranks that share their memory, in this order, into those of some of them.

    Attributes:
        lo: First element.
        hi: End of the elements.
        ranks: Whose buffers are reduced.
        targets: Whose buffers get the result.
        complete: It is then reduced over all ranks, as with ``Finish``.
    """

    lo: int
    hi: int
    ranks: tuple[int, ...]
    targets: tuple[int, ...]
    complete: bool


class Fetch(NamedTuple):
    """Copy a range of the buffer of a rank that shares its memory to the own."""

    lo: int
    hi: int
    rank: int


class Finish(NamedTuple):
    """The range is reduced over all ranks: make a mean of a sum."""

    lo: int
    hi: int


class Share(NamedTuple):
    """Start to copy a range of the buffer to all vectors of the tensor."""

    lo: int
    hi: int


class Await(NamedTuple):
    """Wait for what was started on a range; the paper's ``GpuWait``."""

    lo: int
    hi: int


class Barrier(NamedTuple):
    """Wait until all these ranks have come here."""

    ranks: tuple[int, ...]


class Send(NamedTuple):
    """A range of the buffer leaves for a rank."""

    peer: int
    lo: int
    hi: int


class Receive(NamedTuple):
    """A range comes from a rank, to a slot, or to its place in the buffer."""

    peer: int
    lo: int
    hi: int
    slot: int | None = None


class Exchange(NamedTuple):
    """Transfers that are all under way at once; ends when all have ended. The paper's ``SendRecv``."""

    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]


class LibraryAllreduce(NamedTuple):
    """Sum a range of the buffers of all ranks, which is then complete, in the communicator's own way."""

    lo: int
    hi: int


Step = Reduce | Combine | Collect | Fetch | Finish | Share | Await | Barrier | Exchange | LibraryAllreduce
Program = list[Step]
"""What one rank does, in order."""


def split(lo: int, hi: int, count: int, align: int = 1) -> list[Range]:
    """Cut a range into ``count`` ranges that differ by little.

    Boundaries are multiples of ``align`` from its start. Ranges may be empty.
    """
    size = hi - lo
    bounds = [lo + size * index // count // align * align for index in range(count)] + [hi]
    return list(itertools.pairwise(bounds))


def slot_sizes(program: Sequence[Step]) -> list[int]:
    """Return how many elements each slot needs."""
    sizes: dict[int, int] = {}
    for step in program:
        if isinstance(step, Exchange):
            for receive in step.receives:
                if receive.slot is not None:
                    sizes[receive.slot] = max(sizes.get(receive.slot, 0), receive.hi - receive.lo)
    return [sizes.get(slot, 0) for slot in range(max(sizes, default=-1) + 1)]


def in_place(program: Sequence[Step]) -> Program:
    """Return what is left to do when the tensor is one vector, and that is the buffer."""
    steps: Program = []
    for step in program:
        if isinstance(step, Reduce):
            steps += [Combine(step.lo, step.hi, step.slot)] if step.slot is not None else []
        elif not isinstance(step, (Share, Await)):
            steps.append(step)
    return steps
