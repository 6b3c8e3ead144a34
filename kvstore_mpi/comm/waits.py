"""Lets ranks sleep while they wait for other hosts: MPI polls, and a wait over a network is long.

MPICH polls without a pause, so that a rank which waits keeps a core from servers, from its own I/O thread,
and from the training. With this setting it sleeps between two polls, for the 50 to 100 us that the system's
timers take. Ranks of one host wait for less than that, and so do those on networks with cards that write
into memory themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.comm.memory_hooks import RDMA_DEVICES, has_cards

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

VARIABLE = "MPIR_CVAR_ENABLE_HEAVY_YIELD"

_RANKS, _RANKS_HERE = "PMI_SIZE", "MPI_LOCALNRANKS"
"""What MPICH's own mpiexec tells."""


def sleep_between_hosts(environment: MutableMapping[str, str], devices: Path = RDMA_DEVICES) -> None:
    """Tell MPICH, unless the user has said how it is to wait; must come before MPI is loaded."""
    ranks, here = environment.get(_RANKS, ""), environment.get(_RANKS_HERE, "")
    apart = ranks.isdigit() and here.isdigit() and int(here) < int(ranks)
    if VARIABLE not in environment and apart and not has_cards(devices):
        environment[VARIABLE] = "1"
