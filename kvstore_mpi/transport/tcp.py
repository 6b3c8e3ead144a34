"""Messages between processes of different hosts over TCP sockets.

A connection that has failed is made again at the next message; what was lost with it is for the sessions
to repeat.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import select
import socket
import struct
import termios
import time

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.transport.connection import Connection
from kvstore_mpi.transport.framing import CHUNK_BYTES
from kvstore_mpi.transport.streams import StreamSockets

DEAD_AFTER_S = 30
"""Seconds without a word from the peer's kernel after which a connection is dead. Long, because each time
that is wrong costs a repetition of all that was in flight."""

ACK_CHECK_S = 0.002
"""How often a closing process asks whether its last bytes have arrived; the kernel does not announce it."""


_OPTIONS = (
    ("TCP_NODELAY", 1),
    # Of a silent connection: asked after 10 s, and then every 5 s.
    ("TCP_KEEPIDLE", 10),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", (DEAD_AFTER_S - 10) // 5),
    # Of one with bytes under way: without it the kernel repeats them for a quarter of an hour. In ms.
    ("TCP_USER_TIMEOUT", DEAD_AFTER_S * 1_000),
    # Of one that is not made yet: the fifth attempt, 15 s after the first, is given 16 s.
    ("TCP_SYNCNT", 4),
)
"""Names, because other systems lack some of them."""


class TcpSockets(StreamSockets):
    """TCP sockets of one process."""

    RETRY_S = 0.1

    def bind(self, interface: str) -> str:
        """Listen on an IPv4 address, port chosen by the system; return the endpoint.

        Raises:
            ConfigurationError: The address is not one of this host, or stands for all of them.
        """
        _check_interface(interface)
        listener = self._make_listener()
        try:
            listener.bind((interface, 0))
        except OSError as error:
            listener.close()
            raise ConfigurationError(
                f"cannot listen on {interface}: {error.strerror}; give an address of this host"
            ) from error
        self._listen(listener)
        return f"tcp://{interface}:{listener.getsockname()[1]}"

    def connect(self, endpoint: str) -> Connection:
        """Make a link to who listens on an endpoint."""
        host, _, port = endpoint.partition("://")[2].rpartition(":")
        return Connection(self, (host, int(port)), endpoint)

    def flush(self, seconds: float) -> None:
        """Wait until all that is queued has arrived in the peers' kernels, or time is up.

        To have handed it over is not enough: a socket that is closed with bytes nobody has read, as late
        acknowledgements are, throws away what it has not sent.
        """
        deadline = time.monotonic() + seconds
        super().flush(seconds)
        for link in self._connections:
            if link.socket is not None and not link.connecting:
                _see_off(link.socket, deadline)

    # --- what a StreamSockets asks ---

    def _make(self) -> socket.socket:
        return socket.socket(socket.AF_INET)

    def _make_listener(self) -> socket.socket:
        return socket.socket(socket.AF_INET)

    def _configure(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS:
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _error_of(self, made: socket.socket) -> int:
        error = super()._error_of(made)
        if error:
            return error
        try:
            # Within a host the system may choose the very port on which nobody listens any more: the
            # socket is then connected to itself, and would keep who comes back from listening there.
            return errno.ECONNREFUSED if made.getsockname() == made.getpeername() else 0
        except OSError as gone:
            return gone.errno or errno.ECONNREFUSED


def _under_way(connected: socket.socket) -> int:
    """Return how many bytes the peer's kernel has not acknowledged."""
    (count,) = struct.unpack("i", fcntl.ioctl(connected, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def _see_off(connected: socket.socket, deadline: float) -> None:
    """Wait until all bytes have arrived; what the peer still sends is for nobody."""
    readable = select.poll()
    readable.register(connected, select.POLLIN)
    with contextlib.suppress(OSError):  # it has gone
        while _under_way(connected) and (left := deadline - time.monotonic()) > 0:
            if readable.poll(min(left, ACK_CHECK_S) * 1e3) and not os.read(connected.fileno(), CHUNK_BYTES):
                return


def _check_interface(interface: str) -> None:
    """Refuse what is not one IPv4 address.

    Raises:
        ConfigurationError: It is no IPv4 address, or stands for all of them.
    """
    try:
        wildcard = ipaddress.IPv4Address(interface).is_unspecified
    except ValueError as error:
        raise ConfigurationError(
            f"cannot listen on {interface!r}: not an IPv4 address ({error})"
        ) from error
    if wildcard:
        raise ConfigurationError(
            f"will not listen on {interface}, which is every network of this host; give the one address "
            "that the other hosts of the job can reach"
        )
