"""Which algorithm carries out a collective.

Pure.
"""

from __future__ import annotations

import enum
from typing import Sequence

SHARED_FROM_BYTES = 64 << 10
"""From here on ranks of one host add up each other's buffers where they lie. Below, the library's own way
is faster: ours takes two barriers and some Python (``benchmarks/allreduce.py``)."""

PAIR = 2
"""Ranks of which the sum is the same in either order. Among more, all sums within a host are formed in
shared memory, in the order of the ranks: MPI may add in an order that depends on what a number lies beside,
so that small keys could not be put together without changing bits."""


class Algorithm(enum.Enum):
    """A way to reduce over ranks; the values are what ``--collective`` takes."""

    RING = "ring"
    MULTIRING = "multiring"
    SHM = "shm"
    MPI = "mpi"
    AUTO = "auto"


def choose(wanted: Algorithm, num_bytes: int, hosts: Sequence[Sequence[int]], *, shared: bool) -> Algorithm:
    """Return the algorithm for a part of a buffer; all ranks must come to the same.

    Shared memory gives way to MPI where there is none: types that MXNet keeps in memory of its own, say.

    Args:
        wanted: What the user asks for.
        num_bytes: Size of the part.
        hosts: The ranks of each host.
        shared: All ranks can reach each other's buffers of this key.
    """
    possible = shared and len(hosts) == 1
    if wanted is Algorithm.AUTO:
        large = num_bytes >= SHARED_FROM_BYTES or sum(map(len, hosts)) > PAIR
        return Algorithm.SHM if possible and large else Algorithm.MPI
    if wanted is Algorithm.SHM and not possible:
        return Algorithm.MPI
    return wanted
