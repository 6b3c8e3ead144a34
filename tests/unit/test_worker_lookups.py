"""Lookups of rows in many tables share a message to each server."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.records import KeySpec, NodeId, Role, Shard, Topology
from kvstore_mpi.values.row_sparse import RowSparse, WantedRows
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.records import KeyState, Operation
from kvstore_mpi.worker.servers import Servers

TABLES = 26
ZERO, ONE = (NodeId(Role.SERVER, index) for index in range(2))


@pytest.fixture
def servers():
    """Two servers; nothing is under way to them."""
    topology = Topology(num_clients=1, num_workers=1, num_servers=2)
    return Servers(NodeConfig(), topology, lambda _buffer: None, num_pushers=1, mpi_rank=0)


def look_up(servers, number, priority=0):
    """Ask for two rows of each piece of a table, which are on two servers."""
    spec = KeySpec(0, number, (1_000, 4), "float32", layout="rows", partitions=2)
    key = KeyState(spec, None, None)
    key.place(number, [Shard(0, 0, 1), Shard(1, 2, 3)], 1)
    request = WantedRows(RowSparse(spec), np.array([number, number + 1, number + 400, number + 401]))
    operation = Operation(Kind.PULL, priority, None, request)
    assert servers.pull(key, operation) == []
    return operation


def left(servers):
    return servers.messages(0.0, lambda _server: 0)


def test_tables_share_a_message_to_each_server(servers):
    operations = [look_up(servers, number) for number in range(TABLES)]
    sends = left(servers)
    assert sorted(str(send.peer) for send in sends) == [str(ZERO), str(ONE)]
    for piece, send in enumerate(sorted(sends, key=lambda send: str(send.peer))):
        slice_ = (2 * piece, 2 * piece + 1, 0)
        wanted = [(number, *slice_) for number in range(TABLES)]
        assert send.message.entries == wanted
        assert [bytes(each) for each in send.payloads] == [
            bytes(operation.source.pack(piece)) for operation in operations
        ]
    assert all(operation.awaited == {0, 1} for operation in operations)
    assert left(servers) == []


def test_what_is_more_urgent_has_a_message_of_its_own(servers):
    """The server answers by the priority of the message."""
    for number, priority in ((0, 0), (1, 7), (2, 0)):
        look_up(servers, number, priority)
    told = {(send.peer, send.message.priority): len(send.message.entries) for send in left(servers)}
    assert told == {(ZERO, 0): 2, (ONE, 0): 2, (ZERO, 7): 1, (ONE, 7): 1}


def test_a_server_that_has_died_is_asked_for_nothing_until_it_is_back(servers):
    """It is then asked for what is awaited: twice would be one answer too many."""
    look_up(servers, 0)
    servers.down.add(ONE)
    servers.drop(ONE)
    operation = look_up(servers, 1)
    servers.down.discard(ONE)
    assert [send.peer for send in left(servers)] == [ZERO]
    assert operation.awaited == {0, 1}
