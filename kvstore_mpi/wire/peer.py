"""What an endpoint has to know about one session beside the session itself: who, where, and until when.

This file must not know how handshakes or sessions work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Link
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire.handshake import Hello
    from kvstore_mpi.wire.session import Session


# By identity, because the endpoint keeps sessions in a dictionary while their fields change: a hash of the
# fields would lose them there.
@dataclass(eq=False)
class Peer:
    """One session with a peer, from the handshake on; compared and hashed by identity.

    Attributes:
        node: The other process.
        link: Where to send; the newest link on which a fresh frame came.
        session: The stream of messages.
        hello: The HELLO that began the session, ours or the peer's.
        deadline: When the handshake has failed.
        greeting: The frame to repeat until the handshake is over: our HELLO or our WELCOME.
        connecting: We said HELLO and wait for the WELCOME.
        half_open: We said WELCOME and wait for the first frame of the session.
        next_hello: When to repeat the HELLO.
        monitored: Report silence.
        silent: Silence has been reported.
        incarnation: How often the peer has been restarted; known once it has said its name.
    """

    node: NodeId
    link: Link
    session: Session
    hello: Hello
    deadline: float
    greeting: bytes
    connecting: bool = False
    half_open: bool = False
    next_hello: float = 0.0
    monitored: bool = False
    silent: bool = False
    incarnation: int = 0

    def next_tick(self, peer_timeout: float) -> float:
        """Return when something is due for this peer if nothing is heard of it before."""
        # A half-open session sends no probes: until it is proven, whoever asked for it may be nobody's
        # peer.
        if self.half_open:
            return self.deadline
        if self.connecting:
            return min(self.deadline, self.next_hello)
        # Once silence is reported its time lies in the past: as a deadline it would keep the loop from ever
        # waiting again, until the peer is heard.
        if self.monitored and not self.silent:
            return min(self.session.probe_deadline, self.session.last_heard + peer_timeout)
        return self.session.probe_deadline

    def fell_silent(self, now: float, peer_timeout: float) -> bool:
        """Tell once that a monitored peer has not been heard for ``peer_timeout`` seconds."""
        # Once: the report ends a worker or starts a process again, and a second one would do so twice. The
        # next fresh frame resets ``silent``, for a process that was only stopped for a while.
        newly = self.monitored and not self.silent and now - self.session.last_heard >= peer_timeout
        self.silent |= newly
        return newly
