"""TCP sockets whose bytes are encrypted: ``--encrypt``.

What ``tcp`` and ``streams`` do stays as it is: a ``SealedSocket`` stands where they have a socket, and a
connection counts as not made until both sides have said with what its keys begin.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.transport.framing import without
from kvstore_mpi.transport.records import GREETING_BYTES, Opener, Sealer, derive
from kvstore_mpi.transport.tcp import TcpSockets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.interfaces import Buffer
    from kvstore_mpi.transport.connection import Connection
    from kvstore_mpi.transport.streams import Messages

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class SealedSocket(socket.socket):
    """A socket whose ``sendmsg``, ``recv`` and ``recv_into`` take and give what is within records.

    Bytes of which ``sendmsg`` says that they were not taken may be on their way already: the caller has to
    offer the same bytes next, as who has a stream to send does.
    """

    def __init__(self, secret: bytes, *, connects: bool, fileno: int | None = None) -> None:
        """Make a TCP socket, or take over an accepted one."""
        super().__init__(socket.AF_INET, socket.SOCK_STREAM, fileno=fileno)
        self._secret = secret
        self._connects = connects
        self._greeting = secrets.token_bytes(GREETING_BYTES)
        self._sealer: Sealer | None = None
        self._opener = Opener()
        self._plain = b""  # opened and not taken yet
        self._pending: list[memoryview] = []  # of a record that the kernel has taken in part
        self._pending_bytes = 0  # of plaintext in it
        self.greeted = False

    @property
    def keyed(self) -> bool:
        """Both sides have said with what the keys begin."""
        return self._sealer is not None

    @property
    def holds_more(self) -> bool:
        """There is something to read of which the kernel knows nothing any more."""
        return bool(self._plain) or (self.keyed and self._opener.holds_record)

    def greet(self) -> None:
        """Say with what the keys begin: the first bytes of the connection, for which there is room."""
        self.greeted = True
        with contextlib.suppress(OSError):  # whoever reads next sees that it has gone
            super().send(self._greeting)

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:
        """Seal as much as the kernel takes; return how many bytes of the buffers have left."""
        parts: Sequence[Buffer] = list(buffers)
        sent = 0
        while self._sealer is not None:
            if not self._pending:
                parts = without(parts, self._pending_bytes)
                sent, self._pending_bytes = sent + self._pending_bytes, 0
                if not parts:
                    break
                self._pending, self._pending_bytes = self._sealer.seal(parts)
            try:
                self._pending = without(self._pending, super().sendmsg(self._pending))
            except BlockingIOError:
                break
        if not sent:
            raise BlockingIOError
        return sent

    def recv(self, _size: int, *_: Any) -> bytes:
        """Return what the next record holds, however large."""
        data, self._plain = self._plain or self._next(), b""
        return data

    def recv_into(self, buffer: Any, *_: Any) -> int:
        """Fill a buffer as far as the next record goes; what is left of that is kept."""
        data = self._plain or self._next()
        view = memoryview(buffer)
        count = min(view.nbytes, len(data))
        view[:count] = data[:count]
        self._plain = data[count:]
        return count

    def _next(self) -> bytes:
        """Read until a record is whole; return its content, or nothing at the end of the stream."""
        while True:
            if self._sealer is not None:
                plain = self._opener.record()
                if plain is not None:
                    return plain
            elif (greeting := self._opener.greeting()) is not None:
                self._use(greeting)
                continue
            count = super().recv_into(self._opener.room())
            if not count:
                return b""
            self._opener.filled(count)

    def _use(self, greeting: bytes) -> None:
        both = (self._greeting, greeting) if self._connects else (greeting, self._greeting)
        connector, acceptor = derive(self._secret, *both)
        ours, theirs = (connector, acceptor) if self._connects else (acceptor, connector)
        self._sealer = Sealer(ours)
        self._opener.use(theirs)


class SealedTcpSockets(TcpSockets):
    """See ``TcpSockets``; the secret is known before anybody connects."""

    def flush(self, seconds: float) -> None:
        """See ``TcpSockets``; over a connection without keys nothing can leave."""
        for link in self._connections:
            if not _sealed(link).keyed:
                link.outgoing.clear()
        super().flush(seconds)

    def _make(self) -> socket.socket:
        return SealedSocket(self._known_secret(), connects=True)

    def _known_secret(self) -> bytes:
        if not self.secret:
            raise ConfigurationError("a connection cannot be encrypted before the job's secret is known")
        return self.secret

    def _take_in(self, accepted: socket.socket) -> None:
        super()._take_in(SealedSocket(self._known_secret(), connects=False, fileno=accepted.detach()))

    def _add(self, link: Connection, connected: socket.socket) -> None:
        super()._add(link, connected)
        if not link.connecting:
            _sealed(link).greet()
        link.connecting = True

    def _writable(self, link: Connection) -> None:
        made = _sealed(link)
        if made.keyed:
            super()._writable(link)
            return
        if not made.greeted:
            if not self._has_connected(link):
                return
            made.greet()
        self._watch(link, _READ)  # until the other side has greeted

    def _read(self, link: Connection, messages: Messages) -> None:
        super()._read(link, messages)
        while link.socket is not None and _sealed(link).holds_more:
            super()._read(link, messages)
        if link.socket is not None and link.connecting and _sealed(link).keyed:
            link.connecting = False
            if link.outgoing:
                self._watch(link, _READ | _WRITE)


def _sealed(link: Connection) -> SealedSocket:
    assert isinstance(link.socket, SealedSocket)
    return link.socket
