"""Every transport keeps the contract; sockets also refuse bad addresses and full links."""

from __future__ import annotations

import sys

import pytest

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.testing.transport_contract import TransportContract, receive
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.transport.sockets import SocketTransport


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


class TestEncryptedTcp(TransportContract):
    def make(self):
        return SocketTransport("tcp", encrypt=True)

    def open(self):
        transport = self.make()
        transport.screen(lambda _first: True, b"s" * 32)
        return transport


@pytest.mark.parametrize("kind", [TestIpc, TestTcp, TestEncryptedTcp])
def test_a_large_payload_is_received_where_it_belongs(kind):
    """And the next one of the same message too; what fits into one read, and what has no place, is not."""
    listener, caller = kind().open(), kind().open()
    places = {0: memoryview(bytearray(300_000)), 1: memoryview(bytearray(200_000))}
    listener.receive_into(lambda _first, number: places.get(number))
    link = caller.connect(listener.bind("127.0.0.1"))
    payloads = [bytes([number]) * size for number, size in enumerate((300_000, 200_000, 200_000, 10), 1)]
    caller.send(link, [b"hello"])
    [(back, _)] = receive(listener, 1, caller)
    listener.send(back, [b"welcome"])
    receive(caller, 1)
    caller.send(link, [b"first", *payloads])
    [(_, frames)] = receive(listener, 1, caller)
    assert [bytes(frame) for frame in frames[1:]] == payloads
    assert [number for number in (0, 1) if frames[1 + number].obj is places[number].obj] == [0, 1]
    assert places[0] == payloads[0]
    for each in (caller, listener):
        each.close(0)


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
    [(_, frames)] = receive(transport, 1, caller)
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
def test_a_bad_interface_is_a_configuration_error(interface, text):
    """The message says which interface and what is wrong with it."""
    made = SocketTransport("tcp")
    with pytest.raises(ConfigurationError, match=text) as caught:
        made.bind(interface)
    assert interface in str(caught.value)
    made.close(0)


def test_elsewhere_than_on_linux_there_is_only_tcp(monkeypatch):
    """Abstract sockets are Linux's: others listen on tcp alone, and asking for ipc is an error."""
    monkeypatch.setattr(sys, "platform", "darwin")
    made = SocketTransport()
    [address] = made.bind("127.0.0.1")
    assert address.startswith("tcp://")
    made.close(0)
    with pytest.raises(ConfigurationError, match="ipc needs Linux"):
        SocketTransport("ipc")


def test_memory_connects_to_memory_only():
    """An address of another kind is refused with its text."""
    with pytest.raises(ConfigurationError, match=r"tcp://127\.0\.0\.1:1 is in memory"):
        MemoryNetwork().transport().connect(["tcp://127.0.0.1:1"])


def test_a_link_that_is_full_drops():
    """A peer that does not receive cannot make ``send`` wait or queue without bound."""
    caller = SocketTransport("tcp")
    link = caller.connect(["tcp://127.0.0.1:9"])  # nobody listens on the discard port
    for _ in range(5_000):
        caller.send(link, [b"head"])
    assert 0 < caller.dropped < 5_000
    caller.close(0)
