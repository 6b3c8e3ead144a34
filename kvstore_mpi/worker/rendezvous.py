"""How a worker meets the others of its job: the coordinator, the servers, and in its client the leader.

This file must not know what is said after that.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from kvstore_mpi.records import NodeId, Role, Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.wire import messages as m
    from kvstore_mpi.wire.instructions import Log, Send, Stop
    from kvstore_mpi.wire.io_loop import IoLoop
    from kvstore_mpi.worker.instructions import Joined


class Coordinator(Protocol):
    """The scheduler's state, as rank 0 sees it when it runs that beside its own, in pure MPI."""

    def handle(self, sender: NodeId, message: m.ToScheduler, now: float) -> Iterable[Send | Log | Stop]:
        """React to a message."""

    def tick(self, now: float) -> Iterable[Send | Log | Stop]:
        """See to what is overdue."""


class Rendezvous:
    """Whom one worker needs before it has joined, and who of them is there.

    ``names_awaited`` may be called from any thread, everything else by the I/O thread.

    Attributes:
        node: This worker.
        coordinator: Who introduces the others: the scheduler, or rank 0 in pure MPI.
        joined: Done when all are there; failed when that can no longer be.
    """

    def __init__(self, node: NodeId, coordinator: NodeId, topology: Topology, loop: IoLoop) -> None:
        """Start without having met anybody.

        Args:
            node: This worker.
            coordinator: Who introduces the others: the scheduler, or rank 0 in pure MPI.
            topology: The shape of the job.
            loop: Connects to them.
        """
        self.node = node
        self.coordinator = coordinator
        self._topology = topology
        self._loop = loop
        # Two sets, because a peer may be connected before it is known that it is awaited.
        self._awaited: set[NodeId] = set()
        self._connected: set[NodeId] = set()
        self._introduced = False
        self.joined: Future[None] = Future()

    def begin(self, addresses: Sequence[str], now: float) -> None:
        """Connect to the coordinator, unless this worker is that itself."""
        if self.coordinator != self.node:
            self._connect(self.coordinator, addresses, now)
            # Watched, as nobody else is: what happens to the others is told by the coordinator, and nobody
            # could tell of its own end.
            self._loop.endpoint.monitor(self.coordinator)

    def introduce(self, others: Joined, now: float) -> None:
        """Connect to the servers and to the leader; later, to servers that have come back elsewhere."""
        # Also called for a server that has come back at another address; connecting ends the old session
        # with it.
        for index in range(self._topology.num_servers):
            server = NodeId(Role.SERVER, index)
            if str(server) in others.addresses:
                self._connect(server, others.addresses[str(server)], now)
        # Once: the rest of the client does not come back elsewhere, because a client is restarted as a
        # whole.
        if not self._introduced:
            self._introduce_client(others, now)
        self._introduced = True
        self._check()

    def _introduce_client(self, others: Joined, now: float) -> None:
        client = self._topology.client_of(self.node.index)
        leader = self._topology.leader_of(client)
        # Only one side of a pair connects, and the leader is the one that listens: a client then has as
        # many connections as members. In pure MPI the leader is the coordinator and connected already.
        if self.node != leader != self.coordinator:
            self._connect(leader, others.addresses[str(leader)], now)
        if self.node == leader:  # its members connect to it
            self._awaited.update(NodeId(Role.WORKER, r) for r in self._topology.members_of(client))
            self._awaited.discard(self.node)

    def _connect(self, peer: NodeId, addresses: Sequence[str], now: float) -> None:
        self._awaited.add(peer)
        self._loop.endpoint.connect(peer, self._loop.transport.connect(addresses), now)

    def connected(self, peer: NodeId) -> None:
        """A peer is connected."""
        self._connected.add(peer)
        self._check()

    def _check(self) -> None:
        # Not before the introduction: until then nobody is known to be awaited but the coordinator.
        if self._introduced and self._awaited <= self._connected and not self.joined.done():
            self.joined.set_result(None)

    def is_connected(self, peer: NodeId) -> bool:
        """Return whether a peer has connected."""
        return peer in self._connected

    def fail(self, error: KVStoreError) -> None:
        """This worker's communication has ended, before it has joined or later."""
        # Later nobody waits here; operations have an error of their own.
        if not self.joined.done():
            self.joined.set_exception(error)

    def names_awaited(self) -> str:
        """Return who is not there yet, for people."""
        # Nobody is missing and yet it has not joined: then the coordinator has not introduced it, because
        # others have not come.
        missing = sorted(self._awaited - self._connected)
        return ", ".join(map(str, missing)) or "the other workers"
