"""Collectives of ranks on several hosts: shared memory within each host, rings between them.

Every host has as many *carriers* as the host with the fewest ranks has ranks. The carriers of the same
number on all hosts form a column, to which an equal chunk of the vector belongs; columns transfer at the
same time, so that as many ranks of a host send at once as can. Where a host has more ranks than carriers
the others help: ranks that share a carrier each add up a segment of its chunk.

All buffers of a host can be reached by its ranks. Between two barriers a segment of any buffer is touched
by one rank alone. Within a host sums are formed in the order of the ranks, between hosts around a ring,
which of more than two is an order that depends on the place in the vector; all ranks have the same bits.
What is waited for, and in which order, does not depend on the size.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.tensor_collectives import rings, trees
from kvstore_mpi.tensor_collectives.rings import ALIGN
from kvstore_mpi.tensor_collectives.steps import (
    Await,
    Barrier,
    Collect,
    Fetch,
    Program,
    Range,
    Reduce,
    Share,
    in_place,
    split,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class Levels(NamedTuple):
    """How ranks meet on two levels.

    Attributes:
        hosts: The ranks of each host, in order; as many or not as on the others.
        doubling: Between hosts recursive doubling instead of a ring: few messages instead of few bytes.
    """

    hosts: tuple[tuple[int, ...], ...]
    doubling: bool = False


class _Place:
    """Where a rank stands.

    Attributes:
        host: The ranks of its host.
        carriers: Those of them that transfer.
        chunks: What belongs to each of them.
        carrier: The one that this rank helps, or is.
        column: The ranks of that number on all hosts.
        chunk: What belongs to the column.
        own: What this rank adds up of it.
    """

    def __init__(self, hosts: Sequence[tuple[int, ...]], rank: int, extent: Range) -> None:
        """Find it."""
        [self.host] = [ranks for ranks in hosts if rank in ranks]
        columns = min(map(len, hosts))
        number, turn = self.host.index(rank) % columns, self.host.index(rank) // columns
        self.carriers = self.host[:columns]
        self.carrier = self.host[number]
        self.column = [ranks[number] for ranks in hosts]
        self.chunks = _split(extent, columns)
        self.chunk = self.chunks[number]
        self.own = _split(self.chunk, len(self.host[number::columns]))[turn]
        self._hosts, self._rank = hosts, rank

    @property
    def carries(self) -> bool:
        """Whether this rank transfers."""
        return self._rank == self.carrier

    def on_host_of(self, rank: int) -> int:
        """Return the rank of the own column on the host of a rank."""
        [found] = [member for member, ranks in zip(self.column, self._hosts) if rank in ranks]
        return found

    def collect(self) -> Program:
        """Add up what this host has: afterwards each carrier has the host's sum of its chunk."""
        own = Collect(*self.own, self.host, (self.carrier,), complete=False)
        return [Barrier(self.host), own, Barrier(self.host)]

    def fetch(self) -> Program:
        """Copy all other carriers' chunks to the own buffer, each rank beginning with another."""
        pairs = list(zip(self.carriers, self.chunks))
        first = self.host.index(self._rank) % len(pairs)
        in_turn = (*pairs[first:], *pairs[:first])
        return self.look_on([Fetch(*chunk, rank) for rank, chunk in in_turn if rank != self._rank])

    def look_on(self, steps: Program) -> Program:
        """Keep the host's buffers as they are while some of its ranks do something with them."""
        return [Barrier(self.host), *steps, Barrier(self.host)]


def allreduce(ranks: Sequence[int], rank: int, extent: Range, levels: Levels) -> Program:  # noqa: ARG001
    """Sum within each host, between the hosts, and share within the hosts again.

    Args:
        ranks: All ranks.
        rank: The own one.
        extent: The elements.
        levels: Their hosts.
    """
    place = _Place(levels.hosts, rank, extent)
    make = trees.recursive_doubling if levels.doubling else rings.allreduce
    between = in_place(make(place.column, rank, place.chunk)) if place.carries else []
    return [*_whole(extent), *place.collect(), *between, *place.fetch(), Share(*extent), Await(*extent)]


def reduce(ranks: Sequence[int], rank: int, extent: Range, root: int, levels: Levels) -> Program:  # noqa: ARG001
    """Sum to one rank, by way of its host; the buffers of the others are undefined afterwards."""
    place = _Place(levels.hosts, rank, extent)
    steps: Program = [*_whole(extent), *place.collect()]
    if place.carries and levels.doubling:
        steps += in_place(trees.recursive_doubling(place.column, rank, place.chunk))
    elif place.carries:
        steps += in_place(rings.reduce(place.column, rank, place.chunk, place.on_host_of(root)))
    if rank == root:
        return [*steps, *place.fetch(), Share(*extent), Await(*extent)]
    return [*steps, *place.look_on([])] if root in place.host else steps


def broadcast(ranks: Sequence[int], rank: int, extent: Range, root: int, levels: Levels) -> Program:  # noqa: ARG001
    """Copy the buffer of one rank to all: to its host's carriers, over a tree of each column, to all."""
    place = _Place(levels.hosts, rank, extent)
    steps: Program = _whole(extent) if rank == root else []
    if root in place.host:
        own: Program = [Fetch(*place.chunk, root)] if place.carries and rank != root else []
        steps += place.look_on(own)
    if place.carries:
        steps += in_place(trees.broadcast(place.column, rank, place.chunk, place.on_host_of(root)))
    steps += place.look_on([]) if rank == root else place.fetch()
    return [*steps, Share(*extent), Await(*extent)]


def _whole(extent: Range) -> Program:
    """Reduce the own vectors to the buffer."""
    return [Reduce(*extent), Await(*extent)]


def _split(extent: Range, parts: int) -> list[Range]:
    return split(*extent, parts, ALIGN if extent[1] - extent[0] >= ALIGN * parts else 1)
