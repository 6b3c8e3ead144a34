"""All sessions of one process: handshakes, which session a frame belongs to, liveness, counting.

Wire messages and time go in; events and wire messages come out. The side that connects says HELLO under
the job's secret, repeated until the other answers WELCOME; both derive the session's keys. The side that
answered reports the peer once a first frame under those keys proves that it is there now, so that a
replayed HELLO replaces nothing. A link is not an identity: the number in the header finds the session, and
a fresh frame that is rightly signed moves the session to the link on which it came.

Nothing that comes from a link raises: what is not ours is dropped, counted by reason and logged at most
once a minute for each reason. Only one side of a pair connects.

This file must not know of sockets, threads, clocks, or what messages mean.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING

from kvstore_mpi.errors import AuthenticationError, DeadlineError, FrameError, PeerError, PeerLostError
from kvstore_mpi.wire import codec
from kvstore_mpi.wire.codec import BadFrameError, Header, Kind, WrongVersionError
from kvstore_mpi.wire.dropped_frames import DroppedFrames
from kvstore_mpi.wire.events import Connected, Failed, Received, Silent, Statistics
from kvstore_mpi.wire.handshake import Identity, read_hello, read_welcome
from kvstore_mpi.wire.peer import Peer
from kvstore_mpi.wire.session import Session, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.interfaces import Buffer, Link
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire.events import Event
    from kvstore_mpi.wire.handshake import Hello
    from kvstore_mpi.wire.messages import Message

    Wire = list[Buffer]

logger = logging.getLogger(__name__)

HELLO_INTERVAL = 0.5
"""Seconds between repetitions of a HELLO: libzmq repeats the connection itself, this covers frames lost."""

MAX_HALF_OPEN = 1024
"""Sessions that wait for their first frame. Only who knows the secret, or replays, can make one; a job
larger than this would have to join within one round trip."""

_COUNTED_BY_SESSIONS = ("frames_sent", "bytes_sent", "duplicates", "retransmitted")


class Endpoint:
    """The sessions of one process; owned by its I/O loop."""

    def __init__(
        self, identity: Identity, *, connect_timeout: float, heartbeat: float, peer_timeout: float
    ) -> None:
        """Make an endpoint without peers.

        Args:
            identity: This process, as it proves itself in handshakes.
            connect_timeout: Seconds for which a HELLO is repeated.
            heartbeat: Seconds between signs of life.
            peer_timeout: Seconds of silence after which a monitored peer is reported.
        """
        self._identity = identity
        self._connect_timeout = connect_timeout
        self._heartbeat = heartbeat
        self._peer_timeout = peer_timeout
        self._peers: dict[NodeId, Peer] = {}
        self._connecting: dict[Link, Peer] = {}
        self._half_open: dict[bytes, Peer] = {}
        self._sessions: dict[int, Peer] = {}
        # Sessions that may have something to send or owe an acknowledgement, in order of arrival.
        self._busy: dict[Peer, None] = {}
        self._replies: list[tuple[Link, Wire]] = []
        self._next_tick = 0.0
        self._last_tick: float | None = None
        self._dropped = DroppedFrames(identity.node)
        self._totals: Counter[str] = Counter()

    # --- what the process wants ----------------------------------------------------------------------

    def connect(self, peer: NodeId, link: Link, now: float) -> None:
        """Start a session with the peer that listens at the other end of a link.

        ``Connected`` or ``Failed`` follows.
        """
        self.forget(peer)
        hello = self._identity.hello()
        record = Peer(
            node=peer,
            link=link,
            session=Session(self._heartbeat, now),
            hello=hello,
            deadline=now + self._connect_timeout,
            greeting=self._identity.seal(hello),
            connecting=True,
        )
        self._peers[peer] = self._connecting[link] = record
        self._next_tick = now

    def send(self, peer: NodeId, message: Message, payloads: Sequence[Buffer] = ()) -> None:
        """Queue a message; it arrives exactly once and in order while both processes live.

        Args:
            peer: A peer that is connected or being connected.
            message: The body.
            payloads: Contiguous buffers that follow it; they must not change until they have arrived.

        Raises:
            PeerLostError: There is no session with the peer.
            UsageError: The message is larger than the protocol allows.
        """
        record = self._peers.get(peer)
        if record is None:
            raise PeerLostError(
                f"{self._identity.node} cannot send {type(message).__name__} to {peer}, "
                "which never joined or has left"
            )
        record.session.send(codec.encode_message(message), tuple(payloads), codec.measure(payloads))
        self._busy[record] = None

    def monitor(self, peer: NodeId) -> None:
        """Report ``Silent`` when nothing is heard of a peer for ``peer_timeout`` seconds."""
        self._peers[peer].monitored = True
        self._next_tick = 0.0

    def forget(self, peer: NodeId, before: float = math.inf) -> None:
        """End the session with a peer, if there is one; what is queued for it is dropped.

        Args:
            peer: Whose session.
            before: Only if that is an earlier run of the peer than this.
        """
        record = self._peers.get(peer)
        if record is not None and record.incarnation < before:
            del self._peers[peer]
            self._retire(record)

    # --- what the I/O loop does ----------------------------------------------------------------------

    def receive(self, link: Link, frames: list[memoryview], now: float) -> list[Event]:
        """Take one wire message from a link; anything may be in it."""
        self._totals["frames_received"] += 1
        try:
            header = codec.read_header(frames)
            self._totals["bytes_received"] += frames[0].nbytes + header.payload_bytes
            record = self._sessions.get(header.session)
            if record is not None:
                return self._in_session(record, link, header, frames, now)
            return self._in_handshake(link, header, frames[0], now)
        except WrongVersionError as error:
            self._dropped.add(error, now)
            return self._other_version(link, error)
        except BadFrameError as error:
            self._dropped.add(error, now)
            return []

    def tick(self, now: float) -> list[Event]:
        """Do what is due; call it after every wait, with the messages of the wait received before."""
        self._excuse_own_absence(now)
        if now < self._next_tick:
            return []
        events: list[Event] = []
        for record in [*self._peers.values(), *self._half_open.values()]:
            events += self._tick_peer(record, now)
        left = [*self._peers.values(), *self._half_open.values()]
        self._next_tick = min([record.next_tick(self._peer_timeout) for record in left], default=math.inf)
        return events

    def outgoing(self, now: float) -> list[tuple[Link, Wire]]:
        """Return what to send now, in order; call it at the end of every pass of the loop."""
        out, self._replies = self._replies, []
        for _, (greeting,) in out:
            self._totals["frames_sent"] += 1
            self._totals["bytes_sent"] += len(greeting)
        for record in list(self._busy):
            out += [(record.link, frames) for frames in record.session.drain(now)]
            if not record.session.owes_ack:
                del self._busy[record]
        return out

    def next_deadline(self) -> float | None:
        """Return when ``tick`` and ``outgoing`` have to be called if nothing happens before."""
        acks = [record.session.ack_deadline for record in self._busy if record.session.owes_ack]
        deadline = min([self._next_tick, *acks])
        return None if deadline == math.inf else deadline

    # --- what others may know ------------------------------------------------------------------------

    def is_connected(self, peer: NodeId) -> bool:
        """Tell whether the session with a peer is up."""
        return peer in self._peers and not self._peers[peer].connecting

    def bytes_in_flight(self, peer: NodeId) -> int:
        """Payload bytes sent or queued to a peer and not acknowledged; 0 for one that has no session."""
        return self._peers[peer].session.bytes_in_flight if peer in self._peers else 0

    def unacknowledged(self, peer: NodeId) -> int:
        """Messages sent or queued to a peer and not acknowledged; 0 for one that has no session."""
        return self._peers[peer].session.unacknowledged if peer in self._peers else 0

    def last_heard(self, peer: NodeId) -> float:
        """When the last valid frame of a peer came, or its session began."""
        return self._peers[peer].session.last_heard

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        sessions = [record.session for record in (*self._peers.values(), *self._half_open.values())]
        return Statistics(
            frames_received=self._totals["frames_received"],
            bytes_received=self._totals["bytes_received"],
            dropped=dict(self._dropped.counts),
            **{
                name: self._totals[name] + sum(getattr(session, name) for session in sessions)
                for name in _COUNTED_BY_SESSIONS
            },
        )

    # --- frames of a session -------------------------------------------------------------------------

    def _in_session(
        self, record: Peer, link: Link, header: Header, frames: list[memoryview], now: float
    ) -> list[Event]:
        if not codec.is_signed(record.session.receive_key, frames[0]):
            raise BadFrameError("mac", "the signature of a frame is wrong")
        body = codec.body_of(frames[0])
        verdict = record.session.receive(header, body, now)
        self._busy[record] = None
        if verdict is Verdict.STALE:
            return []
        record.link = link
        record.silent = False
        events: list[Event] = [self._establish(record)] if record.half_open else []
        if verdict is Verdict.DELIVER:
            events.append(self._message(record, body, frames))
        return events

    def _message(self, record: Peer, body: memoryview, frames: list[memoryview]) -> Event:
        try:
            return Received(record.node, codec.decode_message(body), frames[1:])
        except BadFrameError as error:
            self._dropped.counts[error.reason] += 1
            self.forget(record.node)
            text = f"{record.node} sent {self._identity.node} what it does not understand: {error}"
            return Failed(record.node, FrameError(text))

    # --- handshakes ----------------------------------------------------------------------------------

    def _in_handshake(self, link: Link, header: Header, first: memoryview, now: float) -> list[Event]:
        signed = codec.is_signed(self._identity.secret, first)
        if header.kind == Kind.REFUSED and link in self._connecting:
            return [self._refused(self._connecting[link])]
        if header.kind == Kind.HELLO and not signed:
            self._replies.append((link, [self._identity.refusal()]))
            raise BadFrameError("secret", "a HELLO of another job")
        if header.kind == Kind.HELLO:
            return self._hello(link, first, now)
        if header.kind == Kind.WELCOME and signed:
            return self._welcome(link, first, now)
        raise BadFrameError("session", "a frame of a session that has ended, or never was")

    def _hello(self, link: Link, first: memoryview, now: float) -> list[Event]:
        node, hello = read_hello(first)
        current = self._peers.get(node)
        if current is not None and current.hello.nonce == hello.nonce:
            return []  # a late repetition: the peer has our WELCOME, for its session is up
        if current is not None and hello.incarnation < current.incarnation:
            return []  # from a run of the peer that is over
        record = self._half_open.get(hello.nonce) or self._new_half_open(node, link, hello, now)
        record.link = link
        self._replies.append((link, [record.greeting]))
        return []

    def _new_half_open(self, node: NodeId, link: Link, hello: Hello, now: float) -> Peer:
        if len(self._half_open) >= MAX_HALF_OPEN:
            self._retire(next(iter(self._half_open.values())))
        welcome = self._identity.welcome(hello)
        keys = self._identity.keys(hello, welcome)
        session = Session(self._heartbeat, now)
        session.open(welcome.session, keys.acceptor, keys.connector, now)
        record = Peer(
            node=node,
            link=link,
            session=session,
            hello=hello,
            deadline=now + self._connect_timeout,
            greeting=self._identity.seal(welcome),
            half_open=True,
            incarnation=hello.incarnation,
        )
        self._half_open[hello.nonce] = self._sessions[welcome.session] = record
        self._next_tick = min(self._next_tick, record.deadline)
        return record

    def _establish(self, record: Peer) -> Event:
        """Make a half-open session the peer's, in place of an earlier one."""
        earlier = self._peers.pop(record.node, None)
        if earlier is not None:
            record.monitored = earlier.monitored
            self._retire(earlier)
        del self._half_open[record.hello.nonce]
        record.half_open = False
        self._peers[record.node] = record
        self._next_tick = 0.0
        return Connected(record.node, earlier is not None, record.incarnation)

    def _welcome(self, link: Link, first: memoryview, now: float) -> list[Event]:
        node, welcome = read_welcome(first)
        record = self._connecting.get(link)
        if record is None or welcome.answers != record.hello.nonce:
            return []  # a late repetition, or a replay
        if node != record.node:
            text = f"whoever listens at the address given for {record.node} is {node}; "
            return [
                self._fail(record, PeerError(text + "an old address, or a port in use by another process"))
            ]
        keys = self._identity.keys(record.hello, welcome)
        record.session.open(welcome.session, keys.connector, keys.acceptor, now)
        record.session.greet()
        record.connecting = False
        record.incarnation = welcome.incarnation
        del self._connecting[link]
        self._sessions[welcome.session] = record
        self._busy[record] = None
        self._next_tick = 0.0
        return [Connected(node, False, welcome.incarnation)]

    def _refused(self, record: Peer) -> Event:
        text = (
            f"whoever listens at the address given for {record.node} does not know this job's secret, so "
            f"{self._identity.node} cannot join; is it the address of another job?"
        )
        return self._fail(record, AuthenticationError(text))

    def _other_version(self, link: Link, error: WrongVersionError) -> list[Event]:
        record = self._connecting.get(link)
        if record is not None:
            text = f"{self._identity.node} cannot join {record.node}: {error}"
            return [self._fail(record, FrameError(text))]
        if error.kind == Kind.HELLO:
            self._replies.append((link, [self._identity.refusal()]))  # it shows our version
        return []

    def _fail(self, record: Peer, error: KVStoreError) -> Event:
        self.forget(record.node)
        return Failed(record.node, error)

    def _retire(self, record: Peer) -> None:
        for name in _COUNTED_BY_SESSIONS:
            self._totals[name] += getattr(record.session, name)
        self._busy.pop(record, None)
        self._sessions.pop(record.session.number, None)
        if record.connecting:
            del self._connecting[record.link]
        if record.half_open:
            del self._half_open[record.hello.nonce]

    # --- time ----------------------------------------------------------------------------------------

    def _tick_peer(self, record: Peer, now: float) -> list[Event]:
        if record.half_open:
            if now >= record.deadline:
                self._retire(record)
            return []
        if record.connecting:
            return self._tick_connecting(record, now)
        if now >= record.session.probe_deadline:
            record.session.probe(now)
            self._busy[record] = None
        if record.fell_silent(now, self._peer_timeout):
            return [Silent(record.node, now - record.session.last_heard)]
        return []

    def _tick_connecting(self, record: Peer, now: float) -> list[Event]:
        if now >= record.deadline:
            text = (
                f"{record.node} has not answered {self._identity.node} for {self._connect_timeout:g} s; "
                "check that it runs and that its address can be reached from here"
            )
            return [self._fail(record, DeadlineError(text))]
        if now >= record.next_hello:
            record.next_hello = now + HELLO_INTERVAL
            self._replies.append((record.link, [record.greeting]))
        return []

    def _excuse_own_absence(self, now: float) -> None:
        """Do not count as silence of others what this process slept through: it had no way to hear them."""
        absence = 0.0 if self._last_tick is None else now - self._last_tick
        self._last_tick = now
        if absence > 2 * self._heartbeat:
            for record in self._peers.values():
                record.session.excuse(absence, now)
