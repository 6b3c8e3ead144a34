"""Tells the ranks of one host that a message for them has left, so that they need not ask MPI before.

MPI polls, and takes a core from a rank that computes (docs/model-parallel.md). A bell is the tag of the
message, over a Unix socket in the abstract namespace, which leaves no file behind. This file must not know
what MPI does with messages.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import PeerLostError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TAG = struct.Struct("=i")
_PARTING = -1
"""In the place of a tag: nothing will leave any more."""

_GREETING = struct.Struct("=16si")
"""The secret of who is greeted, which MPI has told, and the rank of who greets."""

_WAIT_S = 60.0
"""For ranks that have connected already; whoever waits for one longer gives up."""


class Bells:
    """Sockets to and from all other ranks; rung by any thread, heard by one."""

    def __init__(self, ringing: Mapping[int, socket.socket], hearing: Mapping[int, socket.socket]) -> None:
        """Take ownership of connected sockets.

        Args:
            ringing: By the rank at the other end, to which they lead.
            hearing: By the rank at the other end, from which they come.
        """
        self._ringing = dict(ringing)
        self._rung: Counter[tuple[int, int]] = Counter()
        self._gone: set[int] = set()
        self._parted: set[int] = set()
        self._selector = selectors.DefaultSelector()
        for peer, connected in hearing.items():
            self._selector.register(connected, selectors.EVENT_READ, peer)
        self._nudges = os.eventfd(0)
        self._selector.register(self._nudges, selectors.EVENT_READ)

    def ring(self, peer: int, tag: int) -> None:
        """Tell a rank that the message with this tag has left."""
        with contextlib.suppress(OSError):  # it has gone, of which MPI tells whoever waits for it
            self._ringing[peer].send(_TAG.pack(tag))

    def part(self) -> None:
        """Tell all ranks that nothing will leave any more."""
        for peer in self._ringing:
            self.ring(peer, _PARTING)

    def has_parted(self, peer: int) -> bool:
        """Tell whether a rank has said that nothing will leave any more; what has rung is still to come."""
        return peer in self._parted

    def has_rung(self, peer: int, tag: int) -> bool:
        """Tell whether a message has left that was not taken yet, or MPI knows why it has not."""
        return self._rung[peer, tag] > 0 or peer in self._gone

    def take(self, peer: int, tag: int) -> None:
        """Forget the bell of a message that is received now."""
        self._rung.subtract([(peer, tag)])

    def wait(self) -> None:
        """Return when a bell has rung, a rank has gone, or ``nudge`` was called since the last time."""
        for key, _ in self._selector.select():
            if key.data is None:
                os.eventfd_read(self._nudges)
            else:
                self._hear(key.data, key.fileobj)

    def nudge(self) -> None:
        """End ``wait``, now or when it is called next; any thread may."""
        os.eventfd_write(self._nudges, 1)

    def _hear(self, peer: int, connected: Any) -> None:
        told = b""
        with contextlib.suppress(OSError):
            told = connected.recv(_TAG.size)
        [tag] = _TAG.unpack(told) if told else [None]
        if tag == _PARTING:
            self._parted.add(peer)
        elif tag is not None:
            self._rung[peer, tag] += 1
        else:
            if peer not in self._parted:  # or MPI would say nothing to whoever waits
                self._gone.add(peer)
            self._selector.unregister(connected)
            connected.close()


def hang(comm: Any) -> Bells | None:
    """Connect all ranks of a communicator of mpi4py with each other; all must call this.

    Returns:
        The bells; none if one of the ranks cannot reach another, as on another host.

    Raises:
        PeerLostError: A rank that has connected says nothing.
    """
    rank = comm.Get_rank()
    with ExitStack() as opened:
        listener, place = _listen(comm.Get_size())
        if listener is not None:
            opened.enter_context(listener)
        places = comm.allgather(place)
        ringing = {}
        for peer, (name, secret) in enumerate(places):
            connected = None if peer == rank or not name else _greet(name, _GREETING.pack(secret, rank))
            if connected is not None:
                ringing[peer] = opened.enter_context(connected)
        if not all(comm.allgather(len(ringing) == len(places) - 1)) or listener is None:
            return None
        hearing = _heard(listener, place[1], len(ringing))
        for connected in hearing.values():
            opened.enter_context(connected)
        listener.close()
        opened.pop_all()
    return Bells(ringing, hearing)


def _make() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # one bell, one piece
    made.settimeout(_WAIT_S)
    return made


def _listen(num_ranks: int) -> tuple[socket.socket | None, tuple[str, bytes]]:
    """Return who listens, with the name and the secret of the place; nobody where there are none."""
    name, secret = f"kvstore_mpi-bells-{secrets.token_hex(16)}", secrets.token_bytes(16)
    if not hasattr(os, "eventfd"):  # as on everything but Linux
        return None, ("", b"")
    listener = _make()
    listener.bind(b"\0" + name.encode())
    listener.listen(2 * num_ranks)
    return listener, (name, secret)


def _greet(name: str, greeting: bytes) -> socket.socket | None:
    connected = _make()
    try:
        connected.connect(b"\0" + name.encode())
        connected.send(greeting)
    except OSError:  # another host, or another namespace of networks on this one
        connected.close()
        return None
    connected.settimeout(None)
    return connected


def _heard(listener: socket.socket, secret: bytes, number: int) -> dict[int, socket.socket]:
    """Return who has greeted, by rank; strangers know no secret."""
    hearing: dict[int, socket.socket] = {}
    until = time.monotonic() + _WAIT_S
    while len(hearing) < number:
        try:
            connected, _ = listener.accept()
        except OSError as error:
            raise PeerLostError(f"a rank of this worker has connected and says nothing: {error}") from error
        connected.setblocking(False)
        greeting = b""
        with contextlib.suppress(OSError):  # a rank has greeted before it was waited for
            greeting = connected.recv(_GREETING.size)
        if len(greeting) == _GREETING.size and hmac.compare_digest(greeting[:16], secret):
            hearing[_GREETING.unpack(greeting)[1]] = connected
        else:
            connected.close()
            if time.monotonic() > until:
                raise PeerLostError("strangers keep the ranks of this worker from each other")
    return hearing
