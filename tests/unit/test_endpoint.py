"""All sessions of a process: handshakes, strangers, replays, liveness, counting."""

from __future__ import annotations

import itertools
import logging

import pytest

from kvstore_mpi.errors import (
    AuthenticationError,
    ConfigurationError,
    DeadlineError,
    FrameError,
    PeerError,
    PeerLostError,
    UsageError,
)
from kvstore_mpi.records import SCHEDULER, NodeId, Role
from kvstore_mpi.wire import codec, endpoint
from kvstore_mpi.wire.codec import Kind
from kvstore_mpi.wire.dropped_frames import LOG_INTERVAL
from kvstore_mpi.wire.endpoint import HELLO_INTERVAL, Endpoint
from kvstore_mpi.wire.events import Connected, Failed, Received, Silent
from kvstore_mpi.wire.handshake import Identity
from kvstore_mpi.wire.messages import BarrierArrive, Leave, Ok
from kvstore_mpi.wire.session import ACK_DELAY

SERVER, WORKER = NodeId(Role.SERVER, 1), NodeId(Role.WORKER, 3)
SECRET = bytes(range(32))
numbers = itertools.count(1)


def identity(node, secret=SECRET, incarnation=0):
    """Every call is another process, with random numbers of its own."""
    counter = itertools.count(next(numbers) << 20)
    return Identity(node, incarnation, secret, lambda size: next(counter).to_bytes(size, "little"))


def make(node, secret=SECRET, incarnation=0):
    return Endpoint(
        identity(node, secret, incarnation), connect_timeout=60.0, heartbeat=1.0, peer_timeout=5.0
    )


def views(frames):
    return [memoryview(bytes(part)) for part in frames]


def carry(source, target, now, link="wire"):
    """Take what the source wants to send to the target; return the events and the wire messages."""
    out = source.outgoing(now)
    return [event for _, frames in out for event in target.receive(link, views(frames), now)], out


def exchange(a, b, now, link="wire"):
    """Let two endpoints talk until both have nothing more to say; return the events of each."""
    of_a, of_b = a.tick(now), b.tick(now)
    while True:
        to_b, forth = carry(a, b, now, link)
        to_a, back = carry(b, a, now, link)
        of_a, of_b = of_a + to_a, of_b + to_b
        if not forth + back:
            return of_a, of_b


@pytest.fixture
def pair():
    """A worker that is connected to a server at time 0."""
    worker, server = make(WORKER), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    exchange(worker, server, 0.0)
    assert worker.is_connected(SERVER)
    assert server.is_connected(WORKER)
    return worker, server


# --- handshake ---------------------------------------------------------------------------------------


def test_a_handshake_reports_both_sides_once():
    """Each side learns who the other is; the side that answers, once the session is proven."""
    worker, server = make(WORKER), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    worker.tick(0.0)
    assert carry(worker, server, 0.0)[0] == []
    assert not server.is_connected(WORKER)
    assert carry(server, worker, 0.0)[0] == [Connected(SERVER, replaced=False)]
    assert carry(worker, server, 0.0)[0] == [Connected(WORKER, replaced=False)]


def test_what_is_sent_early_arrives_after_the_handshake():
    """Messages wait for the session and keep their order."""
    worker, server = make(WORKER), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    for number in range(3):
        worker.send(SERVER, Ok(number), [b"x", b""])
    _, of_server = exchange(worker, server, 0.0)
    assert of_server[0] == Connected(WORKER, replaced=False)
    assert [event.message for event in of_server[1:]] == [Ok(0), Ok(1), Ok(2)]
    assert [[bytes(part) for part in event.payloads] for event in of_server[1:]] == [[b"x", b""]] * 3


def test_a_hello_is_repeated_until_it_is_answered():
    """A lost HELLO or WELCOME costs one interval, and repetitions connect nobody twice."""
    worker, server = make(WORKER), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    worker.tick(0.0)
    assert len(worker.outgoing(0.0)) == 1  # lost
    assert worker.next_deadline() == HELLO_INTERVAL
    worker.tick(HELLO_INTERVAL)
    carry(worker, server, HELLO_INTERVAL)
    assert len(server.outgoing(HELLO_INTERVAL)) == 1  # lost
    of_worker, of_server = exchange(worker, server, 2 * HELLO_INTERVAL)
    assert of_worker == [Connected(SERVER, replaced=False)]
    assert of_server == [Connected(WORKER, replaced=False)]
    assert server.statistics().dropped == worker.statistics().dropped == {}


def test_late_repetitions_of_a_handshake_are_ignored(pair):
    """A HELLO that was long under way neither replaces the session nor gets an answer."""
    late, server = make(WORKER), make(SERVER)
    late.connect(SERVER, "wire", 0.0)
    late.tick(0.0)
    [(_, hello)] = late.outgoing(0.0)
    server.receive("wire", views(hello), 0.0)
    [(_, welcome)] = server.outgoing(0.0)
    late.receive("wire", views(welcome), 0.0)
    carry(late, server, 0.0)
    assert server.receive("wire", views(hello), 0.0) == []
    assert late.receive("wire", views(welcome), 0.0) == []
    assert server.outgoing(0.0) == late.outgoing(0.0) == []


def test_nobody_answers():
    """After the connect timeout the error says who did not answer whom, and for how long."""
    worker = make(WORKER)
    worker.connect(SCHEDULER, "wire", 0.0)
    assert worker.tick(59.9) == []
    [failed] = worker.tick(60.0)
    assert isinstance(failed, Failed)
    assert failed.peer == SCHEDULER
    assert isinstance(failed.error, DeadlineError)
    assert "scheduler has not answered worker3 for 60 s" in str(failed.error)
    assert worker.next_deadline() is None


def test_another_job_is_refused_at_once():
    """Different secrets end the attempt with an error that says so, and are counted by the other side."""
    worker, server = make(WORKER, bytes(32)), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    of_worker, of_server = exchange(worker, server, 0.0)
    [failed] = of_worker
    assert isinstance(failed.error, AuthenticationError)
    assert "does not know this job's secret" in str(failed.error)
    assert of_server == []
    assert server.statistics().dropped == {"secret": 1}


def with_version(frames, version):
    first = bytearray(frames[0])
    first[4] = version
    return [memoryview(bytes(first)), *frames[1:]]


def test_another_version_is_answered_and_explained():
    """The newer side learns at once which versions meet, and what to install."""
    worker, server = make(WORKER), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    worker.tick(0.0)
    [(_, hello)] = worker.outgoing(0.0)
    assert server.receive("wire", with_version(hello, 9), 0.0) == []
    [(link, answer)] = server.outgoing(0.0)
    assert link == "wire"
    [failed] = worker.receive("wire", with_version(answer, 9), 0.0)
    assert isinstance(failed.error, FrameError)
    assert "worker3 cannot join server1: the peer speaks wire version 9" in str(failed.error)
    assert server.statistics().dropped == {"version": 1}


def test_frames_of_another_version_other_than_a_hello_get_no_answer():
    """Two sides of different versions do not refuse each other in a circle."""
    server = make(SERVER)
    server.receive("wire", with_version([codec.seal(SECRET, Kind.REFUSED)], 9), 0.0)
    assert server.outgoing(0.0) == []


def test_the_wrong_process_at_an_address_is_an_error():
    """A WELCOME of somebody else than the one expected ends the attempt and names both."""
    worker, other = make(WORKER), make(NodeId(Role.SERVER, 2))
    worker.connect(SERVER, "wire", 0.0)
    [failed], _ = exchange(worker, other, 0.0)
    assert isinstance(failed.error, PeerError)
    assert "given for server1 is server2" in str(failed.error)


def test_a_secret_of_another_length_is_a_configuration_error():
    """A truncated job file is noticed at the start."""
    with pytest.raises(ConfigurationError, match="must have 32 bytes, but worker3 was given 31"):
        make(WORKER, bytes(31))


def test_a_new_run_replaces_the_old_one(pair):
    """The same node with a new incarnation is a replacement; frames of its old run are dropped."""
    worker, server = pair
    again = make(WORKER, incarnation=1)
    again.connect(SERVER, "new wire", 1.0)
    _, of_server = exchange(again, server, 1.0, "new wire")
    assert of_server == [Connected(WORKER, replaced=True, incarnation=1)]
    worker.send(SERVER, Ok(1))
    assert carry(worker, server, 1.0)[0] == []
    assert server.statistics().dropped == {"session": 1}
    server.send(WORKER, Ok(2))
    assert [link for link, _ in server.outgoing(1.0)] == ["new wire"]


def test_an_old_run_does_not_come_back(pair):
    """A HELLO of a run that is over, late on its way, is not answered."""
    _, server = pair
    old, new = make(WORKER), make(WORKER, incarnation=1)
    new.connect(SERVER, "new wire", 1.0)
    exchange(new, server, 1.0, "new wire")
    old.connect(SERVER, "old wire", 2.0)
    exchange(old, server, 2.0, "old wire")
    assert not old.is_connected(SERVER)
    server.forget(WORKER, before=1)
    assert server.is_connected(WORKER)
    server.forget(WORKER, before=2)
    assert not server.is_connected(WORKER)


# --- replays and forgeries ---------------------------------------------------------------------------


def record(source, now):
    return [views(frames) for _, frames in source.outgoing(now)]


def test_a_replayed_hello_replaces_nothing(pair):
    """A stranger who repeats a recorded HELLO cannot end the session, nor finish the handshake."""
    worker, server = pair
    recorder = make(WORKER)
    recorder.connect(SERVER, "wire", 0.0)
    recorder.tick(0.0)
    [hello] = record(recorder, 0.0)
    assert server.receive("stranger", hello, 1.0) == []
    worker.send(SERVER, Ok(1))
    assert [type(event) for event in carry(worker, server, 1.0)[0]] == [Received]
    server.send(WORKER, Ok(2))
    assert "wire" in [link for link, _ in server.outgoing(1.0)]


def test_replayed_data_is_not_delivered_and_does_not_move_the_link(pair):
    """A recorded frame from another connection counts as a duplicate; answers stay where they were."""
    worker, server = pair
    worker.send(SERVER, Ok(1))
    [frame] = record(worker, 1.0)
    assert len(server.receive("wire", frame, 1.0)) == 1
    assert server.receive("stranger", frame, 1.0) == []
    server.send(WORKER, Ok(2))
    assert [link for link, _ in server.outgoing(1.0)] == ["wire"]
    assert server.statistics().duplicates == 1


def test_a_frame_cannot_be_sent_back(pair):
    """Each direction has its own key: a reflected frame has a wrong signature."""
    worker, _ = pair
    worker.send(SERVER, Ok(1))
    [frame] = record(worker, 1.0)
    assert worker.receive("wire", frame, 1.0) == []
    assert worker.statistics().dropped == {"mac": 1}


def test_a_replayed_welcome_is_ignored():
    """A WELCOME answers one HELLO only."""
    first, server = make(WORKER), make(SERVER)
    first.connect(SERVER, "wire", 0.0)
    first.tick(0.0)
    carry(first, server, 0.0)
    [welcome] = record(server, 0.0)
    second = make(WORKER)
    second.connect(SERVER, "wire", 0.0)
    assert second.receive("wire", welcome, 0.0) == []
    assert not second.is_connected(SERVER)


def test_a_fresh_frame_moves_the_session_to_its_link(pair):
    """After a reconnection the peer is answered where it is now."""
    worker, server = pair
    worker.send(SERVER, Ok(1))
    assert len(carry(worker, server, 1.0, "new wire")[0]) == 1
    server.send(WORKER, Ok(2))
    assert [link for link, _ in server.outgoing(1.0)] == ["new wire"]


def test_a_frame_behind_a_gap_also_shows_the_new_link(pair):
    """When a reconnection lost frames, the complaint goes to the new link."""
    worker, server = pair
    worker.send(SERVER, Ok(1))
    worker.outgoing(1.0)  # lost
    worker.send(SERVER, Ok(2))
    assert carry(worker, server, 1.0, "new wire")[0] == []
    [(link, _)] = server.outgoing(1.0)
    assert link == "new wire"


def test_half_open_sessions_are_bounded_and_forgotten(monkeypatch):
    """Recorded HELLOs of many runs hold a bounded number of sessions, for a bounded time."""
    monkeypatch.setattr(endpoint, "MAX_HALF_OPEN", 4)
    server = make(SERVER)
    hellos = []
    for _ in range(10):
        worker = make(WORKER)
        worker.connect(SERVER, "wire", 0.0)
        worker.tick(0.0)
        hellos += record(worker, 0.0)
    for hello in hellos * 2:
        server.receive("stranger", hello, 0.0)
        assert len(server._half_open) <= 4
        assert len(server._sessions) == len(server._half_open)
    server.tick(1.0)
    assert server.next_deadline() == 60.0
    server.tick(60.0)
    assert server._sessions == server._half_open == {}
    assert server.next_deadline() is None


def test_garbage_is_counted_by_reason_and_logged_once_a_minute(caplog):
    """Nothing a link brings raises; the log is not flooded, and each reason has its line."""
    server = make(SERVER)
    garbage = [[], [b""], [b"GET / HTTP/1.1\r\n\r\n"], [b"x" * 100]]
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            for frames in garbage:
                assert server.receive("wire", views(frames), 0.0) == []
        assert len(caplog.records) == 2
        server.receive("wire", views([b"x" * 100]), LOG_INTERVAL)
        assert len(caplog.records) == 3
    assert server.statistics().dropped == {"short": 150, "magic": 51}
    assert "server1 ignores frames" in caplog.text
    assert server.outgoing(0.0) == []


def test_strangers_frames_of_every_kind_are_dropped(pair):
    """Frames of the right form without a right signature change nothing, whatever their kind."""
    worker, server = pair
    number = next(iter(server._sessions))
    for kind in Kind:
        for session in (0, number, 12345):
            frame = codec.seal(b"guess", kind, codec.encode_value(1), session=session, counter=99)
            assert server.receive("stranger", views([frame]), 1.0) == []
    assert sum(server.statistics().dropped.values()) == 3 * len(Kind)
    worker.send(SERVER, Ok(1))
    assert len(carry(worker, server, 1.0)[0]) == 1
    assert server.is_connected(WORKER)


def test_signed_nonsense_in_a_handshake_is_counted():
    """Names and nonces are checked even when the secret is right."""
    server = make(SERVER)
    bodies = [
        b"",
        b"\xc1",
        b"\x93\xa4what\x01\xc4\x00",
        b"\x93\xa7worker3\x01\xc4\x01x",
        b"\x93\xa2\xff\xfe\x01\xc4\x00",
    ]
    for body in bodies:
        server.receive("wire", views([codec.seal(SECRET, Kind.HELLO, body)]), 0.0)
    assert server.statistics().dropped == {"body": len(bodies)}


def test_a_message_that_cannot_be_understood_fails_the_peer(pair, monkeypatch):
    """A body that is rightly signed but malformed is an error with a name, not a stall."""
    worker, server = pair
    monkeypatch.setattr(codec, "encode_message", lambda _message: b"\xc1")
    worker.send(SERVER, Ok(1))
    [failed], _ = carry(worker, server, 1.0)
    assert failed.peer == WORKER
    assert isinstance(failed.error, FrameError)
    assert "worker3 sent server1 what it does not understand" in str(failed.error)
    assert not server.is_connected(WORKER)


# --- sending and time --------------------------------------------------------------------------------


def test_sending_to_a_stranger_raises():
    """A peer that never joined or was forgotten is named."""
    with pytest.raises(PeerLostError, match="worker3 cannot send Leave to server1"):
        make(WORKER).send(SERVER, Leave())


def test_a_message_over_a_limit_raises_and_is_not_queued(pair, monkeypatch):
    """The caller's error does not disturb the stream."""
    worker, server = pair
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 10)
    with pytest.raises(UsageError):
        worker.send(SERVER, Ok(1), [bytes(11)])
    worker.send(SERVER, Ok(2))
    assert [event.message for event in carry(worker, server, 1.0)[0]] == [Ok(2)]


def test_the_window_is_visible(pair):
    """Bytes and messages count until they are acknowledged; an unknown peer has none."""
    worker, server = pair
    worker.send(SERVER, Ok(1), [bytes(70), bytes(30)])
    assert (worker.bytes_in_flight(SERVER), worker.unacknowledged(SERVER)) == (100, 1)
    carry(worker, server, 1.0)
    carry(server, worker, 1.0 + ACK_DELAY)
    assert (worker.bytes_in_flight(SERVER), worker.unacknowledged(SERVER)) == (0, 0)
    assert (worker.bytes_in_flight(SCHEDULER), worker.unacknowledged(SCHEDULER)) == (0, 0)


def test_an_owed_acknowledgement_sets_the_deadline(pair):
    """The loop is told to come back in time for a bare ACK."""
    worker, server = pair
    server.tick(0.5)
    worker.send(SERVER, Ok(1))
    carry(worker, server, 0.5)
    assert server.outgoing(0.5) == []
    assert server.next_deadline() == 0.5 + ACK_DELAY
    assert len(server.outgoing(0.5 + ACK_DELAY)) == 1
    assert server.next_deadline() > 0.5 + ACK_DELAY


def test_silence_is_reported_once_and_again_after_a_sign_of_life(pair):
    """Only of monitored peers, after the peer timeout, by the last valid frame."""
    worker, server = pair
    server.monitor(WORKER)

    def silent_at(now):
        return [event for event in server.tick(now) if isinstance(event, Silent)]

    assert [silent_at(now) for now in (1.0, 2.0, 3.0, 4.0, 4.9)] == [[]] * 5
    assert server.next_deadline() == 5.0
    assert silent_at(5.0) == [Silent(WORKER, 5.0)]
    assert silent_at(6.0) == silent_at(7.0) == []
    worker.send(SERVER, Ok(1))
    carry(worker, server, 7.5)
    assert server.last_heard(WORKER) == 7.5
    assert [silent_at(now) for now in (8.0, 9.0, 10.0, 11.0, 12.4)] == [[]] * 5
    assert silent_at(12.5) == [Silent(WORKER, 5.0)]
    assert worker.tick(100.0) == []


def test_idle_peers_hear_of_each_other_for_ever(pair):
    """With nothing to say, probes and their answers keep both sides alive."""
    worker, server = pair
    server.monitor(WORKER)
    worker.monitor(SERVER)
    for tenth in range(600):
        assert exchange(worker, server, tenth / 10) == ([], [])
    assert server.statistics().frames_sent + worker.statistics().frames_sent <= 240  # four a second


def test_time_slept_through_is_not_silence(pair):
    """A process whose own loop was stuck does not declare the others dead."""
    worker, server = pair
    server.monitor(WORKER)
    server.tick(0.5)
    assert server.tick(20.0) == []
    assert [event for now in (21.0, 22.0, 23.0, 24.0, 24.9) for event in server.tick(now)] == [
        Silent(WORKER, 24.9 - 19.5)
    ]
    assert worker.is_connected(SERVER)


def test_a_forgotten_peer_is_left_alone(pair):
    """After ``forget`` nothing is sent to a peer, and what comes from it is dropped."""
    worker, server = pair
    server.send(WORKER, Ok(1))
    server.forget(WORKER)
    server.forget(WORKER)
    assert server.tick(10.0) == server.outgoing(10.0) == []
    assert server.next_deadline() is None
    worker.send(SERVER, Ok(1))
    assert carry(worker, server, 10.0)[0] == []
    assert server.statistics().dropped == {"session": 1}


def test_connecting_again_starts_afresh():
    """A second ``connect`` to the same peer replaces the first, also while that one waits."""
    worker, server = make(WORKER), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    worker.connect(SERVER, "second wire", 0.0)
    worker.tick(0.0)
    assert [link for link, _ in worker.outgoing(0.0)] == ["second wire"]
    assert list(worker._connecting) == ["second wire"]
    assert server.statistics().frames_received == 0


def test_statistics_count_both_ways(pair):
    """Wire messages and bytes, also of sessions that have ended."""
    worker, server = pair
    before = worker.statistics(), server.statistics()
    for number in range(3):
        worker.send(SERVER, BarrierArrive(number), [bytes(100)])
    _, out = carry(worker, server, 1.0)
    server.forget(WORKER)
    sent = worker.statistics().frames_sent - before[0].frames_sent
    received = server.statistics().frames_received - before[1].frames_received
    size = sum(len(part) for _, frames in out for part in frames)
    assert sent == received == 3
    assert worker.statistics().bytes_sent - before[0].bytes_sent == size
    assert server.statistics().bytes_received - before[1].bytes_received == size


def test_counts_of_ended_sessions_are_kept(pair):
    """Duplicates and repetitions stay in the totals when their session is gone."""
    worker, server = pair
    worker.send(SERVER, Ok(1))
    [frame] = record(worker, 1.0)
    for _ in range(3):
        server.receive("wire", frame, 1.0)
    assert server.statistics().duplicates == 2
    server.forget(WORKER)
    assert server.statistics().duplicates == 2
