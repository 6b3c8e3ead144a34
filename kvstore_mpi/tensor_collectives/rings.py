"""Collectives over rings: reduce-scatter, allgather, and MXNET-MPI's multi-ring allreduce.

In a ring of p ranks every rank sends to the next, and each segment makes p - 1 hops to be summed and p - 1
to be
spread: 2 (p - 1) messages and 2 (p - 1) / p n elements, which no algorithm undercuts. Within one ring a hop
needs the local reduction of the hop before. With two rings, over two halves of the vector, the reduction of
one overlaps the transfer of the other (section 6.2, Figure 9); more rings add nothing but a longer start
and end.

Pure.
"""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from kvstore_mpi.tensor_collectives.steps import (
    Await,
    Exchange,
    Finish,
    Program,
    Range,
    Receive,
    Reduce,
    Send,
    Share,
    split,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALIGN = 16
"""Segments begin at multiples of 64 bytes of float32, a cache line, where they are long enough."""


class Ring:
    """The way of one vector, or of its share, around a ring, seen from one rank.

    Attributes:
        chunks: One segment for each rank; after the reduce-scatter chunk i is complete at rank i.
    """

    def __init__(
        self, ranks: Sequence[int], rank: int, extent: Range, slot: int, *, align: int = ALIGN
    ) -> None:
        """Describe a ring.

        Args:
            ranks: Its members, in order.
            rank: The own one.
            extent: What goes around.
            slot: Where segments arrive that are still to be added.
            align: Chunks begin at multiples of this many elements, where they are long enough.
        """
        self.size = len(ranks)
        self._place = ranks.index(rank)
        self._right = ranks[(self._place + 1) % self.size]
        self._left = ranks[self._place - 1]
        self._slot = slot
        align = align if extent[1] - extent[0] >= align * self.size else 1
        self.chunks = split(*extent, self.size, align)

    @property
    def own(self) -> Range:
        """The chunk that is complete here after the reduce-scatter."""
        return self.chunks[self._place]

    def _chunk(self, step: int) -> Range:
        """Return what is reduced here at a step: chunk r - 1 at first, so that the own one comes last."""
        return self.chunks[(self._place - 1 - step) % self.size]

    def start(self, step: int) -> Reduce:
        """Start the local reduction of a step: the vectors, and what has arrived in the step before."""
        return Reduce(*self._chunk(step), self._slot if step else None)

    def wait(self, step: int) -> Await:
        """Wait for that reduction."""
        return Await(*self._chunk(step))

    def send_receive(self, step: int) -> Exchange:
        """Send what the step has reduced, and receive what the next one adds to."""
        return Exchange(
            (Send(self._right, *self._chunk(step)),),
            (Receive(self._left, *self._chunk(step + 1), self._slot),),
        )

    def pass_on(self, step: int) -> Exchange:
        """Spread what is complete: send what came last, the own chunk first, and receive another."""
        return Exchange(
            (Send(self._right, *self._chunk(step - 1)),), (Receive(self._left, *self._chunk(step)),)
        )

    def came(self, step: int) -> Range:
        """Return what is complete here before a step of spreading."""
        return self._chunk(step - 1)


def reduce_scatter(rings: Sequence[Ring]) -> Program:
    """Reduce over all ranks; of each ring, the own chunk is then complete here."""
    turns = _single(rings[0]) if len(rings) == 1 else _interleaved(rings)
    return [*turns, *(Finish(*ring.own) for ring in rings)]


def _single(ring: Ring) -> Iterator[Reduce | Await | Exchange]:
    yield ring.start(0)
    for step in range(ring.size - 1):
        yield ring.wait(step)
        yield ring.send_receive(step)
        yield ring.start(step + 1)
    yield ring.wait(ring.size - 1)


def _interleaved(rings: Sequence[Ring]) -> Iterator[Reduce | Await | Exchange]:
    """Figure 9: while one ring transfers, the next reduces. With one ring it would start a step twice."""
    last = rings[0].size - 1
    steps = [0] * len(rings)
    yield rings[0].start(0)
    current = 0
    while steps[-2] <= last:
        following = (current + 1) % len(rings)
        yield rings[following].start(steps[following])
        yield rings[current].wait(steps[current])
        if steps[current] != last:
            yield rings[current].send_receive(steps[current])
        steps[current] += 1
        current = following
    yield rings[current].wait(steps[current])


def allgather(ring: Ring) -> Program:
    """Spread the chunks; while one is passed on it is copied to the vectors (section 6.3.1)."""
    program: Program = []
    for step in range(ring.size - 1):
        program += [Share(*ring.came(step)), ring.pass_on(step)]
    program.append(Share(*ring.came(ring.size - 1)))
    return [*program, *(Await(*chunk) for chunk in ring.chunks)]


def reduce_scatter_chunks(ranks: Sequence[int], rank: int, extent: Range) -> Program:
    """Reduce over all ranks; chunk i of ``steps.split`` is then complete in the buffer of rank i."""
    return reduce_scatter([Ring(ranks, rank, extent, 0, align=1)])


def allgather_chunks(ranks: Sequence[int], rank: int, extent: Range) -> Program:
    """Spread such chunks."""
    return allgather(Ring(ranks, rank, extent, 0, align=1))


def make_rings(ranks: Sequence[int], rank: int, extent: Range, num_rings: int) -> list[Ring]:
    """Give each ring an equal share of a vector."""
    align = ALIGN if extent[1] - extent[0] >= ALIGN * num_rings * len(ranks) else 1
    shares = split(*extent, num_rings, align)
    return [Ring(ranks, rank, each, slot) for slot, each in enumerate(shares)]


def allreduce(ranks: Sequence[int], rank: int, extent: Range, num_rings: int = 1) -> Program:
    """Reduce over all ranks and give the result to all.

    Args:
        ranks: The ranks that meet, in the order of the ring.
        rank: The own one.
        extent: The elements.
        num_rings: 2 overlap local reductions and transfers.
    """
    rings = make_rings(ranks, rank, extent, num_rings)
    program = reduce_scatter(rings)
    for ring in rings:
        program += allgather(ring)
    return program


def pipelined(ranks: Sequence[int], rank: int, extent: Range, num_rings: int, segment: int) -> Program:
    """Allreduce of a long vector: rings take turns in transferring, each with one segment after the other.

    Figure 9 goes once through its loop, with nothing to transfer at first and nothing to reduce at the
    end; of two ranks that is half of the work. Here a ring goes on with its next segment as soon as it has
    spread one, so that between two ranks only the very first reduction and the last transfer are by
    themselves.

    Args:
        ranks: The ranks that meet, in the order of the rings.
        rank: The own one.
        extent: The elements.
        num_rings: Number of rings that take turns.
        segment: Elements that go around all rings at once.
    """
    lanes: list[list[Ring]] = [[] for _ in range(num_rings)]
    for lo in range(extent[0], extent[1], segment):
        now = make_rings(ranks, rank, (lo, min(lo + segment, extent[1])), num_rings)
        for lane, ring in zip(lanes, now):
            lane.append(ring)
    program: Program = [lane[0].start(0) for lane in lanes if lane]
    for turns in zip_longest(*map(_turns_of, lanes), fillvalue=[]):
        program += chain(*turns)
    return [*program, *(Await(*chunk) for lane in lanes for ring in lane for chunk in ring.chunks)]


def _turns_of(lane: Sequence[Ring]) -> Iterator[Program]:
    """Yield what a ring does between the transfers of the others, for all its segments."""
    for ring, following in zip_longest(lane, lane[1:]):
        turns = _turns(ring)
        if following is not None:
            turns[-1].append(following.start(0))
        yield from turns


def _turns(ring: Ring) -> list[Program]:
    """Return what a ring does with a segment, one transfer in each turn; step 0 has been started."""
    last = ring.size - 1
    turns: list[Program] = [
        [ring.wait(step), ring.send_receive(step), ring.start(step + 1)] for step in range(last)
    ]
    turns += [[Share(*ring.came(step)), ring.pass_on(step)] for step in range(last)] or [[]]
    turns[last][:0] = [ring.wait(last), Finish(*ring.own)]
    turns[-1].append(Share(*ring.came(last)))
    return turns


def reduce(ranks: Sequence[int], rank: int, extent: Range, root: int, num_rings: int = 1) -> Program:
    """Reduce to one rank; the buffers of the others are undefined afterwards."""
    rings = make_rings(ranks, rank, extent, num_rings)
    program = reduce_scatter(rings)
    for ring in rings:
        program.append(_gather(ring, ranks, rank, root))
    return [*program, Share(*extent), Await(*extent)] if rank == root else program


def _gather(ring: Ring, ranks: Sequence[int], rank: int, root: int) -> Exchange:
    """Bring the complete chunks to one rank."""
    if rank != root:
        return Exchange((Send(root, *ring.own),), ())
    others = [(peer, chunk) for peer, chunk in zip(ranks, ring.chunks) if peer != root]
    return Exchange((), tuple(Receive(peer, *chunk) for peer, chunk in others))
