"""Messages between processes of one host over Unix sockets.

Names are in the abstract namespace: no file is left behind.

A stranger of another user is turned away by the kernel's word for who connects, or listens; what others
send is for the sessions to judge. A connection breaks only when its peer has gone, or does not speak this
protocol.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct

from kvstore_mpi.transport.connection import Connection
from kvstore_mpi.transport.streams import StreamSockets

SEND_BUFFER_BYTES = 2 << 20
"""What the kernel may hold for a peer, if its own limit allows: a bundle of slices then leaves in one call,
and the peer is woken once (docs/adr/0003)."""

_CREDENTIALS = struct.Struct("3i")


class LocalSockets(StreamSockets):
    """Unix sockets of one process."""

    def bind(self) -> str:
        """Listen under a new name; return it."""
        name = f"kvstore_mpi-{secrets.token_hex(16)}"
        listener = self._make()
        listener.bind(b"\0" + name.encode())
        self._listen(listener)
        return name

    def connect(self, name: str) -> Connection:
        """Make a link to who listens under a name."""
        return Connection(self, b"\0" + name.encode(), f"ipc://@{name}")

    def _make(self) -> socket.socket:
        return socket.socket(socket.AF_UNIX)

    def _refusal(self, connected: socket.socket) -> str:
        user = _user_of(connected)
        return "" if user in (os.geteuid(), 0) else f"user {user} is not the one who runs this job"

    def _configure(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def _user_of(connected: socket.socket) -> int:
    """Return the number of the user at the other end, on the kernel's word."""
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return int(user)
