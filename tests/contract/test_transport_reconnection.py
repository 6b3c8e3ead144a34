"""Connections that break, or cannot be made yet: nothing is lost, and nothing arrives twice."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time

import pytest
from support.streams import (
    SERVER,
    WORKER,
    count,
    port_of,
    read_exactly,
    run_until,
    whole,
)
from support.wire_node import WireNode

from kvstore_mpi.testing.transport_contract import DEADLINE
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wire.events import Connected
from kvstore_mpi.wire.messages import Ok


class Proxy:
    """A TCP relay that breaks its connections each time it has relayed a number of bytes."""

    def __init__(self, port, cut_after):
        self._target = ("127.0.0.1", port)
        self._cut_after = list(cut_after)
        self._relayed = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = []
        self._threads = []
        self._start(self._accept)

    @property
    def cuts_left(self):
        return len(self._cut_after)

    def lead_to(self, port):
        """Break what there is, and relay to another from now on."""
        self._target = ("127.0.0.1", port)
        for each in self._open:
            shut(each)

    def close(self):
        for each in (self._listener, *self._open):
            shut(each)
            each.close()
        for thread in self._threads:
            thread.join(DEADLINE)

    def _start(self, target, *args):
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                self._start(self._relay, near, far)
                self._start(self._relay, far, near)

    def _relay(self, source, sink):
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and not self._is_cut(len(data)):
                sink.sendall(data)
        # After a cut, what was read and not written is lost, as in a broken network.
        shut(source)
        shut(sink)

    def _is_cut(self, size):
        with self._lock:
            self._relayed += size
            if self._cut_after and self._relayed >= self._cut_after[0]:
                del self._cut_after[0]
                return True
            return False


def shut(connection):
    with contextlib.suppress(OSError):  # the other side was faster
        connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def apart():
    """A server and a worker that talk through a proxy."""
    server = WireNode(SERVER, SocketTransport("tcp"), time.monotonic, heartbeat=0.1)
    worker = WireNode(WORKER, SocketTransport("tcp"), time.monotonic, heartbeat=0.1)
    proxy = Proxy(port_of(server), cut_after=[3_000_000, 9_000_000, 9_000_001, 25_000_000])
    server.address = [f"tcp://127.0.0.1:{proxy.port}"]
    worker.join(server)
    yield server, worker, proxy
    for node in (server, worker):
        node.transport.close(0)
    proxy.close()


def test_a_cut_connection_loses_and_repeats_nothing(apart):
    """The link breaks again and again in the middle of a stream; all arrives once and in order."""
    server, worker, proxy = apart
    run_until(lambda: count(server, Connected) == 1, server, worker)
    total, payload = 400, bytes(50_000)
    for number in range(total):
        worker.endpoint.send(SERVER, Ok(number), [payload])
        server.endpoint.send(WORKER, Ok(number), [payload])
    run_until(
        lambda: not worker.endpoint.unacknowledged(SERVER) and not server.endpoint.unacknowledged(WORKER),
        server,
        worker,
    )
    for node in (server, worker):
        assert [event.message.request for event in node.received()] == list(range(total))
    assert proxy.cuts_left == 0
    assert worker.endpoint.statistics().retransmitted + server.endpoint.statistics().retransmitted > 0


def test_who_is_not_there_yet_is_reached_later(caplog):
    """A refused connection loses what waited for it, is not tried at every message, and is made later."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))  # refuses while it does not listen, and nobody else gets the port
    port = listener.getsockname()[1]
    caller = SocketTransport("tcp")
    endpoint = f"tcp://127.0.0.1:{port}"
    link = caller.connect([endpoint])
    caller.send(link, [b"lost"])
    caller.send(link, [b"lost as well"])
    while caller.dropped < 2:
        assert caller.receive(DEADLINE) == []
    assert caller.dropped == 2
    with listener:
        listener.listen()
        listener.settimeout(DEADLINE)
        end = time.monotonic() + DEADLINE
        while link.socket is None or link.connecting:
            assert time.monotonic() < end
            caller.send(link, [b"arrives"])
            caller.receive(0.01)
        with listener.accept()[0] as accepted:
            accepted.settimeout(DEADLINE)
            assert read_exactly(accepted, 15) == whole(b"arrives")
    assert caller.dropped < 20, "it was tried again and again"
    # As behind a firewall; in the log once, and from there in the last words of the job.
    said = [record.message for record in caplog.records]
    assert said == [f"cannot connect to {endpoint}: Connection refused"]
    caller.close(0)


def test_who_listens_where_a_process_has_ended_gets_no_payloads(apart):
    """Before it has shown that it is of the job; what asks for that has none."""
    server, worker, proxy = apart
    run_until(lambda: count(server, Connected) == 1, server, worker)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0.0)
        proxy.lead_to(stranger.getsockname()[1])
        heard, accepted = b"", None
        end = time.monotonic() + DEADLINE
        while len(heard) < 500:  # some PROBEs
            assert time.monotonic() < end
            worker.endpoint.send(SERVER, Ok(7), [b"gradients" * 100])
            worker.step(0.01)
            with contextlib.suppress(BlockingIOError):
                accepted = accepted or stranger.accept()[0]
                heard += accepted.recv(1 << 16, socket.MSG_DONTWAIT)
        accepted.close()
    assert b"gradients" not in heard


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_peer_that_has_ended_is_not_said_to_be_out_of_reach(caplog, monkeypatch, scheme):
    """That it was there shows that the network leads there."""
    caller, peer = SocketTransport(scheme), SocketTransport(scheme)
    link = caller.connect(peer.bind("127.0.0.1"))
    caller.send(link, [b"arrives"])
    assert peer.receive(DEADLINE) == []  # the connection is accepted
    while link.connecting:
        caller.receive(DEADLINE)
    peer.close(0)
    monkeypatch.setattr(link.owner, "RETRY_S", 0.0)
    while caller.dropped < 2:
        caller.send(link, [b"lost"])
        caller.receive(0)
    assert not caplog.records
    caller.close(0)


def test_a_socket_connected_to_itself_counts_as_failed():
    """Within a host the port that the system chooses may be the one that is sought."""
    caller = SocketTransport("tcp")
    with socket.socket() as alone:
        alone.bind(("127.0.0.1", 0))
        alone.connect(alone.getsockname())
        assert caller._tcp._error_of(alone) == errno.ECONNREFUSED
    caller.close(0)


@pytest.mark.parametrize("later", [False, True])
def test_a_network_that_does_not_lead_there_is_told(caplog, monkeypatch, later):
    """Whether the system knows at once or only later; once, and not at every message that is lost."""
    caller = SocketTransport("tcp")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Over TCP nobody can be reached at an address that stands for all.
        host = "127.0.0.1" if later else "255.255.255.255"
        endpoint = f"tcp://{host}:{listener.getsockname()[1]}"
        monkeypatch.setattr(caller._tcp, "RETRY_S", 0.0)
        if later:
            monkeypatch.setattr(caller._tcp, "_error_of", lambda _: errno.ENETUNREACH)
        link = caller.connect([endpoint])
        for lost in (1, 2):
            caller.send(link, [b"lost"])
            while caller.dropped < lost:
                caller.receive(DEADLINE)
    said = [record.message for record in caplog.records]
    assert said == [f"cannot connect to {endpoint}: Network is unreachable"]
    caller.close(0)
