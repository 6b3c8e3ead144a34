"""The ``Transport`` of a real process: Unix sockets within its host, TCP sockets to others.

It waits for all of them, and for other threads' wake-ups, in one place.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.host_name import host_name
from kvstore_mpi.transport.connection import Connection
from kvstore_mpi.transport.local import LocalSockets
from kvstore_mpi.transport.shared_memory import host_identity
from kvstore_mpi.transport.tcp import TcpSockets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Buffer, Link
    from kvstore_mpi.transport.framing import PlaceOf
    from kvstore_mpi.transport.streams import Messages, StreamSockets


class SocketTransport:
    """A ``Transport`` over sockets of the operating system."""

    def __init__(self, schemes: str = "auto", *, encrypt: bool = False) -> None:
        """Make a transport that neither listens nor is connected.

        Args:
            schemes: ``ipc`` or ``tcp`` allow only one of them; ``auto`` takes ipc within a host and tcp
                between hosts.
            encrypt: What goes over tcp.

        Raises:
            ConfigurationError: ipc is asked for elsewhere than on Linux, or what encrypts is missing.
        """
        self._host = _host_identity()
        self._schemes = _allowed_schemes(schemes, has_ipc=bool(self._host))
        self._selector = selectors.DefaultSelector()
        self._local = LocalSockets(self._selector)
        self._tcp = _sealed_sockets(self._selector) if encrypt else TcpSockets(self._selector)
        self._streams: tuple[StreamSockets, ...] = (self._local, self._tcp)
        # A pipe, which takes less than half of a pair of sockets' time. Files, because a number may be
        # another's by the time that somebody wakes a transport that is closed.
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._wake_reader, self._wake_writer = FileIO(reader, "r"), FileIO(writer, "w")
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._fall_asleep)
        self._woken = False
        self._closed = False

    @property
    def dropped(self) -> int:
        """Messages that could not be sent."""
        return sum(streams.dropped for streams in self._streams)

    @property
    def refused(self) -> int:
        """Connections that were ended because a stranger made them."""
        return sum(streams.refusals.counts.total() for streams in self._streams)

    def screen(self, proves: Callable[[memoryview], bool], secret: bytes = b"") -> None:
        """See ``interfaces.Transport``; before it is called nobody is of the job."""
        for streams in self._streams:
            streams.proves = proves
            streams.secret = secret

    def receive_into(self, place: PlaceOf) -> None:
        """See ``interfaces.Transport``."""
        for streams in self._streams:
            streams.place = place

    def bind(self, interface: str) -> list[str]:
        """Listen on an IPv4 address, port chosen by the system, and within the host; ipc comes first.

        Raises:
            ConfigurationError: The address is not one of this host, or stands for all of them.
        """
        far = [self._tcp.bind(interface)] if "tcp" in self._schemes else []
        near = [f"ipc://@{self._local.bind()}#{self._host}"] if "ipc" in self._schemes else []
        return near + far

    def connect(self, addresses: Sequence[str]) -> Link:
        """Start to connect to the first of the addresses that can be used from here.

        Raises:
            ConfigurationError: None can be used.
        """
        for address in addresses:
            endpoint, _, host = address.partition("#")
            scheme, _, rest = endpoint.partition("://")
            if scheme not in self._schemes:
                continue
            if scheme == "tcp":
                return self._tcp.connect(endpoint)
            if host == self._host:
                return self._local.connect(rest[1:])
        raise ConfigurationError(
            f"none of the addresses {', '.join(addresses) or '(none)'} can be used from this host with "
            f"{' and '.join(self._schemes)}; give all processes the same --transport, between "
            "hosts auto or tcp"
        )

    def send(self, link: Link, frames: Sequence[Buffer]) -> None:
        """Send one message as far as the kernel takes it; drop it when the link is gone or full."""
        assert isinstance(link, Connection)
        link.owner.send(link, frames)

    def receive(self, timeout: float | None) -> Messages:
        """Wait for messages, a wake-up or the timeout.

        Every connection is served in turn, each for a few messages.
        """
        messages: Messages = []
        for key, mask in self._selector.select(timeout):
            key.data(mask, messages)
        for streams in self._streams:
            streams.accept_again()
            streams.end_late()
        return messages

    def wake(self) -> None:
        """Make a waiting ``receive`` return; any thread may call this, also after ``close``."""
        if not self._woken:
            self._woken = True
            # What is closed needs no wake-up.
            with contextlib.suppress(OSError, ValueError):
                self._wake_writer.write(b"\0")

    def close(self, linger: float) -> None:
        """Close all sockets; wait at most ``linger`` seconds until what is queued has left."""
        if self._closed:
            return
        self._closed = True
        for streams in self._streams:
            streams.flush(linger)
            streams.close()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _fall_asleep(self, _mask: int, _messages: Messages) -> None:
        """Take the wake-ups and allow new ones, in this order: the other way round one could be lost."""
        self._wake_reader.read(64)
        self._woken = False


def _sealed_sockets(selector: selectors.BaseSelector) -> TcpSockets:
    """Make sockets that encrypt; what they need is loaded by who wants them only."""
    try:
        from kvstore_mpi.transport.sealed import SealedTcpSockets  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"--encrypt needs the package cryptography on {host_name()}, which cannot be loaded: "
            f"{error}; pip install 'kvstore_mpi[encrypt]' on all hosts"
        ) from error
    return SealedTcpSockets(selector)


def _allowed_schemes(schemes: str, *, has_ipc: bool) -> tuple[str, ...]:
    if schemes == "ipc" and not has_ipc:
        raise ConfigurationError(f"transport ipc needs Linux, this is {sys.platform}; use auto or tcp")
    if schemes == "auto":
        return ("ipc", "tcp") if has_ipc else ("tcp",)
    return (schemes,)


def _host_identity() -> str:
    """Name what two processes must share to meet in the abstract namespace; empty where there is none.

    The kernel keeps one such namespace for each network namespace, so the host's name is not enough.
    """
    if not sys.platform.startswith("linux"):
        return ""
    return f"{host_identity()}-{Path('/proc/self/ns/net').stat().st_ino:x}"
