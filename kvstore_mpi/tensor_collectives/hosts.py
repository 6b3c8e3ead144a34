"""Collectives that use the memory which the ranks of one host share, and rings between hosts.

A rank whose buffer others can reach need not send: each rank adds up its own segment of all buffers, where
they lie, and writes the result to all who want it. A segment of any buffer is touched by one rank alone
between two barriers, so that nothing is read while it changes.

Pure.
"""

from __future__ import annotations

from typing import Sequence

from .rings import ALIGN, Ring, allgather, reduce_scatter
from .steps import (
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


def shared_memory(ranks: Sequence[int], rank: int, part: Range) -> Program:
    """Allreduce among ranks of one host.

    Args:
        ranks: Who takes part; sums are formed in this order, so that neither sizes nor neighbours in a
        buffer
            change a bit.
        rank: The own one.
        part: The elements.
    """
    return [*_collect(ranks, rank, part, ranks), Share(*part), Await(*part)]


def shared_memory_reduce(ranks: Sequence[int], rank: int, part: Range, root: int) -> Program:
    """Reduce to the buffer of one rank, by all of them; the vectors of the others stay as they are."""
    program = _collect(ranks, rank, part, [root])
    return [*program, Share(*part), Await(*part)] if rank == root else program


def shared_memory_broadcast(ranks: Sequence[int], rank: int, part: Range, root: int) -> Program:
    """Copy the buffer of one rank to all."""
    everyone = tuple(ranks)
    mine: Program = [Reduce(*part), Await(*part)] if rank == root else []
    copy: Program = [] if rank == root else [Fetch(*part, root)]
    return [*mine, Barrier(everyone), *copy, Barrier(everyone), Share(*part), Await(*part)]


def _collect(ranks: Sequence[int], rank: int, part: Range, targets: Sequence[int]) -> Program:
    everyone = tuple(ranks)
    own = _blocks(ranks, part)[ranks.index(rank)]
    return [
        Reduce(*part),
        Await(*part),
        Barrier(everyone),
        Collect(*own, everyone, tuple(targets), complete=True),
        Barrier(everyone),
    ]


def hierarchical(hosts: Sequence[Sequence[int]], rank: int, part: Range) -> Program:
    """Allreduce within each host, then between hosts, then within hosts again.

    Every rank takes its own segment around a ring of the ranks with the same place on each host, so that
    all ranks of a host send at once.

    Args:
        hosts: The ranks of each host; equally many.
        rank: The own one.
        part: The elements.
    """
    [host] = [ranks for ranks in hosts if rank in ranks]
    place = host.index(rank)
    own = _blocks(host, part)[place]
    ring = Ring([ranks[place] for ranks in hosts], rank, own, 0)
    everyone = tuple(host)
    return [
        Reduce(*part),
        Await(*part),
        Barrier(everyone),
        Collect(*own, everyone, (rank,), complete=False),
        # What this host has collected is in the buffer, not in the vectors.
        *in_place([*reduce_scatter([ring]), *allgather(ring)]),
        *_spread(host, rank, part),
    ]


def _blocks(ranks: Sequence[int], part: Range) -> list[Range]:
    return split(*part, len(ranks), ALIGN if part[1] - part[0] >= ALIGN * len(ranks) else 1)


def _spread(ranks: Sequence[int], rank: int, part: Range) -> Program:
    everyone = tuple(ranks)
    blocks = _blocks(ranks, part)
    place = ranks.index(rank)
    others = [(place + distance) % len(ranks) for distance in range(1, len(ranks))]
    return [
        Barrier(everyone),
        *(Fetch(*blocks[other], ranks[other]) for other in others),
        Barrier(everyone),
        Share(*part),
        Await(*part),
    ]
