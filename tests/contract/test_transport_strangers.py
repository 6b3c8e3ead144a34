"""Whoever can reach a socket of a job neither disturbs it nor is heard."""

from __future__ import annotations

import logging
import random
import socket
import struct

import pytest
import zmq
from support.streams import (
    port_of,
    read_exactly,
    run_until,
    talking,
    whole,
)

from kvstore_mpi.testing.transport_contract import DEADLINE
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wire.codec import MAX_FRAME_BYTES


@pytest.fixture
def served(caplog):
    """A server that talks over tcp, and its port."""
    caplog.set_level(logging.CRITICAL)
    with talking("tcp") as server:
        yield server, port_of(server)


def greet(port):
    """Speak ZMTP 3.0 as far as a DEALER without security does, and return the connection."""
    stranger = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
    stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    stranger.sendall(b"\x04" + bytes([len(ready)]) + ready)
    read_exactly(stranger, 64)
    command = read_exactly(stranger, 2)
    read_exactly(stranger, command[1])
    return stranger


def was_closed(connection):
    """Wait until the other side has closed; a reset is how it looks with bytes that nobody read."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("listening", ["served", "afar"])
def test_garbage_and_port_scans_are_survived(listening, request):
    """Connections that say nothing, nonsense or HTTP neither stop the process nor reach the application."""
    server, port = request.getfixturevalue(listening)
    noise = random.Random(3)
    words = [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x01\x00", b"\xff" * 100]
    words += [noise.randbytes(noise.randrange(1, 200)) for _ in range(60)]
    for word in words:
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as stranger:
            stranger.sendall(word)
            server.step()
    assert server.received() == []


def test_a_foreign_dealer_is_counted(served):
    """Messages of another ZeroMQ program are counted by reason, and change nothing."""
    server, port = served
    context = zmq.Context()
    foreign = context.socket(zmq.DEALER)
    foreign.connect(f"tcp://127.0.0.1:{port}")
    foreign.send_multipart([b"", b"hello"])
    foreign.send_multipart([bytes(60)])
    foreign.send_multipart([b"KVMP" + bytes(200), b"x" * 1_000])
    run_until(lambda: sum(server.endpoint.statistics().dropped.values()) == 3, server)
    assert server.endpoint.statistics().dropped == {"short": 1, "magic": 1, "version": 1}
    foreign.close(0)
    context.term()


def test_an_oversize_frame_closes_the_connection(served):
    """A header that announces more than the limit ends its connection, and a frame within it does not."""
    server, port = served
    with greet(port) as stranger:
        stranger.sendall(b"\x00\x04abcd")
        run_until(lambda: server.endpoint.statistics().dropped.get("short") == 1, server)
        stranger.sendall(b"\x02" + struct.pack(">Q", MAX_FRAME_BYTES + 1) + bytes(100))
        assert was_closed(stranger)


def test_a_message_cut_by_a_closed_connection_never_arrives(served):
    """Half a multipart message is not delivered as a whole one."""
    server, port = served
    with greet(port) as stranger:
        stranger.sendall(b"\x01\x04half")  # more frames are announced
    with greet(port) as stranger:
        stranger.sendall(b"\x00\x05whole")
        run_until(lambda: server.endpoint.statistics().dropped.get("short") == 1, server)
    assert sum(server.endpoint.statistics().dropped.values()) == 1


# --- strangers within the host -------------------------------------------------------------------------


@pytest.fixture
def near(caplog):
    """A server that talks over Unix sockets, and the name under which it listens."""
    caplog.set_level(logging.CRITICAL)
    with talking("ipc") as server:
        yield server, b"\0" + server.address[0].partition("@")[2].partition("#")[0].encode()


def visit(name):
    stranger = socket.socket(socket.AF_UNIX)
    stranger.settimeout(DEADLINE)
    stranger.connect(name)
    return stranger


@pytest.fixture
def afar(caplog):
    """A server that talks over TCP sockets of its own, and its port."""
    caplog.set_level(logging.CRITICAL)
    with talking("direct") as server:
        yield server, port_of(server)


def knock(port):
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)


@pytest.mark.parametrize(("listening", "visit"), [("near", visit), ("afar", knock)])
def test_garbage_on_a_stream_ends_its_connection(listening, visit, request):
    """Who does not speak the protocol is cut off; what speaks it, but is not ours, is counted."""
    server, name = request.getfixturevalue(listening)
    with visit(name) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        run_until(lambda: server.transport.refused == 1, server)
        assert was_closed(stranger)
    with visit(name) as stranger:
        stranger.sendall(struct.pack("<II", 1, MAX_FRAME_BYTES + 1))
        run_until(lambda: server.transport.refused == 2, server)
        assert was_closed(stranger)
    with visit(name) as stranger:
        stranger.sendall(struct.pack("<II", 1, 60) + bytes(60))
        run_until(lambda: server.endpoint.statistics().dropped == {"magic": 1}, server)


@pytest.mark.parametrize(("listening", "visit"), [("near", visit), ("afar", knock)])
def test_a_message_cut_by_a_closed_stream_never_arrives(listening, visit, request):
    """Half a message vanishes with its connection."""
    server, name = request.getfixturevalue(listening)
    with visit(name) as stranger:
        stranger.sendall(struct.pack("<III", 2, 4, 100) + b"half")
    with visit(name) as stranger:
        stranger.sendall(struct.pack("<II", 1, 60) + bytes(60))
        run_until(lambda: server.endpoint.statistics().dropped == {"magic": 1}, server)


def test_another_user_is_turned_away(near, monkeypatch):
    """The kernel says who connects; only the same user, or root, may."""
    server, name = near
    monkeypatch.setattr("kvstore_mpi.transport.local._user_of", lambda _connected: 12345)
    with visit(name) as stranger:
        run_until(lambda: server.transport.refused == 1, server)
        assert was_closed(stranger)


def test_a_process_without_descriptors_goes_on(near):
    """Where no more connections can be accepted, those that exist go on; who waits is let in later."""
    server, name = near

    class Exhausted:
        def __init__(self, listener):
            self.close, self.fileno = listener.close, listener.fileno

        def accept(self):
            raise OSError(24, "Too many open files")

    local = server.transport._local
    listener = local._listener
    with visit(name) as leaving:
        leaving.sendall(struct.pack("<II", 1, 60) + bytes(60))
        run_until(lambda: server.endpoint.statistics().dropped == {"magic": 1}, server)
        local._listener = Exhausted(listener)
        with visit(name) as waiting:
            waiting.sendall(struct.pack("<II", 1, 60) + bytes(60))
            run_until(lambda: local._paused, server)
            local._listener = listener
            leaving.close()
            run_until(lambda: server.endpoint.statistics().dropped == {"magic": 2}, server)


def test_a_peer_that_does_not_read_is_not_waited_for(near):
    """Beyond what the kernel and the queue hold, messages are dropped."""
    _, name = near
    caller = SocketTransport("ipc")
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(name + b"-silent")
    silent.listen()
    host = SocketTransport("ipc")
    [address] = host.bind("127.0.0.1")
    link = caller.connect([f"ipc://@{(name[1:] + b'-silent').decode()}#{address.partition('#')[2]}"])
    for _ in range(3_000):
        caller.send(link, [bytes(10_000)])
    assert 0 < caller.dropped < 3_000
    for each in (caller, host, silent):
        each.close(*([0] if each is not silent else []))


# --- strangers between hosts -----------------------------------------------------------------------------


def test_who_never_sends_a_whole_message_is_closed(afar, monkeypatch):
    """A deadline ends the silent and the slow, when anything else happens; who has spoken stays."""
    server, port = afar
    with knock(port) as spoken:
        spoken.sendall(whole(bytes(60)))
        run_until(lambda: server.endpoint.statistics().dropped == {"magic": 1}, server)
        monkeypatch.setattr("kvstore_mpi.transport.direct.HANDSHAKE_S", 0.0)
        with knock(port) as silent, knock(port) as slow:
            slow.sendall(whole(bytes(60))[:-1])
            run_until(lambda: server.transport.refused == 2, server)
            assert was_closed(silent)
            assert was_closed(slow)
        monkeypatch.undo()
        spoken.sendall(whole(bytes(60)))
        run_until(lambda: server.endpoint.statistics().dropped == {"magic": 2}, server)


def test_the_number_of_accepted_connections_is_bounded(afar, monkeypatch):
    """Beyond a limit they are closed and counted; when one leaves, another may come."""
    server, port = afar
    monkeypatch.setattr("kvstore_mpi.transport.direct.MAX_ACCEPTED", 2)  # one is the worker's
    with knock(port) as second:
        second.sendall(whole(bytes(60)))
        run_until(lambda: server.endpoint.statistics().dropped == {"magic": 1}, server)
        with knock(port) as third:
            run_until(lambda: server.transport.refused == 1, server)
            assert was_closed(third)
    run_until(lambda: len(server.transport._direct._accepted) == 1, server)
    with knock(port) as another:
        another.sendall(whole(bytes(60)))
        run_until(lambda: server.endpoint.statistics().dropped == {"magic": 2}, server)
