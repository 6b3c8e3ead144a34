"""Collectives of ranks of one host that share their memory.

A rank whose buffer others can reach need not send: each rank adds up its own segment of all buffers, where
they lie, and writes the result to all that want it. A segment of any buffer is touched by one rank alone
between two barriers, so that nothing is read while it changes.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    split,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def shared_memory(ranks: Sequence[int], rank: int, extent: Range) -> Program:
    """Allreduce among ranks of one host.

    Args:
        ranks: The ranks that meet; sums are formed in this order, so that neither sizes nor neighbours in a
            buffer change a bit.
        rank: The own one.
        extent: The elements.
    """
    return [*_collect(ranks, rank, extent, ranks), Share(*extent), Await(*extent)]


def shared_memory_reduce(ranks: Sequence[int], rank: int, extent: Range, root: int) -> Program:
    """Reduce to the buffer of one rank, by all of them; the vectors of the others stay as they are."""
    program = _collect(ranks, rank, extent, [root])
    return [*program, Share(*extent), Await(*extent)] if rank == root else program


def shared_memory_broadcast(ranks: Sequence[int], rank: int, extent: Range, root: int) -> Program:
    """Copy the buffer of one rank to all."""
    everyone = tuple(ranks)
    mine: Program = [Reduce(*extent), Await(*extent)] if rank == root else []
    copy: Program = [] if rank == root else [Fetch(*extent, root)]
    return [*mine, Barrier(everyone), *copy, Barrier(everyone), Share(*extent), Await(*extent)]


def _collect(ranks: Sequence[int], rank: int, extent: Range, targets: Sequence[int]) -> Program:
    everyone = tuple(ranks)
    own = _chunks(ranks, extent)[ranks.index(rank)]
    return [
        Reduce(*extent),
        Await(*extent),
        Barrier(everyone),
        Collect(*own, everyone, tuple(targets), complete=True),
        Barrier(everyone),
    ]


def _chunks(ranks: Sequence[int], extent: Range) -> list[Range]:
    return split(*extent, len(ranks), ALIGN if extent[1] - extent[0] >= ALIGN * len(ranks) else 1)


def place_on_host(hosts: Sequence[Sequence[int]], rank: int) -> tuple[int, int]:
    """Return a rank's number on its host, and the number of hosts.

    Args:
        hosts: The ranks on each host.
        rank: One of them.
    """
    [number] = [ranks.index(rank) for ranks in hosts if rank in ranks]
    return number, len(hosts)
