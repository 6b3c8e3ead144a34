"""Messages between processes of one host over Unix sockets.

A message crosses in one system call at each end and wakes one thread. Through libzmq's ipc it takes three
threads and a dozen calls, and several times as long (docs/adr/0003). Names are in the abstract namespace:
no file is left behind.

A stranger of another user is turned away by the kernel's word for who connects; what others send is for the
sessions to judge. A connection breaks only when its peer has gone, or does not speak this protocol.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import selectors
import socket
import struct
import time
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from kvstore_mpi.errors import FrameError
from kvstore_mpi.protocol.session import MAX_IN_FLIGHT

from .framing import CHUNK_BYTES, Parser, head

if TYPE_CHECKING:
    from typing import Deque, List, Sequence, Tuple

    from kvstore_mpi.interfaces import Buffer, Link

    Messages = List[Tuple[Link, List[memoryview]]]

logger = logging.getLogger(__name__)

BACKLOG = 1_024
"""Connections that wait to be accepted: all workers of a job connect at the same moment."""

MAX_QUEUED = 4 * MAX_IN_FLIGHT
"""Messages that wait for a peer to read, after which more are dropped. A session has at most MAX_IN_FLIGHT
on the wire, and as many again when it repeats."""

MESSAGES_AT_ONCE = 32
"""Messages taken from one connection before the others have their turn."""

SEND_BUFFER_BYTES = 2 << 20
"""What the kernel may hold for a peer, if its own limit allows: a bundle of slices then leaves in one call,
and the peer is woken once (docs/adr/0003)."""

_MAX_BUFFERS = 1_000
"""Buffers in one system call; Linux takes 1,024."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_CREDENTIALS = struct.Struct("3i")


class Connection:
    """One end of a connection; its own link."""

    __slots__ = ("address", "outgoing", "parser", "queued", "socket")

    def __init__(self, address: bytes, connected: socket.socket | None = None) -> None:
        """Make an end: an accepted one is connected, one made from here is so at its first message."""
        self.address = address
        self.socket = connected
        self.parser = Parser()
        self.outgoing: Deque[memoryview] = deque()
        self.queued = 0  # messages since everything had left


class LocalSockets:
    """Unix sockets of one process.

    Attributes:
        dropped: Messages that could not be sent.
        refused: Connections that were ended because a stranger made them.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Use a selector, whose data is the function to call when a descriptor is ready."""
        self._selector = selector
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self.dropped = 0
        self.refused = 0

    def bind(self) -> str:
        """Listen under a new name; return it."""
        name = f"kvstore_mpi-{secrets.token_hex(16)}"
        listener = self._listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        listener.bind(b"\0" + name.encode())
        listener.listen(BACKLOG)
        self._selector.register(listener, _READ, self._accept)
        return name

    def connect(self, name: str) -> Connection:
        """Make a link to who listens under a name."""
        return Connection(b"\0" + name.encode())

    def send(self, link: Connection, frames: Sequence[Buffer]) -> None:
        """Hand a message to the kernel, and what it does not take to the queue; frames are not copied."""
        if (link.socket is None and not self._open(link)) or link.queued >= MAX_QUEUED:
            self.dropped += 1
            return
        begin, size = head(frames)
        parts = [begin, *frames]
        sent = 0
        if not link.outgoing and len(parts) <= _MAX_BUFFERS:
            sent = self._write(link, parts)
        if sent < size and link.socket is not None:
            self._queue(link, parts, sent)

    def flush(self, seconds: float) -> None:
        """Wait until all that is queued has left, or time is up."""
        deadline = time.monotonic() + seconds
        for link in list(self._connections):
            while link.outgoing and link.socket is not None and time.monotonic() < deadline:
                writable = select.poll()  # unlike select, it takes descriptors beyond 1,023
                writable.register(link.socket, select.POLLOUT)
                writable.poll(max(0.0, deadline - time.monotonic()) * 1e3)
                self._write_queued(link)

    def close(self) -> None:
        """Release all sockets; what has not left is lost."""
        for link in list(self._connections):
            self._lose(link)
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    # --- connections ---

    def _open(self, link: Connection) -> bool:
        """Connect; who cannot be reached may be there at the next message."""
        if not link.address:
            return False
        made = socket.socket(socket.AF_UNIX)
        made.setblocking(False)
        try:
            made.connect(link.address)
        except OSError:
            made.close()
            return False
        self._add(link, made)
        return True

    def _accept(self, _mask: int, _messages: Messages) -> None:
        assert self._listener is not None
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                # For want of descriptors, say. Who waits would wake this thread again and again.
                logger.warning("no more connections can be accepted: %s", error)
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
            return
        if _user_of(accepted) in (os.geteuid(), 0):
            accepted.setblocking(False)
            self._add(Connection(b""), accepted)
        else:
            self.refused += 1
            accepted.close()

    def _add(self, link: Connection, connected: socket.socket) -> None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        link.socket = connected
        link.parser = Parser()
        self._connections.add(link)
        self._selector.register(connected, _READ, partial(self._ready, link))

    def _watch(self, link: Connection, mask: int) -> None:
        assert link.socket is not None
        self._selector.modify(link.socket, mask, self._selector.get_key(link.socket).data)

    def _lose(self, link: Connection) -> None:
        if link.socket is not None:
            self._selector.unregister(link.socket)
            link.socket.close()
            link.socket = None
        link.outgoing.clear()
        link.queued = 0
        self._connections.discard(link)

    def _ready(self, link: Connection, mask: int, messages: Messages) -> None:
        if mask & _WRITE:
            self._write_queued(link)
        if mask & _READ and link.socket is not None:
            self._read(link, messages)

    # --- reading ---

    def _read(self, link: Connection, messages: Messages) -> None:
        before = len(messages)
        try:
            while len(messages) - before < MESSAGES_AT_ONCE and self._read_once(link, messages):
                pass
        except BlockingIOError:
            pass
        except FrameError as error:
            self.refused += 1
            logger.warning("a connection is ended that does not speak our protocol: %s", error)
            self._lose(link)
        except OSError:
            self._lose(link)

    def _read_once(self, link: Connection, messages: Messages) -> bool:
        """Read what one call brings; say whether there may be more."""
        assert link.socket is not None
        target = link.parser.target
        if target is not None:
            count = link.socket.recv_into(target)
            complete = link.parser.filled(count) if count else []
            wanted = target.nbytes
        else:
            data = link.socket.recv(CHUNK_BYTES)
            count, wanted = len(data), CHUNK_BYTES
            complete = link.parser.feed(data) if count else []
        if not count:
            self._lose(link)
            return False
        for frames in complete:
            messages.append((link, frames))
        return count == wanted or link.parser.target is not None

    # --- writing ---

    def _write(self, link: Connection, parts: Sequence[Buffer]) -> int:
        """Return how many bytes the kernel took."""
        assert link.socket is not None
        try:
            return link.socket.sendmsg(parts)
        except BlockingIOError:
            return 0
        except OSError:
            self._lose(link)
            self.dropped += 1
            return 0

    def _queue(self, link: Connection, parts: Sequence[Buffer], sent: int) -> None:
        """Keep what the kernel did not take until it can take more."""
        if not link.outgoing:
            self._watch(link, _READ | _WRITE)
        link.outgoing.extend(_without(parts, sent))
        link.queued += 1

    def _write_queued(self, link: Connection) -> None:
        while link.outgoing and link.socket is not None:
            parts = list(islice(link.outgoing, _MAX_BUFFERS))
            sent = self._write(link, parts)
            if not sent:
                return
            for _ in parts:
                link.outgoing.popleft()
            link.outgoing.extendleft(reversed(_without(parts, sent)))
        if link.socket is not None:
            link.queued = 0
            self._watch(link, _READ)


def _without(parts: Sequence[Buffer], num_bytes: int) -> list[memoryview]:
    """Return what follows the first bytes of some buffers."""
    rest = []
    for part in parts:
        view = memoryview(part).cast("B")
        if num_bytes < view.nbytes:
            rest.append(view[num_bytes:])
        num_bytes = max(0, num_bytes - view.nbytes)
    return rest


def _user_of(connected: socket.socket) -> int:
    """Return the number of the user at the other end, on the kernel's word."""
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return int(user)
