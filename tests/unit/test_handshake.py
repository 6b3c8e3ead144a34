"""Keys of a session, and what a new session takes over from the one before it."""

from __future__ import annotations

import itertools
import random

from support.wire_node import WireNode

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.wire.events import Silent
from kvstore_mpi.wire.handshake import Identity, Keys

SERVER, WORKER = NodeId(Role.SERVER, 1), NodeId(Role.WORKER, 3)


def identity(node, secret):
    return Identity(node, 0, secret, random.Random(str(node)).randbytes)


def test_keys_depend_on_the_secret_and_on_both_sides():
    """Whoever replays one side's part of a handshake gets other keys; and each direction has its own."""
    keys = []
    for secret in (bytes(32), bytes(range(32))):
        connector, acceptor = identity(WORKER, secret), identity(SERVER, secret)
        for hello in (connector.hello(), connector.hello()):
            for welcome in (acceptor.welcome(hello), acceptor.welcome(hello)):
                keys += acceptor.keys(hello, welcome)
                assert connector.keys(hello, welcome) == Keys(*keys[-2:])
    assert all(one != other for one, other in itertools.combinations(keys, 2))


def test_a_monitored_peer_stays_monitored_when_it_comes_again():
    """A restarted process whose new run falls silent is reported like the old one."""
    network = MemoryNetwork()
    server = WireNode(SERVER, network.transport(), lambda: network.now)
    for seed in (1, 2):
        worker = WireNode(WORKER, network.transport(), lambda: network.now, seed=seed)
        worker.join(server)
        while not worker.endpoint.is_connected(SERVER) or worker.endpoint.unacknowledged(SERVER):
            worker.step()
            server.step()
        server.step()
        if seed == 1:
            server.endpoint.monitor(WORKER)
    assert server.endpoint.is_connected(WORKER)
    for _ in range(8):
        network.advance(1.0)
        server.step()
    assert [event.peer for event in server.events if isinstance(event, Silent)] == [WORKER]
