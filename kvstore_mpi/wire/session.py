"""An ordered, exactly-once stream of messages each way between two incarnations of processes.

The links below may lose, repeat, reorder and break; the rules that repair this are:

- Data frames carry a counter that grows by one. The receiver takes exactly the one that it expects, drops
  lower ones (repeated) and higher ones (a gap), and holds nothing out of order.
- Every frame carries a cumulative acknowledgement. A frame with nothing else in it (ACK) is sent only when
  the sender asks for one because its window fills, when many frames have arrived, or one long enough ago,
  with no frame going the other way.
- The sender keeps references to what it sent until it is acknowledged, and sends it again only on evidence
  of loss, because a needless repetition is a flood on a link that is merely slow. Evidence is a NACK: the
  receiver saw a gap. A gap at the very end shows when a PROBE, which travels behind the data, names a
  counter that has not arrived. A PROBE is sent when nothing was acknowledged for one heartbeat, and when
  nothing was sent for one heartbeat, so that it is the sign of life as well.
- After a NACK everything from the named counter on is sent again, with the same counters. A NACK that may
  be older than that repetition is ignored; it names the newest control frame that its sender had seen.
- Control frames have a counter of their own, of which only a higher one is taken: a replay changes nothing.

This file must not know of links, handshakes, names or bodies of messages.
"""

from __future__ import annotations

import enum
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.wire.codec import DATA_KINDS, Header, Kind, decode_value, encode_value, seal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.interfaces import Buffer

    Frames = list[Buffer]

MAX_IN_FLIGHT = 512
"""Frames on the wire without acknowledgement. Must stay below half of the transport's high-water mark, so
that a repetition behind the originals is not dropped for want of room; 100 MB of 200 KB slices fit."""

ACK_FRAMES = 64
"""Frames received after which an ACK is sent at once: an eighth of ``MAX_IN_FLIGHT``."""

ACK_DELAY = 0.003
"""Seconds after which an ACK is sent at the latest: longer than the answer of a server to a push (about a
millisecond), so that answers carry most acknowledgements; short against what a window takes to empty."""


class Verdict(enum.Enum):
    """What became of a frame whose MAC was right."""

    DELIVER = "deliver"
    GAP = "gap"
    CONTROL = "control"
    STALE = "stale"


class _Sent(NamedTuple):
    counter: int
    body: bytes
    payloads: Sequence[Buffer]
    payload_bytes: int
    kind: Kind


class Session:
    """Both directions of one session, as seen from one end.

    Attributes:
        number: Name of the session in headers; 0 while it is not open.
        receive_key: Key that signs what the other end sends.
        bytes_in_flight: Payload bytes given to ``send`` and not acknowledged.
        last_heard: When the last frame that was not stale arrived.
        frames_sent: Wire messages returned by ``drain``.
        bytes_sent: Their bytes, payloads included.
        duplicates: Data frames that arrived again.
        retransmitted: Data frames sent again.
    """

    def __init__(self, heartbeat: float, now: float) -> None:
        """Make a session that queues what it is given until ``open``."""
        self.number = 0
        self.receive_key = b""
        self.bytes_in_flight = 0
        self.last_heard = now
        self.frames_sent = 0
        self.bytes_sent = 0
        self.duplicates = 0
        self.retransmitted = 0
        self._send_key = b""
        self._heartbeat = heartbeat
        # Sending. ``_queue`` holds all unacknowledged frames; its first ``_on_wire`` were sent since the
        # last repetition began. A repetition is nothing but setting that to 0: what ``drain`` sends next is
        # the same frames again, with the same counters, signed anew with the acknowledgement of now.
        self._queue: deque[_Sent] = deque()
        self._on_wire = 0
        self._last_counter = 0
        self._highest_sent = 0
        self._quiet_since = now
        self._probe_due = False
        self._control_sent = 0
        # The last repetition: its first counter, and how many control frames had been sent when it began.
        # Both together tell a complaint that it has answered already from one about itself.
        self._repeated_from = 0
        self._repeated_at = 0
        # Receiving.
        self._expected = 1  # counters begin at 1, so that an acknowledgement of 0 means nothing yet
        self._nacked = 0  # the gap that was complained of last, by the counter that was expected
        self._nack_due = False
        self._ack_due = False
        self._owed_since = 0.0
        self._owed_frames = 0
        self._control_received = 0

    def open(self, number: int, send_key: bytes, receive_key: bytes, now: float) -> None:
        """Start to send; the keys are per direction."""
        self.number = number
        self._send_key = send_key
        self.receive_key = receive_key
        # From now on, not since the handshake began: that may have taken longer than the time after which a
        # peer counts as silent.
        self.last_heard = self._quiet_since = now

    def greet(self) -> None:
        """Send something soon even when there is no data: the other end waits for a first frame."""
        # At once, not after ACK_DELAY: nothing can be exchanged before that frame has come.
        self._ack_due = True

    @property
    def unacknowledged(self) -> int:
        """Messages given to ``send`` that the other end has not acknowledged."""
        return len(self._queue)

    @property
    def owes_ack(self) -> bool:
        """Whether an ACK has to be sent by ``ack_deadline`` if no data goes before."""
        return self._owed_frames > 0

    @property
    def ack_deadline(self) -> float:
        """When the next acknowledgement is due, if one is owed."""
        return self._owed_since + ACK_DELAY

    @property
    def probe_deadline(self) -> float:
        """When ``probe`` has to be called."""
        return self._quiet_since + self._heartbeat

    def send(
        self, body: bytes, payloads: Sequence[Buffer], payload_bytes: int, *, asks: bool = False
    ) -> None:
        """Queue a message; its payloads must not change until ``unacknowledged`` says it has arrived.

        Args:
            body: The message.
            payloads: What follows it.
            payload_bytes: The sum of their lengths.
            asks: An acknowledgement is wanted at once, and not with the next frame that comes back.
        """
        # The counter is given here and not when the frame leaves: the number of the frame is its place in
        # the stream, whatever is sent again before it.
        self._last_counter += 1
        kind = Kind.ASKING if asks else Kind.DATA
        self._queue.append(_Sent(self._last_counter, body, payloads, payload_bytes, kind))
        self.bytes_in_flight += payload_bytes

    def receive(self, header: Header, body: memoryview, now: float) -> Verdict:
        """Take a frame of this session whose MAC is right.

        Raises:
            BadFrameError: The body of a control frame is malformed.
        """
        is_data = header.kind in DATA_KINDS
        verdict = self._receive_data(header, now) if is_data else self._control(header, body)
        # A frame that was seen before may be a replay, and says nothing of whether the peer lives. The
        # frame behind a gap is not delivered, but it is fresh: the peer lives, and only the link has lost
        # something.
        if verdict is not Verdict.STALE:
            self.last_heard = now
        # Even a stale frame's acknowledgement was true when it was signed, and it is cumulative, so an old
        # one takes nothing back: whatever comes first frees the buffers.
        self._acknowledged(header.ack, now)
        return verdict

    def is_fresh(self, header: Header) -> bool:
        """Tell whether a frame whose MAC is right was not seen before, and so is no replay."""
        if header.kind in DATA_KINDS:
            return header.counter >= self._expected
        return header.counter > self._control_received

    def probe(self, now: float) -> None:
        """Ask for a sign of life: there was none, or no progress, for one heartbeat."""
        self._probe_due = True
        self._quiet_since = now  # or it would be sent again in every pass until the answer comes

    def excuse(self, absence: float, now: float) -> None:
        """Do not count as the other end's silence what this process slept through itself."""
        # Not beyond now: a frame that came right after the sleep has been received already, and the absence
        # on top would hide as long a silence that comes later.
        self.last_heard = min(now, self.last_heard + absence)

    def drain(self, now: float) -> list[Frames]:
        """Return the wire messages to send now, in order."""
        # Messages may be given before the handshake is over. They wait: there is no key yet to sign them.
        if not self.number:
            return []
        out: list[Frames] = []
        queue = self._queue
        # Nothing was under way, so this is when waiting for an acknowledgement begins. While something is
        # under way only an acknowledgement puts the probe off, not what is sent: a stream into a broken
        # link would otherwise never be probed, and its loss never be found.
        was_idle = not queue or queue[0].counter > self._highest_sent
        if self._on_wire < len(queue):
            out += [self._data_frame(sent) for sent in islice(queue, self._on_wire, MAX_IN_FLIGHT)]
            self._on_wire += len(out)
        # A NACK is sent even if data goes the same way: the acknowledgement in a data frame does not tell
        # "not yet" from "lost". It says which of our control frames we had seen, for ``_repeat`` over
        # there.
        if self._nack_due:
            out.append(self._control_frame(Kind.NACK, self._control_received))
        elif not out and (self._ack_due or self._ack_is_due(now)):
            out.append(self._control_frame(Kind.ACK, self._control_received))
        # Behind the data of this pass, and the links keep order unless they lose: when a probe arrives,
        # what it names has arrived or is lost. It names what was *sent*; what still waits for room cannot
        # be missing.
        if self._probe_due:
            out.append(self._control_frame(Kind.PROBE, self._highest_sent))
        if out:
            self.frames_sent += len(out)
            if was_idle:
                self._quiet_since = now
            self._settle()
        return out

    def _settle(self) -> None:
        """Every frame carries the acknowledgement, so nothing is owed any more."""
        self._nack_due = self._ack_due = self._probe_due = False
        self._owed_frames = 0

    def _data_frame(self, sent: _Sent) -> Frames:
        if sent.counter <= self._highest_sent:
            self.retransmitted += 1
        else:
            self._highest_sent = sent.counter
        first = seal(
            self._send_key,
            sent.kind,
            sent.body,
            session=self.number,
            counter=sent.counter,
            ack=self._expected - 1,
            payloads=len(sent.payloads),
            payload_bytes=sent.payload_bytes,
        )
        self.bytes_sent += len(first) + sent.payload_bytes
        return [first, *sent.payloads]

    def _control_frame(self, kind: Kind, value: int) -> Frames:
        # Control frames are not repeated, so they need counters of their own: in the data's sequence each
        # one that is lost would be a gap.
        self._control_sent += 1
        first = seal(
            self._send_key,
            kind,
            encode_value(value),
            session=self.number,
            counter=self._control_sent,
            ack=self._expected - 1,
        )
        self.bytes_sent += len(first)
        return [first]

    def _ack_is_due(self, now: float) -> bool:
        # By frames, because small messages fill MAX_IN_FLIGHT first. By time, because nothing may come
        # after the last ones. Not by bytes: whether there is room for more its sender knows, and asks.
        return self._owed_frames > 0 and (self._owed_frames >= ACK_FRAMES or now >= self.ack_deadline)

    def _receive_data(self, header: Header, now: float) -> Verdict:
        if header.counter > self._expected:
            # One NACK a gap: the frames behind it, up to MAX_IN_FLIGHT of them, are no new evidence. If the
            # NACK or the repetition is lost, the next PROBE asks again. What is behind a gap is dropped and
            # not kept: repairs are rare (a link that breaks), and frames out of order would be memory that
            # a peer can make us hold.
            if self._nacked != self._expected:
                self._nacked = self._expected
                self._nack_due = True
            return Verdict.GAP
        # A repeated frame is owed an acknowledgement as well: it comes because the one before was lost.
        if not self._owed_frames:
            self._owed_since = now
        self._owed_frames += 1
        self._ack_due |= header.kind == Kind.ASKING
        if header.counter < self._expected:
            self.duplicates += 1
            return Verdict.STALE
        self._expected += 1
        return Verdict.DELIVER

    def _control(self, header: Header, body: memoryview) -> Verdict:
        value = decode_value(body)
        # Higher, not next: a lost control frame is not waited for. An old one changes nothing, so nobody
        # can replay a NACK to make this end send all that is under way once more.
        if header.counter <= self._control_received:
            return Verdict.STALE
        self._control_received = header.counter
        # Each probe is answered at once, with what is known: it is the sign of life that the peer waits
        # for, and the evidence of loss if something is missing, also where ``_receive_data`` has complained
        # already.
        if header.kind == Kind.PROBE:
            gap = value >= self._expected
            self._nack_due |= gap
            self._ack_due |= not gap
        elif header.kind == Kind.NACK:
            self._repeat(header.ack + 1, value)
        return Verdict.CONTROL

    def _repeat(self, wanted: int, seen: int) -> None:
        """Send again from ``wanted`` on, unless the last repetition, still on its way, did just that.

        ``seen`` is our newest control frame that the other end had when it complained: one from after
        the repetition proves that the repetition, ahead of it on the link, was lost as well.
        """
        # Without this condition each complaint that was under way when the repetition began would start
        # another one: the link, slow because of the first, would carry everything several times.
        if wanted > self._repeated_from or seen > self._repeated_at:
            self._repeated_from = wanted
            self._repeated_at = self._control_sent
            self._on_wire = 0

    def _acknowledged(self, ack: int, now: float) -> None:
        queue = self._queue
        # What has not been sent cannot have arrived. A peer with a bug that says so must not make us forget
        # it.
        ack = min(ack, self._highest_sent)
        while queue and queue[0].counter <= ack:
            self.bytes_in_flight -= queue.popleft().payload_bytes
            # During a repetition the acknowledgement of the originals may come for frames that are not on
            # the wire again yet; those need not be repeated any more.
            self._on_wire = max(0, self._on_wire - 1)
            self._quiet_since = now
