"""The designs that MXNET-MPI compares (sections 6.3 and 7.3, figures 17 to 20), as data.

They differ in what reduces the vectors of a worker, when, how the workers' sums meet, and what the members
of the ring are. ``DESIGNS`` has those of the paper; any other mix of the fields is one, too.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.tensor_collectives import rings
from kvstore_mpi.tensor_collectives.choice import SMALL_BYTES, Algorithm, Plan
from kvstore_mpi.tensor_collectives.steps import (
    Await,
    Barrier,
    Exchange,
    LibraryAllreduce,
    Program,
    Range,
    Reduce,
    Share,
    Step,
    in_place,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.tensor_collectives.tensor import Operation, Tensor


class Design(NamedTuple):
    """How tensors are reduced over ranks.

    Attributes:
        num_rings: Rings that a tensor is dealt over; from two on, reductions on devices overlap transfers.
        whole_first: The vectors are reduced into the host's buffer as a whole before the ring begins,
            instead of each segment when its turn comes.
        threads: How many threads add what has come to what is on the host, where that is done there.
        library: The library's own allreduce of the host's buffer instead of a ring; reductions before and
            copies after it overlap the segments that are between.
        every_vector: Every vector is a member of the ring, instead of every worker.
        shared: The host's buffer lies in memory that the ranks of a host share, and each adds up its own
            segment of all of them there; between hosts it goes around rings.
        auto: One of shared memory, the library and rings, for each tensor by its size and by where the
            ranks are; what takes the least time by a profile of the machine.
        segment_bytes: Of a large tensor so much is under way at once. With ``auto``, what goes around rings
            is cut as the profile has it instead.
        small_bytes: Up to here few messages are worth more than few bytes: recursive doubling.
    """

    num_rings: int = 1
    whole_first: bool = False
    threads: int = 1
    library: bool = False
    every_vector: bool = False
    shared: bool = False
    auto: bool = False
    segment_bytes: int = 4 << 20
    small_bytes: int = 0


DESIGNS = {
    "ring": Design(small_bytes=SMALL_BYTES),
    "multiring": Design(num_rings=2, small_bytes=SMALL_BYTES),  # ring-IBMGpu
    "host-ring": Design(whole_first=True, threads=8),  # omp_ring-IBMGpu
    "library": Design(library=True),  # reg-IBMGpu
    "flat-ring": Design(every_vector=True),  # Baidu's
    "shared": Design(
        shared=True, small_bytes=SMALL_BYTES
    ),  # not in the paper, whose ranks were one on each host
    "auto": Design(auto=True, small_bytes=SMALL_BYTES),
}


def check(design: Design) -> None:
    """Make sure that a design says one thing.

    Raises:
        UsageError: It does not.
    """
    ways = [design.whole_first, design.library, design.every_vector, design.shared, design.auto]
    if sum(ways) > 1 or (design.num_rings > 1 and any(ways)):
        raise UsageError(
            "a design is one of whole_first, library, every_vector, shared, auto, or rings, of which there "
            f"may be several; not {design}"
        )
    if design.num_rings < 1 or design.threads < 1 or design.segment_bytes < 1:
        raise UsageError(f"num_rings, threads and segment_bytes must be at least 1, not {design}")


def check_use(design: Design, tensor: Tensor, into: Tensor, operation: Operation) -> None:
    """Make sure that a design can reduce a tensor into another.

    Raises:
        UsageError: It cannot.
    """
    if design.library and operation.ufunc is not np.add:
        raise UsageError(f"design library has sum and mean, not {operation.name}: MPI may lose a NaN there")
    if design.every_vector and len(into.vectors) != len(tensor.vectors):
        raise UsageError(
            f"in design flat-ring every vector is a member: out must have {len(tensor.vectors)} vectors, "
            f"not {len(into.vectors)}"
        )


def of_plan(design: Design, plan: Plan) -> Design:
    """Return how a design with ``auto`` carries out what was chosen; its other fields stay."""
    if plan.algorithm is Algorithm.RING:
        return design._replace(auto=False, num_rings=plan.num_rings, segment_bytes=plan.segment_bytes)
    shared = plan.algorithm is Algorithm.SHM
    return design._replace(auto=False, shared=shared, library=not shared)


def whole_first(ranks: Sequence[int], rank: int, extent: Range) -> Program:
    """Reduce the vectors to the host, then around a ring there, then copy the result to the vectors."""
    ring = in_place(rings.allreduce(ranks, rank, extent))
    return [Reduce(*extent), Await(*extent), *ring, Share(*extent), Await(*extent)]


def through_library(ranks: Sequence[int], rank: int, extent: Range, size: int) -> Program:  # noqa: ARG001
    """Pipeline in three stages: reduce a segment to the host, sum the last one, spread the one before.

    Args:
        ranks: The ranks that meet: all of the communicator.
        rank: The own one.
        extent: The elements.
        size: Elements of a segment.
    """
    segments = [(lo, min(lo + size, extent[1])) for lo in range(extent[0], extent[1], size)]
    program: Program = [Reduce(*segment) for segment in segments[:1]]
    for segment, following in zip(segments, [*segments[1:], None]):
        program.append(Await(*segment))
        if following is not None:
            program.append(Reduce(*following))
        program += [LibraryAllreduce(*segment), Share(*segment)]
    return [*program, *(Await(*segment) for segment in segments)]


def every_vector(ranks: Sequence[int], rank: int, extent: Range, vectors: int) -> Program:
    """Send around a ring of which every vector is a member: more hops, two of them within each worker.

    The buffer has a region for each vector, one after the other. What goes from a vector to the next of the
    same worker is a message of the rank to itself.

    Args:
        ranks: The ranks that meet, in the order of the ring.
        rank: The own one.
        extent: The elements of all regions.
        vectors: How many each rank has.
    """
    size = (extent[1] - extent[0]) // vectors
    members, first = range(len(ranks) * vectors), ranks.index(rank) * vectors
    programs = [rings.allreduce(members, first + index, (0, size)) for index in range(vectors)]
    merged: Program = []
    for steps in zip(*programs):
        moved = [_moved(step, index, size) for index, step in enumerate(steps)]
        merged += [_together(moved, ranks, vectors)] if isinstance(steps[0], Exchange) else moved
    return merged


def _moved(step: Step, index: int, size: int) -> Step:
    """Return a step of one vector's program, in its region of the buffer and with its own slot."""
    by = index * size
    if isinstance(step, Exchange):
        [send], [receive] = step.sends, step.receives
        slot = None if receive.slot is None else index
        return Exchange(
            (send._replace(lo=send.lo + by, hi=send.hi + by),),
            (receive._replace(lo=receive.lo + by, hi=receive.hi + by, slot=slot),),
        )
    assert not isinstance(step, Barrier)
    moved = step._replace(lo=step.lo + by, hi=step.hi + by)
    return moved._replace(slot=index) if isinstance(moved, Reduce) and moved.slot is not None else moved


def _together(steps: Sequence[Step], ranks: Sequence[int], vectors: int) -> Exchange:
    """Let all vectors of a worker exchange at once; members of the ring become ranks.

    Messages of a rank to itself arrive in the order in which they leave: from the first vector to the
    second, and so on. What the first one receives comes from the last one, so that it is the last.
    """
    exchanges = [step for step in steps if isinstance(step, Exchange)]
    sends = [send._replace(peer=ranks[send.peer // vectors]) for each in exchanges for send in each.sends]
    receives = [
        each.receives[0]._replace(peer=ranks[each.receives[0].peer // vectors]) for each in exchanges
    ]
    return Exchange(tuple(sends), (*receives[1:], receives[0]))
