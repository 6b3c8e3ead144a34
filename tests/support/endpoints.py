"""Endpoints that talk to each other without a network, for unit tests."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.wire.endpoint import Endpoint
from kvstore_mpi.wire.handshake import Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.interfaces import Buffer, Link
    from kvstore_mpi.wire.events import Event

SERVER, WORKER = NodeId(Role.SERVER, 1), NodeId(Role.WORKER, 3)
SECRET = bytes(range(32))
_numbers = itertools.count(1)


def identity(node: NodeId, secret: bytes = SECRET, incarnation: int = 0) -> Identity:
    """Make the identity of another process, with random numbers of its own."""
    counter = itertools.count(next(_numbers) << 20)
    return Identity(node, incarnation, secret, lambda size: next(counter).to_bytes(size, "little"))


def make(node: NodeId, secret: bytes = SECRET, incarnation: int = 0) -> Endpoint:
    """Make an endpoint without peers."""
    return Endpoint(
        identity(node, secret, incarnation), connect_timeout=60.0, heartbeat=1.0, peer_timeout=5.0
    )


def views(frames: Sequence[Buffer]) -> list[memoryview]:
    """Return the frames as they arrive."""
    return [memoryview(bytes(part)) for part in frames]


def record(source: Endpoint, now: float) -> list[list[memoryview]]:
    """Take what an endpoint wants to send, as somebody on the line sees it."""
    return [views(frames) for _, frames in source.outgoing(now)]


def carry(
    source: Endpoint, target: Endpoint, now: float, link: Link = "wire"
) -> tuple[list[Event], list[tuple[Link, list[Buffer]]]]:
    """Take what the source wants to send to the target; return the events and the wire messages."""
    out = source.outgoing(now)
    return [event for _, frames in out for event in target.receive(link, views(frames), now)], out


def exchange(a: Endpoint, b: Endpoint, now: float, link: Link = "wire") -> tuple[list[Event], list[Event]]:
    """Let two endpoints talk until both have nothing more to say; return the events of each."""
    of_a, of_b = a.tick(now), b.tick(now)
    while True:
        to_b, forth = carry(a, b, now, link)
        to_a, back = carry(b, a, now, link)
        of_a, of_b = of_a + to_a, of_b + to_b
        if not forth + back:
            return of_a, of_b


def connected() -> tuple[Endpoint, Endpoint]:
    """Return a worker that is connected to a server at time 0, and the server."""
    worker, server = make(WORKER), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    exchange(worker, server, 0.0)
    assert worker.is_connected(SERVER)
    assert server.is_connected(WORKER)
    return worker, server
