"""The exchange buffers of workers of this host that a server works on where they lie.

It stands apart from ``server.py``, which maps and forgets buffers and reads pushes in them, and from
``replies.py``, which writes values into them: what both use has one owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.transport.shared_memory import Directory, Place

if TYPE_CHECKING:
    from collections.abc import Container

    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire import messages as m


class PeerBuffers:
    """The buffers that peers share with one server; from a push to its answer they are the server's.

    Attributes:
        views: The bytes of a buffer, by peer and number of the key.
    """

    def __init__(self) -> None:
        """Start without any."""
        self._directory = Directory()
        self.views: dict[tuple[NodeId, int], memoryview] = {}

    def open(self, peer: NodeId, message: m.Share) -> bool:
        """Map the buffer of a key; say whether this process can reach it."""
        buffer = self._directory.open(Place(*message.place))
        # Another host or container, or no permission: no error, for its bytes can travel.
        if buffer is None:
            return False
        # By peer, not by client: ranks of one client may push parts of the same key, each from a buffer
        # of its own.
        self.views[peer, message.key_id] = buffer
        return True

    def close(self, keys: Container[int]) -> None:
        """Some keys are gone, and their buffers with them."""
        self.views = {place: view for place, view in self.views.items() if place[1] not in keys}

    def forget(self, peers: set[NodeId]) -> None:
        """The peers' processes are gone, and their buffers with them."""
        # A reference that comes before the successor has shared its own would be read from the old memory.
        self.views = {place: view for place, view in self.views.items() if place[0] not in peers}
