"""Keeps UCX, through which MPICH sends, from watching every change of this process's memory.

Its hooks are for network cards that read memory themselves, whose registrations must end with the memory.
Where there is no such card they only cost: a worker grew by 144 bytes with each operation, for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE = "UCX_MEM_EVENTS"
RDMA_DEVICES = Path("/sys/class/infiniband")
"""InfiniBand, RoCE, Omni-Path and iWARP cards alike."""


def leave_out(environment: MutableMapping[str, str], devices: Path = RDMA_DEVICES) -> None:
    """Tell UCX, unless the user has said what it is to do; must come before MPI is loaded."""
    if VARIABLE not in environment and not has_cards(devices):
        environment[VARIABLE] = "n"


def has_cards(devices: Path) -> bool:
    """Return whether there are network cards that read and write memory themselves."""
    return devices.is_dir() and any(devices.iterdir())
