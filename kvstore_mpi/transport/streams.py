"""Messages over stream sockets that the I/O loop itself writes and reads.

A message crosses in one system call at each end and wakes one thread; there is no thread of a library in
between. What a connection has not taken waits in a queue here, and is lost with the connection: sessions
see to that. This file must not know what kind of sockets they are.

Anybody may connect, unless a subclass knows better. Who has not shown in time that it is of the job is
closed; until then a connection costs a few kilobytes, and their number is limited.
"""

from __future__ import annotations

import errno
import select
import selectors
import socket
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from kvstore_mpi.errors import FrameError
from kvstore_mpi.transport import strangers
from kvstore_mpi.transport.connection import Connection
from kvstore_mpi.transport.framing import (
    CHUNK_BYTES,
    Parser,
    PlaceOf,
    StrangerError,
    head,
    nowhere,
)
from kvstore_mpi.transport.refusals import Refusals
from kvstore_mpi.wire.session import MAX_IN_FLIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Buffer, Link

    Messages = list[tuple[Link, list[memoryview]]]

BACKLOG = 1_024
"""Connections that wait to be accepted: all workers of a job connect at the same moment."""

MAX_QUEUED = 4 * MAX_IN_FLIGHT
"""Messages that wait for a peer to read, after which more are dropped. A session has at most MAX_IN_FLIGHT
on the wire, and as many again when it repeats."""

MESSAGES_AT_ONCE = 32
"""Messages taken from one connection before the others have their turn."""

_MAX_BUFFERS = 1_000
"""Buffers in one system call; Linux takes 1,024."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class StreamSockets(ABC):
    """Stream sockets of one process; what kind they are is for subclasses to say.

    Attributes:
        dropped: Messages that could not be sent.
        refusals: Connections that were ended because a stranger made them.
        proves: Tells whether the first frame of a message shows that its sender is of the job.
        place: Tells where a large payload is to be written.
        secret: Of the job, for those that encrypt.
    """

    RETRY_S = 0.0
    """Seconds between two attempts to connect; a message in between is dropped."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Use a selector, whose data is the function to call when a descriptor is ready."""
        self._selector = selector
        self._listener: socket.socket | None = None
        self._paused, self._resume_at = False, 0.0
        self._connections: set[Connection] = set()
        self._strangers = strangers.Strangers()
        self.dropped = 0
        self.refusals = Refusals()
        self.proves: Callable[[memoryview], bool] = _nothing_proves
        self.place: PlaceOf = nowhere
        self.secret = b""

    @abstractmethod
    def _make(self) -> socket.socket:
        """Make a socket."""

    def _refusal(self, connected: socket.socket) -> str:  # noqa: ARG002  all may
        """Return why the other side of a connection may not be spoken to, or nothing."""
        return ""

    @abstractmethod
    def _configure(self, connected: socket.socket) -> None:
        """Set the options of a socket that is going to be connected, or was accepted."""

    def _error_of(self, made: socket.socket) -> int:
        """Return why an attempt to connect, which has come to its end, was in vain; 0 if it was not."""
        return made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def send(self, link: Connection, frames: Sequence[Buffer]) -> None:
        """Hand a message to the kernel, and what it does not take to the queue; frames are not copied.

        Payloads are for nobody who has not shown on this very connection that it is of the job: where a
        process has ended, another may listen. They are lost, and come again behind a PROBE.
        """
        most = strangers.MAX_QUEUED if link in self._strangers else MAX_QUEUED
        if (
            (link.socket is None and not self._open(link))
            or len(link.outgoing) >= most
            or (len(frames) > 1 and not link.parser.proven)
        ):
            self.dropped += 1
            return
        begin, size = head(frames)
        parts = [begin, *frames]
        sent = 0
        if not link.outgoing and not link.connecting and len(parts) <= _MAX_BUFFERS:
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
                if writable.poll(max(0.0, deadline - time.monotonic()) * 1e3):
                    self._writable(link)

    def end_late(self) -> None:
        """End strangers that have had their time; called in each pass, so that nothing wakes up for it."""
        if not self._strangers:
            return
        for link in self._strangers.late(time.monotonic()):
            self._refuse(link, "stranger", "it has not shown in time that it is of the job")

    def close(self) -> None:
        """Release all sockets; what has not left is lost."""
        if self._listener is not None:
            if not self._paused:
                self._selector.unregister(self._listener)
            self._listener.close()
            self._listener, self._paused = None, False
        for link in list(self._connections):
            self._lose(link)

    # --- connections ---

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._listener = listener
        self._selector.register(listener, _READ, self._accept)

    def _open(self, link: Connection) -> bool:
        """Start to connect; who cannot be reached may be there at a later message."""
        if link.address is None or time.monotonic() < link.tried + self.RETRY_S:
            return False
        link.tried = time.monotonic()
        try:
            made = self._make()
        except OSError as error:  # for want of descriptors, say
            self.refusals.say("no socket", f"no connection can be made for now: {error}")
            return False
        made.setblocking(False)
        self._configure(made)
        try:
            made.connect(link.address)
        except BlockingIOError as error:
            # A Unix socket has no such state: it says EAGAIN where too many wait to be accepted.
            link.connecting = error.errno == errno.EINPROGRESS
            if not link.connecting:
                made.close()
                return False
        except OSError as error:
            made.close()
            self.refusals.say_unreachable(link.endpoint, error.errno or 0, reached=link.reached)
            return False
        if self._turned_away(made):  # who listened there may have ended, and another have taken the name
            return False
        self._add(link, made)
        link.reached |= not link.connecting
        return True

    def _accept(self, _mask: int, _messages: Messages) -> None:
        assert self._listener is not None
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in strangers.EXHAUSTED:
                self._pause(error)
            return
        try:
            self._take_in(accepted)
        except MemoryError:
            self.refusals.add("memory", "there is no memory for another connection")
            accepted.close()

    def _take_in(self, accepted: socket.socket) -> None:
        """Keep who has connected, as a stranger, unless it may not stay."""
        if self._turned_away(accepted):
            return
        surplus = self._strangers.surplus
        if surplus is not None:
            self._refuse(surplus, "stranger", "too many have not shown that they are of the job")
        accepted.setblocking(False)
        self._configure(accepted)
        link = Connection(self)
        self._add(link, accepted)
        self._strangers.add(link, time.monotonic())

    def _turned_away(self, connected: socket.socket) -> bool:
        """Close a connection whose other side may not be spoken to; say whether that is so."""
        refusal = self._refusal(connected)
        if refusal:
            self.refusals.add("user", refusal)
            connected.close()
        return bool(refusal)

    def _refuse(self, link: Connection, reason: str, text: object) -> None:
        """End the connection of a stranger."""
        self.refusals.add(reason, text)
        self._lose(link)

    def _pause(self, error: OSError) -> None:
        """Accept no more for a while: who waits would wake this thread again and again."""
        assert self._listener is not None
        self.refusals.say("no room", f"no more connections can be accepted for now: {error}")
        self._selector.unregister(self._listener)
        self._paused, self._resume_at = True, time.monotonic() + strangers.ACCEPT_AGAIN_S

    def accept_again(self) -> None:
        """End a pause in time: room is made elsewhere, too, by files and other processes; often called."""
        if self._paused and time.monotonic() >= self._resume_at:
            self._resume()

    def _resume(self) -> None:
        assert self._listener is not None
        self._selector.register(self._listener, _READ, self._accept)
        self._paused = False

    def _add(self, link: Connection, connected: socket.socket) -> None:
        link.socket = connected
        # Also where this process has connected: the port may be a stranger's by now.
        link.parser = Parser(self.proves, self.place)
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
        link.connecting = False
        self._connections.discard(link)
        self._strangers.discard(link)
        if self._paused:
            self._resume()

    def _ready(self, link: Connection, mask: int, messages: Messages) -> None:
        if mask & _WRITE:
            self._writable(link)
        if mask & _READ and link.socket is not None:
            self._read(link, messages)

    # --- reading ---

    def _read(self, link: Connection, messages: Messages) -> None:
        before = len(messages)
        try:
            if not link.parser.proven:
                self._read_stranger(link, messages)
                return
            while len(messages) - before < MESSAGES_AT_ONCE and self._read_once(link, messages):
                pass
        except BlockingIOError:
            pass
        except StrangerError as error:
            self._refuse(link, "stranger", error)
        except FrameError as error:
            self._refuse(link, "protocol", error)
        except MemoryError:
            self._refuse(link, "memory", "there is no memory for what it sends")
        except OSError:
            self._lose(link)

    def _read_stranger(self, link: Connection, messages: Messages) -> None:
        """Read a little from who has shown nothing yet; see whether it has now."""
        before = len(messages)
        self._read_once(link, messages, strangers.READ_BYTES)
        link.strange += len(messages) - before
        if link.parser.proven:
            self._strangers.discard(link)
        elif link.strange > strangers.MAX_MESSAGES:
            self._refuse(
                link, "stranger", f"none of its {link.strange} messages shows that it is of the job"
            )

    def _read_once(self, link: Connection, messages: Messages, size: int = CHUNK_BYTES) -> bool:
        """Read what one call brings; say whether there may be more."""
        assert link.socket is not None
        target = link.parser.target
        if target is not None:
            count = link.socket.recv_into(target)
            complete = link.parser.filled(count) if count else []
            wanted = target.nbytes
        else:
            data = link.socket.recv(size)
            count, wanted = len(data), size
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
        link.outgoing.put(parts, sent)

    def _writable(self, link: Connection) -> None:
        if link.connecting and self._has_connected(link):
            link.connecting = False
        if link.socket is not None and not link.connecting:
            self._write_queued(link)

    def _has_connected(self, link: Connection) -> bool:
        """Tell whether an attempt to connect, which has come to its end, was not in vain."""
        assert link.socket is not None
        error = self._error_of(link.socket)
        if error:
            self.refusals.say_unreachable(link.endpoint, error, reached=link.reached)
            self.dropped += len(link.outgoing)
            self._lose(link)
        link.reached |= not error
        return not error

    def _write_queued(self, link: Connection) -> None:
        while link.outgoing and link.socket is not None:
            parts = link.outgoing.first(_MAX_BUFFERS)
            sent = self._write(link, parts)
            if not sent:
                return
            link.outgoing.take(parts, sent)
        if link.socket is not None:
            self._watch(link, _READ)


def _nothing_proves(_first: memoryview) -> bool:
    """Of a transport that was not told how to judge."""
    return False
