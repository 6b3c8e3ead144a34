"""The copies of values that clients keep for a server which cannot save its shard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvstore_mpi.wire import messages as m

if TYPE_CHECKING:
    from kvstore_mpi.records import NodeId, Topology
    from kvstore_mpi.wire.io_loop import IoLoop

log = logging.getLogger("kvstore_mpi.server")


class KeptCopies:
    """Whom one server asks to keep copies, and since when.

    Attributes:
        wanted: Clients are asked.
    """

    def __init__(self, node: NodeId, topology: Topology, loop: IoLoop) -> None:
        """Start without asking for any."""
        self._node = node
        self._topology = topology
        self._loop = loop
        # It never goes back: a disk that has failed once may fail again, and a copy that was given up
        # cannot be had again before the next pull.
        self.wanted = False

    def want(self) -> None:
        """Have values kept elsewhere, now that they are saved nowhere."""
        self.wanted = True
        log.warning("%s cannot save: clients keep copies of what is in asynchronous stores", self._node)
        # One rank of each client, the one that pushes and is answered: a copy costs as much as the model.
        for client in range(self._topology.num_clients):
            self._ask(self._topology.leader_of(client))

    def connected(self, worker: NodeId) -> None:
        """A worker has connected: it may be new, or another process than the one that was asked."""
        if self.wanted:
            # Also one that was asked before: it may be kept by another process now, which looks the same
            # from here.
            self._ask(worker)

    def _ask(self, worker: NodeId) -> None:
        # Who is not connected is asked when it is: see ``connected``.
        if self._loop.endpoint.is_connected(worker):
            self._loop.send(worker, m.KeepValues())
