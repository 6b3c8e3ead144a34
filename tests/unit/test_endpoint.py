"""The sessions of a process once they are open: strangers, replays, liveness, counting."""

from __future__ import annotations

import logging

import pytest
from support.endpoints import SERVER, WORKER, carry, connected, exchange, make, record, views

from kvstore_mpi.errors import (
    FrameError,
    PeerLostError,
    UsageError,
)
from kvstore_mpi.records import SCHEDULER, NodeId, Role
from kvstore_mpi.wire import codec
from kvstore_mpi.wire.codec import Kind
from kvstore_mpi.wire.events import Silent
from kvstore_mpi.wire.messages import BarrierArrive, Leave, Ok
from kvstore_mpi.wire.occasional import LOG_INTERVAL
from kvstore_mpi.wire.session import ACK_DELAY


@pytest.fixture
def pair():
    """A worker that is connected to a server at time 0."""
    return connected()


# --- who sends -----------------------------------------------------------------------------------------


def test_a_fresh_signed_frame_proves_who_sends_and_a_replay_does_not(pair):
    """Data and control frames alike, behind a gap as well; asking changes nothing."""
    worker, server = pair
    worker.send(SERVER, Ok(1))
    worker.send(SERVER, Ok(2), [bytes(1_000)])
    first, second = record(worker, 1.0)
    worker.tick(9.0)
    [probe] = record(worker, 9.0)
    for frames in (first, second, probe):
        assert server.proves(frames[0])
        assert not worker.proves(frames[0])
    for frames in (first, second, probe):
        server.receive("wire", frames, 9.0)
        assert not server.proves(frames[0])
    assert server.statistics().duplicates == 0


def test_a_frame_that_was_changed_proves_nothing(pair):
    """Neither does garbage, nor a frame of another job's session."""
    worker, server = pair
    worker.send(SERVER, Ok(1))
    [[frame]] = record(worker, 1.0)
    changed = bytearray(frame)
    changed[-1] ^= 1
    assert not any(map(server.proves, map(memoryview, (changed, b"", b"x" * 100, frame[:-1]))))
    assert not make(SERVER).proves(frame)


def test_of_a_handshake_only_the_answer_to_the_own_hello_proves_who_sends():
    """A HELLO may be a replay, and so may a WELCOME for which nobody waits, or that answers another."""
    worker, server = make(WORKER), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    worker.tick(0.0)
    [hello] = record(worker, 0.0)
    assert not server.proves(hello[0])
    server.receive("wire", hello, 0.0)
    [welcome] = record(server, 0.0)
    another = make(WORKER)
    another.connect(SERVER, "wire", 0.0)
    assert [each.proves(welcome[0]) for each in (worker, server, another)] == [True, False, False]
    assert not worker.proves(memoryview(bytes(welcome[0][:-1]) + b"x"))
    worker.receive("wire", welcome, 0.0)
    assert not worker.proves(welcome[0])
    [greeting] = record(worker, 0.0)
    assert server.proves(greeting[0])


# --- where payloads are written ----------------------------------------------------------------------


def test_a_node_is_asked_where_a_payload_belongs(pair):
    """Of a signed message that it has not had; asking changes nothing."""
    worker, server = pair
    server.place = lambda message, number: (message, number)
    worker.send(SERVER, Ok(1), [bytes(10), bytes(20)])
    worker.send(SERVER, Ok(2), [bytes(30)])
    first, second = record(worker, 1.0)
    for frames, number in ((first, 0), (first, 1), (second, 0)):
        assert server.place_of(frames[0], number) == (Ok(1 if frames is first else 2), number)
    for frames in (first, second):
        assert len(server.receive("wire", frames, 1.0)) == 1


def test_a_payload_of_a_repetition_or_a_forgery_is_written_nowhere(pair):
    """The buffer of what has been delivered may be in use for something else."""
    worker, server = pair
    server.place = lambda *_: memoryview(b"here")
    worker.send(SERVER, Ok(1), [bytes(10)])
    [frames] = record(worker, 1.0)
    changed = bytearray(frames[0])
    changed[-1] ^= 1
    for forged in (memoryview(changed), memoryview(b"x" * 100), memoryview(b"")):
        assert server.place_of(forged, 0) is None
    assert make(SERVER).place_of(frames[0], 0) is None
    server.receive("wire", frames, 1.0)
    assert server.place_of(memoryview(bytes(frames[0])), 0) is None
    worker.tick(9.0)
    [[probe]] = record(worker, 9.0)
    assert server.place_of(probe, 0) is None


# --- replays and forgeries ---------------------------------------------------------------------------


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


def test_of_many_peers_not_all_are_asked_in_every_pass():
    """Probes that are due one after the other leave together, some milliseconds late."""
    scheduler, number = make(SCHEDULER), 200
    for index in range(number):
        peer, begun = make(NodeId(Role.WORKER, index)), 0.1 * index / number
        peer.connect(SCHEDULER, f"wire{index}", begun)
        exchange(peer, scheduler, begun, f"wire{index}")
    now, sent = 0.5, []
    while now < 1.2:
        scheduler.tick(now)
        sent.append(len(scheduler.outgoing(now)))
        now = scheduler.next_deadline()
    assert sum(sent) == number
    assert len(sent) < number / 5
    assert max(sent) < number / 10


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
