"""Whoever can reach a socket of a job neither disturbs it nor is heard, and costs it next to nothing."""

from __future__ import annotations

import logging
import os
import random
import resource
import socket
import struct
import tracemalloc
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from support.streams import port_of, run_until, talking, whole

from kvstore_mpi.testing.transport_contract import DEADLINE
from kvstore_mpi.transport import strangers
from kvstore_mpi.transport.framing import HANDSHAKE_BYTES, UNPROVEN_BYTES
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wire.codec import MAX_FRAME_BYTES

FOREIGN = whole(bytes(60))
"""A message in our framing that is not ours."""


def tcp(server):
    return socket.create_connection(("127.0.0.1", port_of(server)), timeout=DEADLINE)


def ipc(server):
    stranger = socket.socket(socket.AF_UNIX)
    stranger.settimeout(DEADLINE)
    stranger.connect(b"\0" + server.address[0].partition("@")[2].partition("#")[0].encode())
    return stranger


@pytest.fixture(params=[tcp, ipc], ids=["tcp", "ipc"])
def served(request, caplog, monkeypatch):
    """A server that talks to a worker, and how others connect to it; no machine is too slow for them."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(strangers, "PROOF_S", 600.0)
    with talking(request.param.__name__) as server:
        yield server, lambda: request.param(server)


def sockets_of(server):
    """Return the sockets that the server listens with."""
    return next(each for each in server.transport._streams if each._listener is not None)


def refused(server):
    return dict(sockets_of(server).refusals.counts)


def is_dropped(server, count):
    return lambda: server.endpoint.statistics().dropped == {"magic": count}


def was_closed(connection):
    """Wait until the other side has closed; a reset is how it looks with bytes that nobody read."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_garbage_and_port_scans_are_survived(served):
    """Connections that say nothing, nonsense or HTTP neither stop the process nor reach the application."""
    server, visit = served
    noise = random.Random(3)
    words = [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x01\x00", b"\xff" * 100]
    words += [noise.randbytes(noise.randrange(1, 200)) for _ in range(60)]
    for word in words:
        with visit() as stranger:
            stranger.sendall(word)
            server.step()
    assert server.received() == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "protocol"),
        (b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(1_100, b"\x7f"), "protocol"),
        (struct.pack("<II", 1, MAX_FRAME_BYTES + 1), "protocol"),
        (struct.pack("<II", 1, UNPROVEN_BYTES + 1), "stranger"),
        (whole(bytes(HANDSHAKE_BYTES + 1)), "stranger"),
        (struct.pack("<III", 2, 60, 0) + bytes(60), "stranger"),
        (struct.pack("<III", 2, 60, MAX_FRAME_BYTES) + bytes(60), "stranger"),
        (struct.pack("<I", UNPROVEN_BYTES // 4), "stranger"),
    ],
    ids=["http", "zmtp", "huge", "large", "too large", "frames", "a large frame", "many frames"],
)
def test_what_is_no_handshake_ends_its_connection(served, said, reason):
    """Before it has shown that it knows the secret, nobody can announce more than a handshake."""
    server, visit = served
    with visit() as stranger:
        stranger.sendall(said)
        run_until(lambda: refused(server) == {reason: 1}, server)
        assert was_closed(stranger)


def test_a_foreign_message_is_counted(served):
    """What is as small as a handshake, but not ours, goes up to the sessions, which drop it."""
    server, visit = served
    with visit() as stranger:
        stranger.sendall(FOREIGN)
        run_until(is_dropped(server, 1), server)
    assert refused(server) == {}


def test_strangers_who_talk_without_end_are_cut_off(served):
    """Nobody needs more than ``MAX_MESSAGES`` handshakes."""
    server, visit = served
    with visit() as stranger:
        stranger.sendall(FOREIGN * (strangers.MAX_MESSAGES + 1))
        run_until(lambda: refused(server) == {"stranger": 1}, server)
        assert was_closed(stranger)


def test_a_message_cut_by_a_closed_stream_never_arrives(served):
    """Half a message vanishes with its connection."""
    server, visit = served
    with visit() as stranger:
        stranger.sendall(FOREIGN[:-1])
    with visit() as stranger:
        stranger.sendall(FOREIGN)
        run_until(is_dropped(server, 1), server)


def test_who_shows_nothing_in_time_is_closed(served, monkeypatch):
    """The silent, the slow and who sends what is not ours are ended; the worker stays."""
    server, visit = served
    monkeypatch.setattr(strangers, "PROOF_S", 0.0)
    with visit() as silent, visit() as slow, visit() as foreign:
        slow.sendall(FOREIGN[:-1])
        foreign.sendall(FOREIGN)
        run_until(lambda: refused(server) == {"stranger": 3}, server)
        for stranger in (silent, slow, foreign):
            assert was_closed(stranger)


def test_who_shows_nothing_is_closed_though_nothing_else_happens(served):
    """A pass in which nobody connects or speaks is enough."""
    server, visit = served
    with visit() as silent:
        sockets = sockets_of(server)
        run_until(lambda: len(sockets._strangers) == 1, server)
        sockets._strangers._until = dict.fromkeys(sockets._strangers._until, 0.0)
        server.transport.receive(0)
        assert refused(server) == {"stranger": 1}
        assert was_closed(silent)


def test_the_oldest_stranger_makes_room(served):
    """Their number is limited; the newest may be a process of the job."""
    server, visit = served
    sockets_of(server)._strangers._most = 2
    with visit() as first, visit() as second:
        second.sendall(FOREIGN)
        run_until(is_dropped(server, 1), server)
        with visit() as third:
            third.sendall(FOREIGN)
            run_until(is_dropped(server, 2), server)
            assert was_closed(first)
            assert refused(server) == {"stranger": 1}
            second.sendall(FOREIGN)
            run_until(is_dropped(server, 3), server)


def test_a_stranger_costs_little_memory(served):
    """However they begin, two hundred hold less than 64 KB each, and nothing once they have gone."""
    server, visit = served
    beginnings = [
        b"",
        b"\x01",
        struct.pack("<II", 1, UNPROVEN_BYTES) + bytes(UNPROVEN_BYTES - 1),
        struct.pack("<I", UNPROVEN_BYTES // 4 - 1) + bytes(UNPROVEN_BYTES - 8),
        FOREIGN * 50,
    ]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        visitors = [visit() for _ in range(200)]
        for number, visitor in enumerate(visitors):
            visitor.sendall(beginnings[number % len(beginnings)])
        sockets = sockets_of(server)
        run_until(is_dropped(server, 2_000), server)
        assert len(sockets._strangers) == 200
        assert max(_taken(link) for link in sockets._connections) > UNPROVEN_BYTES / 2
        assert tracemalloc.get_traced_memory()[0] - before < 200 * (64 << 10)
        for visitor in visitors:
            visitor.close()
        run_until(lambda: len(sockets._strangers) == 0, server)
        assert tracemalloc.get_traced_memory()[0] - before < 1 << 20
    finally:
        tracemalloc.stop()


def _taken(link):
    parser = link.parser
    return len(parser._rest) + sum(frame.nbytes for frame in parser._frames)


def test_who_does_not_read_its_answers_is_not_waited_for(served, monkeypatch):
    """What strangers ask for waits in a short queue only."""
    server, visit = served
    with visit() as stranger:
        stranger.sendall(FOREIGN)
        run_until(is_dropped(server, 1), server)
        sockets = sockets_of(server)
        [link] = sockets._strangers._until
        monkeypatch.setattr(type(sockets), "_write", lambda *_: 0)
        for _ in range(200):
            sockets.send(link, [bytes(60)])
        assert len(link.outgoing) == strangers.MAX_QUEUED
        monkeypatch.undo()


def test_want_of_memory_loses_the_connection_only(served, monkeypatch):
    """Where a message finds no room, its connection ends, and the process goes on."""
    server, visit = served

    def no_memory(*_):
        raise MemoryError

    with visit() as stranger, monkeypatch.context() as patched:
        patched.setattr("kvstore_mpi.transport.framing.np.empty", no_memory)
        stranger.sendall(FOREIGN[:-1])
        run_until(lambda: refused(server) == {"memory": 1}, server)
        assert was_closed(stranger)


def test_refusals_are_logged_once_a_minute_for_each_reason(caplog):
    """A thousand strangers are one line."""
    with talking("tcp") as server:
        for _ in range(20):
            for said in (b"GET / HTTP/1.1\r\n\r\n", whole(bytes(HANDSHAKE_BYTES + 1))):
                with tcp(server) as stranger:
                    stranger.sendall(said)
                    assert_closed_soon(server, stranger)
        assert refused(server) == {"protocol": 20, "stranger": 20}
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def assert_closed_soon(server, stranger):
    before = server.transport.refused
    run_until(lambda: server.transport.refused > before, server)
    assert was_closed(stranger)


def test_another_user_is_turned_away(caplog, monkeypatch):
    """The kernel says who connects within a host; only the same user, or root, may."""
    caplog.set_level(logging.CRITICAL)
    with talking("ipc") as server:
        monkeypatch.setattr("kvstore_mpi.transport.local._user_of", lambda _connected: 12345)
        with ipc(server) as stranger:
            run_until(lambda: refused(server) == {"user": 1}, server)
            assert was_closed(stranger)


def test_what_listens_for_another_user_hears_nothing(caplog, monkeypatch):
    """The name of a process that has ended is free for anybody."""
    caplog.set_level(logging.CRITICAL)
    caller = SocketTransport("ipc")
    name = f"taken-{random.getrandbits(64)}"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0{name}".encode())
        other.listen()
        other.settimeout(DEADLINE)
        link = caller._local.connect(name)
        monkeypatch.setattr("kvstore_mpi.transport.local._user_of", lambda _connected: 12345)
        caller.send(link, [bytes(60)])
        with other.accept()[0] as accepted:
            assert was_closed(accepted)
    assert (caller.dropped, caller.refused) == (1, 1)
    caller.close(0)


def test_a_process_without_descriptors_goes_on(served):
    """Where no more connections can be accepted, those that exist go on; who waits is let in later."""
    server, visit = served

    class Exhausted:
        def __init__(self, listener):
            self.close, self.fileno = listener.close, listener.fileno

        def accept(self):
            raise OSError(24, "Too many open files")

    sockets = sockets_of(server)
    listener = sockets._listener
    with visit() as leaving:
        leaving.sendall(FOREIGN)
        run_until(is_dropped(server, 1), server)
        sockets._listener = Exhausted(listener)
        with visit() as waiting:
            waiting.sendall(FOREIGN)
            run_until(lambda: sockets._paused, server)
            sockets._listener = listener
            leaving.close()
            run_until(is_dropped(server, 2), server)


def test_who_waits_is_let_in_when_descriptors_become_free_elsewhere(served):
    """No connection of ours has to end for it."""
    server, visit = served
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with visit() as waiting, ExitStack() as files:
        waiting.sendall(FOREIGN)
        most = len(list(Path("/proc/self/fd").iterdir())) + 20
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
        try:
            with suppress(OSError):
                while True:
                    files.enter_context(Path(os.devnull).open("rb"))
            run_until(lambda: sockets_of(server)._paused, server)
            files.close()
            run_until(is_dropped(server, 1), server)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_peer_that_does_not_read_is_not_waited_for():
    """Beyond what the kernel and the queue hold, messages are dropped."""
    caller = SocketTransport("ipc")
    name = f"silent-{random.getrandbits(64)}"
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(f"\0{name}".encode())
    silent.listen()
    host = SocketTransport("ipc")
    [address] = host.bind("127.0.0.1")
    link = caller.connect([f"ipc://@{name}#{address.partition('#')[2]}"])
    for _ in range(3_000):
        caller.send(link, [bytes(10_000)])
    assert 0 < caller.dropped < 3_000
    for each in (caller, host):
        each.close(0)
    silent.close()
