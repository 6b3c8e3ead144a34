"""Handshakes of an endpoint: who is let in, replays of handshakes, and what is said when it fails."""

from __future__ import annotations

import pytest
from support.endpoints import SECRET, SERVER, WORKER, carry, connected, exchange, make, record, views

from kvstore_mpi.errors import (
    AuthenticationError,
    ConfigurationError,
    DeadlineError,
    FrameError,
    PeerError,
)
from kvstore_mpi.records import SCHEDULER, NodeId, Role
from kvstore_mpi.wire import codec, openings
from kvstore_mpi.wire.codec import Kind
from kvstore_mpi.wire.events import Connected, Failed, Received
from kvstore_mpi.wire.messages import Ok
from kvstore_mpi.wire.openings import HELLO_INTERVAL


@pytest.fixture
def pair():
    """A worker that is connected to a server at time 0."""
    return connected()


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
    assert server.receive("wire", with_version(hello, 99), 0.0) == []
    [(link, answer)] = server.outgoing(0.0)
    assert link == "wire"
    [failed] = worker.receive("wire", with_version(answer, 99), 0.0)
    assert isinstance(failed.error, FrameError)
    assert "worker3 cannot join server1: the peer speaks wire version 99" in str(failed.error)
    assert server.statistics().dropped == {"version": 1}


def test_frames_of_another_version_other_than_a_hello_get_no_answer():
    """Two sides of different versions do not refuse each other in a circle."""
    server = make(SERVER)
    server.receive("wire", with_version([codec.seal(SECRET, Kind.REFUSED)], 99), 0.0)
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


def test_half_open_sessions_are_bounded_and_forgotten(monkeypatch):
    """Recorded HELLOs of many runs hold a bounded number of sessions, for a bounded time."""
    monkeypatch.setattr(openings, "MAX_HALF_OPEN", 4)
    server = make(SERVER)
    hellos = []
    for _ in range(10):
        worker = make(WORKER)
        worker.connect(SERVER, "wire", 0.0)
        worker.tick(0.0)
        hellos += record(worker, 0.0)
    for hello in hellos * 2:
        server.receive("stranger", hello, 0.0)
        assert len(server._openings.half_open) <= 4
        assert len(server._sessions) == len(server._openings.half_open)
    server.tick(1.0)
    assert server.next_deadline() == 60.0
    server.tick(60.0)
    assert server._sessions == server._openings.half_open == {}
    assert server.next_deadline() is None


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


def test_connecting_again_starts_afresh():
    """A second ``connect`` to the same peer replaces the first, also while that one waits."""
    worker, server = make(WORKER), make(SERVER)
    worker.connect(SERVER, "wire", 0.0)
    worker.connect(SERVER, "second wire", 0.0)
    worker.tick(0.0)
    assert [link for link, _ in worker.outgoing(0.0)] == ["second wire"]
    assert list(worker._openings.connecting) == ["second wire"]
    assert server.statistics().frames_received == 0
