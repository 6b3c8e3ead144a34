"""An endpoint over a transport, driven one pass at a time by a test instead of by an I/O loop.

This file must not know of real time: the test gives the clock.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kvstore_mpi.wire.endpoint import Endpoint
from kvstore_mpi.wire.events import Received
from kvstore_mpi.wire.handshake import Identity

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Clock, Transport
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire.events import Event

SECRET = bytes(range(32))
"""The secret of the jobs of tests."""


class WireNode:
    """One process of a simulated job, as far as messages are concerned.

    Attributes:
        endpoint: The sessions under test.
        transport: What carries the frames.
        events: All events so far.
        address: Where this node listens.
    """

    def __init__(
        self,
        node: NodeId,
        transport: Transport,
        clock: Clock,
        *,
        seed: int = 0,
        secret: bytes = SECRET,
        connect_timeout: float = 60.0,
        heartbeat: float = 1.0,
        peer_timeout: float = 5.0,
    ) -> None:
        """Listen, with an endpoint whose random numbers follow from the name and the seed."""
        source = random.Random(f"{node} {seed}")
        self.node = node
        self.transport = transport
        self.events: list[Event] = []
        self.address = transport.bind("127.0.0.1")
        self.endpoint = Endpoint(
            Identity(
                node,
                source.getrandbits(64),
                secret,
                lambda size: source.getrandbits(8 * size).to_bytes(size, "big"),
            ),
            connect_timeout=connect_timeout,
            heartbeat=heartbeat,
            peer_timeout=peer_timeout,
        )
        transport.screen(self.endpoint.proves)
        self._clock = clock

    def join(self, other: WireNode) -> None:
        """Start to connect to another node."""
        self.endpoint.connect(other.node, self.transport.connect(other.address), self._clock())

    def step(self, timeout: float = 0.0) -> list[Event]:
        """Do one pass of an I/O loop and return its events."""
        events: list[Event] = []
        arrivals = self.transport.receive(timeout)
        now = self._clock()
        for link, frames in arrivals:
            events += self.endpoint.receive(link, frames, now)
        events += self.endpoint.tick(now)
        for link, out in self.endpoint.outgoing(now):
            self.transport.send(link, out)
        self.events += events
        return events

    def received(self) -> list[Received]:
        """Return the messages so far."""
        return [event for event in self.events if isinstance(event, Received)]
