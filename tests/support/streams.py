"""Nodes that talk over real sockets, and what tests of transports say and read on streams."""

from __future__ import annotations

import contextlib
import struct
import time
from typing import TYPE_CHECKING, Any

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.testing.transport_contract import DEADLINE
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wire.events import Connected
from kvstore_mpi.wire.messages import Ok
from support.wire_node import WireNode

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

SERVER, WORKER = NodeId(Role.SERVER, 0), NodeId(Role.WORKER, 0)


@contextlib.contextmanager
def talking(schemes: str) -> Iterator[WireNode]:
    """Yield a server with a connected worker, which must be able to talk at the end."""
    server = WireNode(SERVER, SocketTransport(schemes), time.monotonic)
    worker = WireNode(WORKER, SocketTransport(schemes), time.monotonic)
    worker.join(server)
    run_until(lambda: count(server, Connected) == 1, server, worker)
    yield server
    worker.endpoint.send(SERVER, Ok(7), [bytes(300_000)])
    run_until(lambda: bool(server.received()), server, worker)
    assert server.received()[0].message == Ok(7)
    for node in (server, worker):
        node.transport.close(0)


def run_until(done: Callable[[], bool], *nodes: WireNode) -> None:
    """Let nodes run until something has happened."""
    end = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < end, "it did not happen in time"
        for node in nodes:
            node.step(0.005)


def count(node: WireNode, kind: type[Any]) -> int:
    """Count the events of a kind."""
    return sum(isinstance(event, kind) for event in node.events)


def port_of(node: WireNode) -> int:
    """Return the port on which a node listens."""
    return int(node.address[-1].rpartition(":")[2])


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Read that many bytes."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the connection was closed"
        data += more
    return data


def whole(text: bytes) -> bytes:
    """Return a message of one frame as it is on a stream."""
    return struct.pack("<II", 1, len(text)) + text
