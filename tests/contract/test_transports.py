"""Every transport keeps the contract; sockets also survive strangers, cut connections and bad addresses."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import struct
import sys
import threading
import time

import pytest
import zmq
from support.wire_node import WireNode

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.testing.transport_contract import DEADLINE, TransportContract, receive
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wire.codec import MAX_FRAME_BYTES
from kvstore_mpi.wire.events import Connected
from kvstore_mpi.wire.messages import Ok

SERVER, WORKER = NodeId(Role.SERVER, 0), NodeId(Role.WORKER, 0)


class TestMemory(TransportContract):
    @pytest.fixture(autouse=True)
    def network(self):
        self.network = MemoryNetwork()

    def make(self):
        return self.network.transport()


class TestIpc(TransportContract):
    def make(self):
        return SocketTransport("ipc")


class TestTcp(TransportContract):
    def make(self):
        return SocketTransport("tcp")


class Afar(SocketTransport):
    """A direct transport whose listeners seem to be on other hosts."""

    def __init__(self):
        super().__init__("direct")

    def bind(self, interface):
        return super().bind(interface)[1:]


class TestDirect(TransportContract):
    def make(self):
        return Afar()


def over(schemes):
    """Return a transport between hosts, or within one for ``ipc``."""
    return Afar() if schemes == "direct" else SocketTransport(schemes)


@pytest.fixture
def transport():
    made = SocketTransport()
    yield made
    made.close(0)


def test_addresses_are_ipc_first_then_tcp(transport):
    """The best way comes first, and the port is the system's choice."""
    ipc, tcp = transport.bind("127.0.0.1")
    assert ipc.startswith("ipc://@")
    assert tcp.startswith("tcp://127.0.0.1:")
    assert int(tcp.rpartition(":")[2]) > 0


@pytest.mark.parametrize("schemes", ["ipc", "tcp"])
def test_only_the_allowed_scheme_is_offered_and_used(schemes):
    """A restriction to one scheme holds for both sides."""
    listener, caller, everything = SocketTransport(schemes), SocketTransport(schemes), SocketTransport()
    [address] = listener.bind("127.0.0.1")
    assert address.startswith(schemes)
    other = [each for each in everything.bind("127.0.0.1") if not each.startswith(schemes)]
    with pytest.raises(ConfigurationError, match=f"with {schemes}"):
        caller.connect(other)
    for each in (listener, caller, everything):
        each.close(0)


def test_ipc_of_another_host_is_not_used(transport):
    """An ipc address is taken only when its host is this one; tcp is taken instead."""
    caller = SocketTransport()
    ipc, tcp = transport.bind("127.0.0.1")
    foreign = ipc.partition("#")[0] + "#0123456789abcdef"
    caller.send(caller.connect([foreign, tcp]), [b"over tcp"])
    [(_, frames)] = receive(transport, 1)
    assert bytes(frames[0]) == b"over tcp"
    with pytest.raises(ConfigurationError, match="can be used from this host"):
        caller.connect([foreign])
    caller.close(0)


@pytest.mark.parametrize(
    ("interface", "text"),
    [
        ("0.0.0.0", "every network"),
        ("nonsense", "not an IPv4 address"),
        ("192.0.2.1", "an address of this host"),
    ],
)
@pytest.mark.parametrize("schemes", ["tcp", "direct"])
def test_a_bad_interface_is_a_configuration_error(schemes, interface, text):
    """The message says which interface and what is wrong with it."""
    made = SocketTransport(schemes)
    with pytest.raises(ConfigurationError, match=text) as caught:
        made.bind(interface)
    assert interface in str(caught.value)
    made.close(0)


def test_an_old_libzmq_is_refused(monkeypatch):
    """A libzmq with known holes is named, with what to do."""
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    with pytest.raises(ConfigurationError, match=r"4\.3\.5 or newer"):
        SocketTransport()


def test_elsewhere_than_on_linux_there_is_only_tcp(monkeypatch):
    """Abstract sockets are Linux's: others listen on tcp alone, and asking for ipc is an error."""
    monkeypatch.setattr(sys, "platform", "darwin")
    made = SocketTransport()
    [address] = made.bind("127.0.0.1")
    assert address.startswith("tcp://")
    made.close(0)
    with pytest.raises(ConfigurationError, match="ipc needs Linux"):
        SocketTransport("ipc")
    with pytest.raises(ConfigurationError, match="direct needs Linux"):
        SocketTransport("direct")


def test_direct_is_ipc_within_a_host_and_its_own_scheme_between():
    """Its addresses cannot be mixed up with ZeroMQ's, and each side says what it may use."""
    direct, usual = SocketTransport("direct"), SocketTransport("tcp")
    ipc, far = direct.bind("127.0.0.1")
    assert ipc.startswith("ipc://@")
    assert far.startswith("direct://127.0.0.1:")
    with pytest.raises(ConfigurationError, match=r"direct://.* with tcp; give all .* the same --transport"):
        usual.connect([ipc, far])
    with pytest.raises(ConfigurationError, match=r"tcp://.* with ipc and direct"):
        direct.connect(usual.bind("127.0.0.1"))
    for each in (direct, usual):
        each.close(0)


def test_memory_connects_to_memory_only():
    """An address of another kind is refused with its text."""
    with pytest.raises(ConfigurationError, match=r"tcp://127\.0\.0\.1:1 is in memory"):
        MemoryNetwork().transport().connect(["tcp://127.0.0.1:1"])


@pytest.mark.parametrize("schemes", ["tcp", "direct"])
def test_a_link_that_is_full_drops(schemes):
    """A peer that does not receive cannot make ``send`` wait or queue without bound."""
    caller = SocketTransport(schemes)
    link = caller.connect([f"{schemes}://127.0.0.1:9"])  # nobody listens on the discard port
    for _ in range(5_000):
        caller.send(link, [b"head"])
    assert 0 < caller.dropped < 5_000
    caller.close(0)


# --- strangers ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def talking(schemes):
    """A server with a connected worker, which must be able to talk at the end."""
    server = WireNode(SERVER, over(schemes), time.monotonic)
    worker = WireNode(WORKER, over(schemes), time.monotonic)
    worker.join(server)
    run_until(lambda: count(server, Connected) == 1, server, worker)
    yield server
    worker.endpoint.send(SERVER, Ok(7), [bytes(300_000)])
    run_until(lambda: bool(server.received()), server, worker)
    assert server.received()[0].message == Ok(7)
    for node in (server, worker):
        node.transport.close(0)


@pytest.fixture
def served(caplog):
    """A server that talks over tcp, and its port."""
    caplog.set_level(logging.CRITICAL)
    with talking("tcp") as server:
        yield server, port_of(server)


def run_until(done, *nodes):
    end = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < end, "it did not happen in time"
        for node in nodes:
            node.step(0.005)


def count(node, kind):
    return sum(isinstance(event, kind) for event in node.events)


def port_of(node):
    return int(node.address[-1].rpartition(":")[2])


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


def read_exactly(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the connection was closed"
        data += more
    return data


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


def whole(text):
    """Return a message as it is on a stream."""
    return struct.pack("<II", 1, len(text)) + text


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


def test_no_more_than_so_many_are_accepted(afar, monkeypatch):
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


# --- reconnection ------------------------------------------------------------------------------------


class Proxy:
    """A TCP relay that breaks its connections each time it has relayed so many bytes."""

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


@pytest.fixture(params=["tcp", "direct"])
def apart(request):
    """A server and a worker that talk through a proxy."""
    server = WireNode(SERVER, over(request.param), time.monotonic, heartbeat=0.1)
    worker = WireNode(WORKER, over(request.param), time.monotonic, heartbeat=0.1)
    proxy = Proxy(port_of(server), cut_after=[3_000_000, 9_000_000, 9_000_001, 25_000_000])
    server.address = [f"{request.param}://127.0.0.1:{proxy.port}"]
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


def test_who_is_not_there_yet_is_reached_later():
    """A refused connection loses what waited for it, is not tried at every message, and is made later."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    caller = SocketTransport("direct")
    link = caller.connect([f"direct://127.0.0.1:{port}"])
    caller.send(link, [b"lost"])
    caller.send(link, [b"lost as well"])
    while not caller.dropped:
        assert caller.receive(DEADLINE) == []
    assert caller.dropped == 2
    with socket.create_server(("127.0.0.1", port)) as listener:
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
    caller.close(0)


def test_a_socket_connected_to_itself_counts_as_failed():
    """Within a host the port that the system chooses may be the one that is sought."""
    caller = SocketTransport("direct")
    with socket.socket() as alone:
        alone.bind(("127.0.0.1", 0))
        alone.connect(alone.getsockname())
        assert caller._direct._has_failed(alone)
    caller.close(0)


def test_without_zeromq_none_is_started(monkeypatch):
    """Where ZeroMQ is not used, it need not be fit for use."""
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    SocketTransport("direct").close(0)
