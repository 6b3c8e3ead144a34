"""Two endpoints over a network that loses, repeats, reorders, delays and breaks: exactly once, in order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wire_node import WireNode

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.transport.memory import Faults, MemoryNetwork
from kvstore_mpi.wire import codec
from kvstore_mpi.wire.codec import Kind
from kvstore_mpi.wire.events import Connected, Failed
from kvstore_mpi.wire.messages import Ok

SERVER, WORKER = NodeId(Role.SERVER, 0), NodeId(Role.WORKER, 0)
HEARTBEAT = 1.0
PASS = 0.05
"""Seconds of virtual time between two passes of the simulated loops."""

FAULTY_SECONDS = 8.0
REPAIR_SECONDS = 3 * HEARTBEAT + 1.0
"""After the last fault: a probe is due within one heartbeat, its answer, and one repetition each way; one
more heartbeat for a HELLO or an ACK that was lost last, and one in reserve."""

faults = st.builds(
    Faults,
    loss=st.sampled_from([0.0, 0.02, 0.2, 0.6]),
    duplication=st.sampled_from([0.0, 0.1, 0.5]),
    delay=st.sampled_from([0.0, 0.03, 0.3, 2.0]),
    reordering=st.sampled_from([0.0, 0.1, 0.7]),
)


class Simulation:
    """A worker and a server that send each other numbered messages."""

    def __init__(self, seed, network_faults):
        self.random = random.Random(seed)
        self.network = MemoryNetwork(seed)
        self.network.faults = network_faults
        self.worker, self.server = (
            WireNode(
                node, self.network.transport(), lambda: self.network.now, seed=seed, heartbeat=HEARTBEAT
            )
            for node in (WORKER, SERVER)
        )
        self.link = self.worker.transport.connect(self.server.address)
        self.worker.endpoint.connect(SERVER, self.link, 0.0)
        self.sent = {WORKER: 0, SERVER: 0}

    def send_some(self, node, other):
        if node is self.worker or node.endpoint.is_connected(other.node):
            for _ in range(self.random.randrange(4)):
                number = self.sent[node.node]
                node.endpoint.send(other.node, Ok(number), [bytes(number % 7), number.to_bytes(4, "big")])
                self.sent[node.node] += 1

    def run(self, seconds, *, sending, reconnects=0.0):
        end = self.network.now + seconds
        while self.network.now < end and not (not sending and self.is_settled()):
            for node, other in ((self.worker, self.server), (self.server, self.worker)):
                if sending:
                    self.send_some(node, other)
                node.step()
            if self.random.random() < reconnects:
                self.network.reconnect(self.link)
            self.network.advance(PASS)

    def is_settled(self):
        return (
            len(self.server.received()) == self.sent[WORKER]
            and len(self.worker.received()) == self.sent[SERVER]
            and not self.worker.endpoint.unacknowledged(SERVER)
            and not self.server.endpoint.unacknowledged(WORKER)
        )

    def check(self):
        for node, sender in ((self.server, WORKER), (self.worker, SERVER)):
            got = node.received()
            assert [event.message.request for event in got] == list(range(self.sent[sender]))
            for number, event in enumerate(got):
                assert [bytes(part) for part in event.payloads] == [
                    bytes(number % 7),
                    number.to_bytes(4, "big"),
                ]
            assert not any(isinstance(event, Failed) for event in node.events)
            assert sum(isinstance(event, Connected) for event in node.events) == 1
            assert node.endpoint.bytes_in_flight(sender) == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), network_faults=faults, reconnects=st.sampled_from([0.0, 0.02, 0.2]))
def test_everything_arrives_once_and_in_order(seed, network_faults, reconnects):
    """Whatever the network did, all is delivered exactly once within a few heartbeats of its recovery."""
    simulation = Simulation(seed, network_faults)
    simulation.run(FAULTY_SECONDS, sending=True, reconnects=reconnects)
    simulation.network.faults = Faults()
    simulation.run(network_faults.delay, sending=True)
    simulation.run(REPAIR_SECONDS, sending=False)
    assert simulation.is_settled(), "messages are still missing"
    simulation.check()


def test_without_faults_nothing_is_repeated():
    """A network in order causes no duplicates, no repetitions and no dropped frames."""
    simulation = Simulation(1, Faults(delay=0.3))
    simulation.run(FAULTY_SECONDS, sending=True)
    simulation.run(REPAIR_SECONDS, sending=False)
    simulation.check()
    for node in (simulation.worker, simulation.server):
        counts = node.endpoint.statistics()
        assert (counts.duplicates, counts.retransmitted, counts.dropped) == (0, 0, {})


def test_a_slow_network_is_not_flooded():
    """With a delay of many heartbeats every data frame is still sent once only."""
    simulation = Simulation(2, Faults())
    simulation.run(1.0, sending=True)
    simulation.network.faults = Faults(delay=12 * HEARTBEAT)
    simulation.run(20.0, sending=True)
    simulation.run(60.0, sending=False)
    simulation.check()
    assert simulation.worker.endpoint.statistics().retransmitted == 0
    assert simulation.server.endpoint.statistics().retransmitted == 0


class Tap:
    """A transport that also shows a stranger what passes, and lets him put in what he likes."""

    def __init__(self, transport):
        self._transport = transport
        self.seen = []
        self.injected = []
        self.bind, self.connect, self.close = transport.bind, transport.connect, transport.close
        self.wake = transport.wake

    def send(self, link, frames):
        self.seen.append([bytes(frame) for frame in frames])
        self._transport.send(link, frames)

    def receive(self, timeout):
        injected, self.injected = self.injected, []
        return self._transport.receive(timeout) + injected


def forge(rng, seen):
    """Make a message out of recorded ones: replay, cut, change or mix them, or sign with a guessed key."""
    frames = [bytearray(frame) for frame in rng.choice(seen)]
    kind = rng.randrange(6)
    first = frames[0]
    if kind == 1:
        del first[rng.randrange(len(first)) :]
    elif kind == 2:
        first[rng.randrange(len(first))] ^= 1 << rng.randrange(8)
    elif kind == 3:
        frames = [first, *(bytearray(frame) for frame in rng.choice(seen)[1:]), bytearray(3)]
    elif kind == 4:
        header = codec.read_header([memoryview(frame) for frame in frames])
        forged = codec.seal(
            bytes(32), header.kind, b"x", session=header.session, counter=header.counter + 1
        )
        frames = [bytearray(forged)]
    elif kind == 5:
        frames = [bytearray(codec.seal(bytes(32), rng.choice(list(Kind)), rng.randbytes(8), counter=2**63))]
    return [memoryview(bytes(frame)) for frame in frames]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), stranger_link=st.sampled_from(["known", "new"]))
def test_what_a_stranger_puts_in_is_never_delivered(seed, stranger_link):
    """Replayed, cut, altered and forged frames, on any link, change nothing but counts."""
    simulation = Simulation(seed, Faults())
    rng = random.Random(seed)
    taps = []
    for node in (simulation.worker, simulation.server):
        node.transport = Tap(node.transport)
        taps.append(node.transport)
    simulation.run(0.5, sending=True)
    far_link = simulation.network._directions[simulation.link].far_link
    for _ in range(40):
        seen = [frames for tap in taps for frames in tap.seen]
        for tap, own_link in zip(taps, (simulation.link, far_link)):
            link = own_link if stranger_link == "known" else "stranger"
            tap.injected += [(link, forge(rng, seen)) for _ in range(rng.randrange(5))]
        simulation.run(PASS, sending=True)
    simulation.run(REPAIR_SECONDS, sending=False)
    simulation.check()
    assert simulation.worker.endpoint.is_connected(SERVER)


@pytest.mark.parametrize("sender", ["worker", "server"])
def test_frames_cut_anywhere_only_count_as_bad(sender):
    """Every real frame of a conversation, cut at every byte, is counted and delivers nothing."""
    simulation = Simulation(5, Faults())
    tap = Tap(getattr(simulation, sender).transport)
    getattr(simulation, sender).transport = tap
    simulation.run(1.5, sending=True)
    receiver = simulation.server if sender == "worker" else simulation.worker
    before = sum(receiver.endpoint.statistics().dropped.values())
    cuts = 0
    for first, *payloads in tap.seen[:20]:
        for size in range(len(first)):
            frames = [memoryview(part) for part in (first[:size], *payloads)]
            assert receiver.endpoint.receive("stranger", frames, simulation.network.now) == []
            cuts += 1
    assert sum(receiver.endpoint.statistics().dropped.values()) - before == cuts
    simulation.run(REPAIR_SECONDS, sending=False)
    simulation.check()
