"""Ranks of one host: who reaches whose memory.

What is told here is told by all ranks of a communicator, in the same order. It knows nothing of what is
summed, or why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple

import msgspec

from .transport.shared_memory import Place

if TYPE_CHECKING:
    from .interfaces import Communicator
    from .transport.shared_memory import Directory


def meet(
    communicator: Communicator, hosts: Sequence[Sequence[int]], directory: Directory, place: Place | None
) -> Dict[int, memoryview]:
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
    places = [msgspec.msgpack.decode(each, type=Optional[Tuple[Any, ...]]) for each in told]
    [host] = [ranks for ranks in hosts if communicator.rank in ranks]
    found = [(rank, places[rank]) for rank in host]
    views = {rank: directory.open(Place(*place)) if place else None for rank, place in found}
    reached = {rank: view for rank, view in views.items() if view is not None}
    return reached if communicator.minimum(len(reached) == len(host)) else {}
