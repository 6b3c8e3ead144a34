"""Collectives of few messages, for small tensors: recursive doubling, and a tree for broadcasts.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.tensor_collectives.steps import (
    Await,
    Combine,
    Exchange,
    Finish,
    Program,
    Range,
    Receive,
    Reduce,
    Send,
    Share,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLOT = 0


def recursive_doubling(ranks: Sequence[int], rank: int, extent: Range) -> Program:
    """Allreduce in log2(p) rounds, in each of which partners exchange and add all that they have.

    Where p is no power of two, as many ranks as are too many first give what they have to a partner, and
    get the result from it at the end. Both partners add the same two numbers, so that all ranks have the
    same bits.
    """
    place, size = ranks.index(rank), len(ranks)
    core = 1 << (size.bit_length() - 1)
    program: Program = [Reduce(*extent), Await(*extent)]
    if place >= core:
        partner = ranks[place - core]
        program.append(Exchange((Send(partner, *extent),), ()))
        program.append(Exchange((), (Receive(partner, *extent),)))
    else:
        spare = ranks[place + core] if place + core < size else None
        if spare is not None:
            program += [Exchange((), (Receive(spare, *extent, _SLOT),)), Combine(*extent, _SLOT)]
        distance = 1
        while distance < core:
            partner = ranks[place ^ distance]
            program.append(Exchange((Send(partner, *extent),), (Receive(partner, *extent, _SLOT),)))
            program.append(Combine(*extent, _SLOT))
            distance *= 2
        program.append(Finish(*extent))
        if spare is not None:
            program.append(Exchange((Send(spare, *extent),), ()))
    return [*program, Share(*extent), Await(*extent)]


def broadcast(ranks: Sequence[int], rank: int, extent: Range, root: int) -> Program:
    """Spread the root's vectors over a binomial tree: each rank that has them gives them on."""
    size = len(ranks)
    place = (ranks.index(rank) - ranks.index(root)) % size
    program: Program = [Reduce(*extent), Await(*extent)] if place == 0 else []
    distance = 1
    while distance < size:
        if place < distance and place + distance < size:
            peer = ranks[(ranks.index(root) + place + distance) % size]
            program.append(Exchange((Send(peer, *extent),), ()))
        elif distance <= place < 2 * distance:
            peer = ranks[(ranks.index(root) + place - distance) % size]
            program.append(Exchange((), (Receive(peer, *extent),)))
        distance *= 2
    return [*program, Share(*extent), Await(*extent)]
