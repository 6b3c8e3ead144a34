"""Ranks of one host: who reaches whose memory, and a stage in memory that they share.

What is told here is told by all ranks of a communicator, in the same order. It knows nothing of what is
summed, or why.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvstore_mpi.transport.shared_memory import Arena, Directory, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.interfaces import Communicator

Array = np.ndarray[Any, Any]

log = logging.getLogger("kvstore_mpi.neighbours")


def meet(
    communicator: Communicator, hosts: Sequence[Sequence[int]], directory: Directory, place: Place | None
) -> dict[int, memoryview]:
    """Tell each other where a buffer lies, and map those of the own host; called by all ranks.

    Args:
        communicator: The ranks.
        hosts: Those of each host.
        directory: Maps buffers.
        place: Where the own one lies, if others can map it.

    Returns:
        The buffers of the ranks of this host, the own one among them; none at all if any rank of any host
        does not reach one: what one cannot reach, none may use.
    """
    mine = msgspec.msgpack.encode(place)
    told = [communicator.broadcast_bytes(mine, rank) for rank in range(communicator.size)]
    places = [msgspec.msgpack.decode(each, type=tuple[Any, ...] | None) for each in told]
    [host] = [ranks for ranks in hosts if communicator.rank in ranks]
    found = [(rank, places[rank]) for rank in host]
    views = {rank: directory.open(Place(*place)) if place else None for rank, place in found}
    reached = {rank: view for rank, view in views.items() if view is not None}
    return reached if communicator.minimum(len(reached) == len(host)) else {}


class Stage:
    """Memory of one size through which vectors go that lie elsewhere; each rank of a host has one.

    It ends with the last rank that has it: no file, and no descriptor of its own, is left.

    Attributes:
        whole: The own one, as bytes.
        reached: All ranks of all hosts reach those of their host; else it is of no use.
    """

    def __init__(self, communicator: Communicator, hosts: Sequence[Sequence[int]], num_bytes: int) -> None:
        """Make it, and find those of the ranks of this host; called by all ranks."""
        arena = Arena()
        try:
            self.whole = _allocate(arena, num_bytes)
            views = meet(communicator, hosts, Directory(), arena.place(self.whole))
        finally:
            arena.close()  # who is to reach it has done so
        self.reached = bool(views)
        self._views = {**views, communicator.rank: self.whole.data}

    def buffers(self, size: int, dtype: np.dtype[Any]) -> dict[int, Array]:
        """Return the first elements of the stages of all ranks of this host, as arrays of a type."""
        return {rank: np.frombuffer(view, dtype, size) for rank, view in self._views.items()}


def _allocate(arena: Arena, num_bytes: int) -> Array:
    """Return memory from an arena; where there is none, other memory: that others must learn, not miss."""
    if Arena.available():
        try:
            return arena.allocate(num_bytes, np.dtype(np.uint8))
        except OSError as error:  # a sandbox forbids it, or there are too many files
            log.debug("no memory that other processes could map: %s", error)
    return np.empty(num_bytes, np.uint8)
