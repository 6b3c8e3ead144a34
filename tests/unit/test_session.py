"""One session between two ends, frame by frame: order, acknowledgement, repetition only on evidence."""

from __future__ import annotations

import pytest

from kvstore_mpi.wire import codec
from kvstore_mpi.wire.codec import Kind
from kvstore_mpi.wire.session import ACK_DELAY, ACK_FRAMES, MAX_IN_FLIGHT, Session, Verdict

HEARTBEAT = 1.0


class End:
    """One end of the session; ``got`` collects the bodies delivered here."""

    def __init__(self, send_key, receive_key):
        self.session = Session(HEARTBEAT, 0.0)
        self.session.open(9, send_key, receive_key, 0.0)
        self.got = []

    def send(self, *bodies, payload=b"", asks=False):
        for body in bodies:
            self.session.send(body, [payload], len(payload), asks=asks)

    def drain(self, now=0.0):
        return self.session.drain(now)

    def receive(self, messages, now=0.0):
        verdicts = []
        for parts in messages:
            frames = [memoryview(part) for part in parts]
            header = codec.read_header(frames)
            assert codec.is_signed(self.session.receive_key, frames[0])
            verdicts.append(self.session.receive(header, codec.body_of(frames[0]), now))
            if verdicts[-1] is Verdict.DELIVER:
                self.got.append(bytes(codec.body_of(frames[0])))
        return verdicts


@pytest.fixture
def ends():
    return End(b"a", b"b"), End(b"b", b"a")


def kinds(messages):
    return [Kind(codec.read_header([memoryview(part) for part in parts]).kind) for parts in messages]


def settle(a, b, now):
    """Exchange everything there is, nothing lost."""
    while (forth := a.drain(now)) + (back := b.drain(now)):
        b.receive(forth, now)
        a.receive(back, now)


def test_messages_arrive_in_order_and_are_acknowledged(ends):
    """What was sent arrives; its buffers are released when the acknowledgement comes."""
    a, b = ends
    a.send(b"1", b"2", b"3", payload=bytes(100))
    assert (a.session.bytes_in_flight, a.session.unacknowledged) == (300, 3)
    b.receive(a.drain())
    assert b.got == [b"1", b"2", b"3"]
    assert a.session.unacknowledged == 3
    a.receive(b.drain(ACK_DELAY))
    assert (a.session.bytes_in_flight, a.session.unacknowledged) == (0, 0)


def test_payloads_are_passed_on_and_never_copied(ends):
    """The very buffers of the caller are handed to the transport, again when repeated."""
    a, b = ends
    payload = bytearray(10)
    a.session.send(b"x", [payload], 10)
    [first] = a.drain()
    assert first[1] is payload
    a.session.send(b"y", [], 0)
    b.receive(a.drain())
    a.receive(b.drain())
    again, _ = a.drain()
    assert again[1] is payload


def test_before_it_is_open_a_session_only_queues():
    """Nothing leaves without keys; then everything does."""
    session = Session(HEARTBEAT, 0.0)
    session.send(b"early", [], 0)
    assert session.drain(0.0) == []
    session.open(1, b"a", b"b", 0.0)
    assert kinds(session.drain(0.0)) == [Kind.DATA]


def test_repeated_frames_are_dropped_and_counted(ends):
    """A frame that comes twice is delivered once, and acknowledged again in case that was lost."""
    a, b = ends
    a.send(b"1")
    out = a.drain()
    assert b.receive(out) == [Verdict.DELIVER]
    b.drain(ACK_DELAY)
    assert b.receive(out) == [Verdict.STALE]
    assert (b.got, b.session.duplicates) == ([b"1"], 1)
    assert kinds(b.drain(2 * ACK_DELAY)) == [Kind.ACK]


def test_a_gap_is_complained_of_once_and_repaired(ends):
    """Frames behind a gap are dropped, one NACK asks for all of them, and they arrive once."""
    a, b = ends
    a.send(b"1", b"2", b"3", b"4")
    out = a.drain()
    assert b.receive([out[0], out[2], out[3]]) == [Verdict.DELIVER, Verdict.GAP, Verdict.GAP]
    nack = b.drain()
    assert kinds(nack) == [Kind.NACK]
    a.send(b"5")
    assert b.receive(a.drain()) == [Verdict.GAP]
    assert b.drain() == []
    a.receive(nack)
    assert a.session.unacknowledged == 4
    b.receive(a.drain())
    assert b.got == [b"1", b"2", b"3", b"4", b"5"]
    assert a.session.retransmitted == 4


def test_a_lost_end_shows_at_the_next_probe(ends):
    """When the last frames are lost nobody sees a gap, until a PROBE names them."""
    a, b = ends
    a.send(b"1", b"2")
    b.receive(a.drain()[:1])
    assert a.session.probe_deadline == HEARTBEAT
    a.session.probe(HEARTBEAT)
    probe = a.drain(HEARTBEAT)
    assert kinds(probe) == [Kind.PROBE]
    b.receive(probe, HEARTBEAT)
    a.receive(b.drain(HEARTBEAT), HEARTBEAT)
    b.receive(a.drain(HEARTBEAT), HEARTBEAT)
    assert b.got == [b"1", b"2"]


def test_slowness_is_no_evidence_of_loss(ends):
    """However long nothing comes back, only probes are sent, no data again."""
    a, _ = ends
    a.send(*[b"x"] * 50)
    a.drain()
    for beat in range(1, 30):
        a.session.probe(beat * HEARTBEAT)
        assert kinds(a.drain(beat * HEARTBEAT)) == [Kind.PROBE]
    assert a.session.retransmitted == 0


def test_a_complaint_older_than_the_repetition_is_ignored(ends):
    """A probe that was under way before the repetition provokes a second NACK, but no second repetition."""
    a, b = ends
    a.send(b"1", b"2")
    out = a.drain()
    a.session.probe(HEARTBEAT)
    early_probe = a.drain(HEARTBEAT)
    b.receive(out[1:])
    first_nack = b.drain()
    b.receive(early_probe)
    second_nack = b.drain()
    assert kinds(first_nack + second_nack) == [Kind.NACK, Kind.NACK]
    a.receive(first_nack)
    assert kinds(a.drain()) == [Kind.DATA, Kind.DATA]
    a.receive(second_nack)
    assert a.drain() == []


def test_a_lost_repetition_is_repeated_after_the_next_probe(ends):
    """A NACK in answer to a probe from after the repetition is new evidence."""
    a, b = ends
    a.send(b"1", b"2")
    b.receive(a.drain()[1:])
    a.receive(b.drain())
    assert len(a.drain()) == 2  # and this is lost
    a.session.probe(HEARTBEAT)
    b.receive(a.drain(HEARTBEAT))
    a.receive(b.drain(HEARTBEAT))
    b.receive(a.drain(HEARTBEAT))
    assert b.got == [b"1", b"2"]


def test_a_second_gap_in_a_repetition_is_repaired_at_once(ends):
    """A gap at a higher counter is new evidence by itself."""
    a, b = ends
    a.send(b"1", b"2", b"3", b"4")
    b.receive(a.drain()[1:])
    a.receive(b.drain())
    repetition = a.drain()
    b.receive([repetition[0], repetition[2]])
    a.receive(b.drain())
    b.receive(a.drain())
    assert b.got == [b"1", b"2", b"3", b"4"]


def test_data_going_back_carries_the_acknowledgement(ends):
    """Requests and answers alternate without one bare ACK."""
    a, b = ends
    for number in range(100):
        a.send(b"request")
        forth = a.drain(number)
        b.receive(forth, number)
        b.send(b"answer")
        back = b.drain(number)
        assert kinds(forth + back) == [Kind.DATA, Kind.DATA]
        a.receive(back, number)
    assert a.session.unacknowledged == 0


def test_an_acknowledgement_waits_for_the_delay(ends):
    """A single frame is acknowledged when the delay is over, not before."""
    a, b = ends
    a.send(b"1")
    b.receive(a.drain(5.0), 5.0)
    assert b.session.owes_ack
    assert b.session.ack_deadline == 5.0 + ACK_DELAY
    assert b.drain(5.0 + 0.9 * ACK_DELAY) == []
    assert kinds(b.drain(5.0 + ACK_DELAY)) == [Kind.ACK]
    assert not b.session.owes_ack
    assert b.drain(9.0) == []


def test_many_frames_are_acknowledged_at_once(ends):
    """They do not wait for the delay: no more than a few hundred may be on the wire."""
    a, b = ends
    a.send(*[b"x"] * ACK_FRAMES)
    out = a.drain()
    b.receive(out[:-1])
    assert b.drain() == []
    b.receive(out[-1:])
    assert kinds(b.drain()) == [Kind.ACK]


def test_who_asks_is_acknowledged_at_once_and_nobody_else(ends):
    """Of bytes alone the receiver does not know whether anybody waits for room."""
    a, b = ends
    a.send(b"1", payload=bytes(1 << 20))
    b.receive(a.drain())
    assert b.drain() == []
    a.send(b"2", payload=bytes(100), asks=True)
    asking = a.drain()
    assert kinds(asking) == [Kind.ASKING]
    b.receive(asking)
    a.receive(b.drain())
    assert (b.got, a.session.bytes_in_flight) == ([b"1", b"2"], 0)
    assert b.drain(ACK_DELAY) == []


def test_who_asks_again_is_acknowledged_again(ends):
    """The first acknowledgement may have been lost, and the sender waits for room."""
    a, b = ends
    a.send(b"1", asks=True)
    out = a.drain()
    b.receive(out)
    assert kinds(b.drain()) == [Kind.ACK]
    assert b.receive(out) == [Verdict.STALE]
    assert kinds(b.drain()) == [Kind.ACK]


def test_a_repetition_asks_as_the_original_did(ends):
    a, b = ends
    a.send(b"1")
    a.send(b"2", asks=True)
    b.receive(a.drain()[1:])
    a.receive(b.drain())
    assert kinds(a.drain()) == [Kind.DATA, Kind.ASKING]


def test_the_number_of_frames_on_the_wire_is_bounded(ends):
    """More than the limit waits for acknowledgements, and then goes out in order."""
    a, b = ends
    bodies = [str(number).encode() for number in range(3 * MAX_IN_FLIGHT)]
    a.send(*bodies)
    out = a.drain()
    assert len(out) == MAX_IN_FLIGHT
    assert a.drain() == []
    b.receive(out)
    settle(a, b, 0.0)
    settle(a, b, ACK_DELAY)
    assert b.got == bodies


def test_signs_of_life_are_due_one_heartbeat_after_the_last_frame(ends):
    """An idle end probes every heartbeat; the other answers at once."""
    a, b = ends
    a.send(b"1")
    b.receive(a.drain(3.0), 3.0)
    a.receive(b.drain(3.0 + ACK_DELAY), 3.5)
    assert a.session.probe_deadline == 3.5 + HEARTBEAT
    a.session.probe(4.5)
    b.receive(a.drain(4.5), 4.6)
    assert b.session.last_heard == 4.6
    assert a.session.probe_deadline == 4.5 + HEARTBEAT
    answer = b.drain(4.6)
    assert kinds(answer) == [Kind.ACK]
    a.receive(answer, 4.7)
    assert a.session.last_heard == 4.7


def test_sending_without_progress_does_not_put_off_the_probe(ends):
    """A stream into the void is probed as early as a single message."""
    a, _ = ends
    for tenth in range(9):
        a.send(b"x")
        a.drain(tenth / 10)
    assert a.session.probe_deadline == HEARTBEAT


def test_replayed_control_frames_change_nothing(ends):
    """An old NACK cannot make the sender repeat, nor an old ACK count as a sign of life."""
    a, b = ends
    a.send(b"1", b"2")
    b.receive(a.drain()[1:])
    nack = b.drain()
    assert a.receive(nack, 1.0) == [Verdict.CONTROL]
    a.drain()
    assert a.receive(nack, 2.0) == [Verdict.STALE]
    assert (a.drain(), a.session.last_heard) == ([], 1.0)


def test_an_acknowledgement_of_what_was_not_sent_is_harmless(ends):
    """A peer that claims too much does not make us forget what we have not sent."""
    a, b = ends
    claim = codec.seal(b"b", Kind.ACK, codec.encode_value(0), session=9, counter=1, ack=10**6)
    a.send(b"1")
    a.receive([[claim]])
    assert a.session.unacknowledged == 1
    b.receive(a.drain())
    assert b.got == [b"1"]


def test_greeting_sends_one_frame(ends):
    """The end that was welcomed says something even when it has no data."""
    a, _ = ends
    a.session.greet()
    assert kinds(a.drain()) == [Kind.ACK]
    assert a.drain() == []


def test_own_absence_is_not_the_others_silence(ends):
    """Time slept through moves ``last_heard``, but not into the future."""
    a, _ = ends
    a.session.excuse(5.0, 10.0)
    assert a.session.last_heard == 5.0
    a.session.excuse(50.0, 12.0)
    assert a.session.last_heard == 12.0
