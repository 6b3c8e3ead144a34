"""All sessions of one process: which session a frame belongs to, liveness, counting.

Wire messages and time go in; events and wire messages come out. Sessions begin with a handshake
(``openings.py``). A link is not an identity: the number in the header finds the session, and a fresh frame
that is rightly signed moves the session to the link on which it came.

Nothing that comes from a link raises: what is not ours is dropped, counted by reason and logged at most
once a minute for each reason. Only one side of a pair connects.

This file must not know of sockets, threads, clocks, or what messages mean.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from kvstore_mpi.errors import FrameError, PeerLostError
from kvstore_mpi.wire import codec
from kvstore_mpi.wire.codec import BadFrameError, Header, WrongVersionError
from kvstore_mpi.wire.dropped_frames import DroppedFrames
from kvstore_mpi.wire.events import Connected, Failed, Received, Silent, Statistics
from kvstore_mpi.wire.openings import Openings
from kvstore_mpi.wire.session import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Buffer, Link
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire.events import Event
    from kvstore_mpi.wire.handshake import Identity
    from kvstore_mpi.wire.message import Message
    from kvstore_mpi.wire.peer import Peer

    Wire = list[Buffer]

_COUNTED_BY_SESSIONS = ("frames_sent", "bytes_sent", "duplicates", "retransmitted")

TICK_SECONDS = 20e-6
"""Between two ticks, for each peer: some twenty times what it takes to ask one."""


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
        self._heartbeat = heartbeat
        self._peer_timeout = peer_timeout
        self._openings = Openings(identity, connect_timeout=connect_timeout, heartbeat=heartbeat)
        # The session of each peer that is open, or that this process opens; at most one, because only one
        # side of a pair connects. A session that a peer opens comes in with its first frame.
        self._peers: dict[NodeId, Peer] = {}
        self._sessions: dict[int, Peer] = {}  # those that have a number, half-open ones included
        # Sessions that may have something to send or owe an acknowledgement, in order of arrival. A pass
        # asks these alone: asking all of them would make it slower with every process of the job. A
        # dictionary and no set, so that the order of what is sent does not depend on addresses in memory.
        self._busy: dict[Peer, None] = {}
        self._next_tick = 0.0  # when the first deadline of any session is; a pass before that looks at none
        self._last_tick: float | None = None
        self._dropped = DroppedFrames(identity.node)
        # Where the node wants payloads of a message, and the message that was last asked about: it may have
        # several.
        self.place: Callable[[Message, int], memoryview | None] = _nowhere
        self._begun: tuple[memoryview, Message | None] = (memoryview(b""), None)
        self._totals: Counter[str] = Counter()

    # --- what the process wants ----------------------------------------------------------------------

    def connect(self, peer: NodeId, link: Link, now: float) -> None:
        """Start a session with the peer that listens at the other end of a link.

        ``Connected`` or ``Failed`` follows.
        """
        self.forget(peer)
        self._peers[peer] = self._openings.begin(peer, link, now)
        self._next_tick = now

    def send(
        self, peer: NodeId, message: Message, payloads: Sequence[Buffer] = (), *, asks: bool = False
    ) -> None:
        """Queue a message; it arrives exactly once and in order while both processes live.

        Args:
            peer: A peer that is connected or being connected.
            message: The body.
            payloads: Contiguous buffers that follow it; they must not change until they have arrived.
            asks: The peer shall acknowledge at once: more waits than there is room for.

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
        # Encoded now, although it may wait: who sends is told at once that a message is too large, and
        # later changes to what it holds do not matter.
        body = codec.encode_message(message)
        record.session.send(body, tuple(payloads), codec.measure(payloads), asks=asks)
        self._busy[record] = None

    def monitor(self, peer: NodeId) -> None:
        """Report ``Silent`` when nothing is heard of a peer for ``peer_timeout`` seconds."""
        # The next tick was chosen while nobody watched this peer, and may lie behind ``peer_timeout``: the
        # silence would be reported late.
        self._peers[peer].monitored = True
        self._tick_for(self._peers[peer])

    def forget(self, peer: NodeId, before: float = math.inf) -> None:
        """End the session with a peer, if there is one; what is queued for it is dropped.

        Args:
            peer: Whose session.
            before: Only if that is an earlier incarnation of the peer than this.
        """
        record = self._peers.get(peer)
        # The launcher's news of a death may come after the next incarnation has connected: that session
        # has to stay, or the process would be thrown out as soon as it has come back.
        if record is not None and record.incarnation < before:
            del self._peers[peer]
            self._retire(record)

    # --- what the I/O loop does ----------------------------------------------------------------------

    def receive(self, link: Link, frames: list[memoryview], now: float) -> list[Event]:
        """Take one wire message from a link; anything may be in it."""
        self._totals["frames_received"] += 1
        try:
            # In the order of what it costs: fixed fields and lengths, then the number in a dictionary, then
            # the signature. A stranger's frame is dropped before anything is allocated for it.
            header = codec.read_header(frames)
            self._totals["bytes_received"] += frames[0].nbytes + header.payload_bytes
            record = self._sessions.get(header.session)
            if record is not None:
                return self._in_session(record, link, header, frames, now)
            return self._in_handshake(link, header, frames[0], now)
        except WrongVersionError as error:
            self._dropped.add(error, now)
            return self._given_up(self._openings.other_version(link, error))
        except BadFrameError as error:
            self._dropped.add(error, now)
            return []

    def proves(self, first: memoryview) -> bool:
        """Tell whether the first frame of a message shows that its sender knows the job's secret.

        Of a handshake only the WELCOME to a HELLO of this process does: others may be replays.
        """
        # Asked before the rest of a message is read from a connection that has shown nothing yet. What the
        # frame says is not taken here: that happens when all of the message has come.
        try:
            header = codec.read_first(first)
        except BadFrameError:
            return False
        record = self._sessions.get(header.session)
        if record is None:
            return self._openings.proves(header, first)
        session = record.session
        return session.is_fresh(header) and codec.is_signed(session.receive_key, first)

    def place_of(self, first: memoryview, number: int) -> memoryview | None:
        """Return where a payload that has begun to come is to be written, or ``None`` for anywhere.

        The message may still be dropped, as one behind a gap is, and comes again then.
        """
        if self._begun[0] is not first:
            self._begun = (first, self._read_ahead(first))
        message = self._begun[1]
        return None if message is None else self.place(message, number)

    def _read_ahead(self, first: memoryview) -> Message | None:
        """Return the message of a frame that is not taken yet, if it is signed and no repetition."""
        # What has been delivered must not be written again: its buffer may be in use for something else.
        try:
            header = codec.read_first(first)
            record = self._sessions.get(header.session)
            if record is None or header.kind not in codec.DATA_KINDS or not record.session.is_fresh(header):
                return None
            if not codec.is_signed(record.session.receive_key, first):
                return None
            return codec.decode_message(codec.body_of(first))
        except BadFrameError:
            return None  # whoever takes it says so

    def tick(self, now: float) -> list[Event]:
        """Do what is due; call it after every wait, with the messages of the wait received before."""
        self._excuse_own_absence(now)
        if now < self._next_tick:
            return []
        events: list[Event] = []
        for record in self._records():
            events += self._tick_peer(record, now)
        # Asked anew: a session that has ended in this tick has a deadline in the past, and the loop would
        # not wait before its next pass, in which nothing is due.
        left = self._records()
        earliest = min([record.next_tick(self._peer_timeout) for record in left], default=math.inf)
        # Among thousands of peers something is due in every pass, and a tick asks all of them.
        self._next_tick = max(earliest, now + TICK_SECONDS * len(left))
        return events

    def outgoing(self, now: float) -> list[tuple[Link, Wire]]:
        """Return what to send now, in order; call it at the end of every pass of the loop."""
        out, self._openings.replies = self._openings.replies, []
        # Counted here, because frames of handshakes come from no session; each session counts its own, and
        # ``statistics`` adds them.
        for _, (greeting,) in out:
            self._totals["frames_sent"] += 1
            self._totals["bytes_sent"] += len(greeting)
        for record in list(self._busy):
            out += [(record.link, frames) for frames in record.session.drain(now)]
            # What waits for room on the wire needs no next pass: room comes with an acknowledgement, and
            # that makes the session busy again.
            if not record.session.owes_ack:
                del self._busy[record]
        return out

    def next_deadline(self) -> float | None:
        """Return when ``tick`` and ``outgoing`` have to be called if nothing happens before."""
        acks = [record.session.ack_deadline for record in self._busy if record.session.owes_ack]
        deadline = min([self._next_tick, *acks])
        return None if deadline == math.inf else deadline

    @property
    def secret(self) -> bytes:
        """The job's secret, for the transport."""
        return self._identity.secret

    # --- what others may know ------------------------------------------------------------------------

    def is_connected(self, peer: NodeId) -> bool:
        """Tell whether the session with a peer is up."""
        return peer in self._peers and not self._peers[peer].connecting

    def bytes_in_flight(self, peer: NodeId) -> int:
        """Payload bytes sent or queued to a peer and not acknowledged; 0 for one that has no session."""
        return self._peers[peer].session.bytes_in_flight if peer in self._peers else 0

    def all_in_flight(self) -> int:
        """Payload bytes sent or queued to all peers and not acknowledged."""
        return sum(record.session.bytes_in_flight for record in list(self._peers.values()))

    def unacknowledged(self, peer: NodeId) -> int:
        """Messages sent or queued to a peer and not acknowledged; 0 for one that has no session."""
        # 0 and no error: a loop that ends asks for every process that it has ever sent to, and some of them
        # are gone by then.
        return self._peers[peer].session.unacknowledged if peer in self._peers else 0

    def last_heard(self, peer: NodeId) -> float:
        """When the last valid frame of a peer came, or its session began."""
        return self._peers[peer].session.last_heard

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        sessions = [record.session for record in self._records()]
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
        # Before the signature is known to be right the session must not change, not even by a note that it
        # was heard of: session numbers travel in clear, and anybody can put one into a header.
        if not codec.is_signed(record.session.receive_key, frames[0]):
            raise BadFrameError("mac", "the signature of a frame is wrong")
        body = codec.body_of(frames[0])
        verdict = record.session.receive(header, body, now)
        self._busy[record] = None
        if verdict is Verdict.STALE:
            return []  # maybe a replay, by which a stranger would draw our answers to a link of his own
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
            # The signature is right, so this is a bug and no attack. To drop the frame would be worse: the
            # session has counted it, so it is not sent again, and whoever waits for it waits for ever.
            self._dropped.counts[error.reason] += 1
            self.forget(record.node)
            text = f"{record.node} sent {self._identity.node} what it does not understand: {error}"
            return Failed(record.node, FrameError(text))

    # --- handshakes ----------------------------------------------------------------------------------

    def _in_handshake(self, link: Link, header: Header, first: memoryview, now: float) -> list[Event]:
        outcome = self._openings.receive(link, header, first, self._peers, now)
        if outcome is None or isinstance(outcome, Failed):
            return self._given_up(outcome)
        self._sessions[outcome.session.number] = outcome
        if outcome.half_open:
            surplus = self._openings.surplus
            if surplus is not None:
                self._retire(surplus)
            self._next_tick = min(self._next_tick, outcome.deadline)
            return []
        self._busy[outcome] = None
        self._tick_for(outcome)
        return [Connected(outcome.node, False, outcome.incarnation)]

    def _establish(self, record: Peer) -> Event:
        """Make a half-open session the peer's, instead of an earlier one."""
        earlier = self._peers.pop(record.node, None)
        if earlier is not None:
            # Who watches the process watches its next incarnation: nobody asks for it a second time, and a
            # host that is lost just then would never be noticed.
            record.monitored = earlier.monitored
            self._retire(earlier)
        self._openings.end(record)
        record.half_open = False
        self._peers[record.node] = record
        self._tick_for(record)
        return Connected(record.node, earlier is not None, record.incarnation)

    def _given_up(self, failed: Failed | None) -> list[Event]:
        """Report that connecting has failed, if it has."""
        if failed is None:
            return []
        self.forget(failed.peer)
        return [failed]

    def _retire(self, record: Peer) -> None:
        # What is queued in the session goes with it: it was meant for this incarnation of the peer. The
        # counts stay, because totals that fall when a peer leaves are no totals.
        for name in _COUNTED_BY_SESSIONS:
            self._totals[name] += getattr(record.session, name)
        self._busy.pop(record, None)
        self._sessions.pop(record.session.number, None)
        self._openings.end(record)

    def _tick_for(self, record: Peer) -> None:
        """Have the next tick no later than this session needs it; the others' stays as it is."""
        self._next_tick = min(self._next_tick, record.next_tick(self._peer_timeout))

    def _records(self) -> list[Peer]:
        return [*self._peers.values(), *self._openings.half_open.values()]

    # --- time ----------------------------------------------------------------------------------------

    def _tick_peer(self, record: Peer, now: float) -> list[Event]:
        # Nobody is told that a half-open session has run out: whoever began it was a stranger with a
        # recorded HELLO, or a process that is gone, and in either case no peer of this process.
        if record.half_open:
            if now >= record.deadline:
                self._retire(record)
            return []
        if record.connecting:
            return self._given_up(self._openings.tick(record, now))
        # Of every session, monitored or not: a lost end of a stream shows by a probe alone.
        if now >= record.session.probe_deadline:
            record.session.probe(now)
            self._busy[record] = None
        if record.fell_silent(now, self._peer_timeout):
            return [Silent(record.node, now - record.session.last_heard)]
        return []

    def _excuse_own_absence(self, now: float) -> None:
        """Do not count as silence of others what this process slept through: it had no way to hear them."""
        # A process that was stopped, or whose interpreter did something long (docs/adr/0002), finds all its
        # peers silent when it goes on, and would declare them dead before it has read what they have sent.
        absence = 0.0 if self._last_tick is None else now - self._last_tick
        self._last_tick = now
        # Twice, because a tick may be as late as the next heartbeat when nothing else happens.
        if absence > 2 * self._heartbeat:
            for record in self._peers.values():
                record.session.excuse(absence, now)


def _nowhere(_message: Message, _number: int) -> None:
    """Of a node that takes payloads from memory of their own."""
