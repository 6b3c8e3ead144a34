"""Rows of a table and slices of dense keys wait in one queue for a server, the most urgent first."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.p3.send_queue import BUNDLES_IN_WINDOW
from kvstore_mpi.records import KeySpec, Rows, Shard, Topology
from kvstore_mpi.values.row_sparse import PushedRows, RowSparse
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.records import KeyState, Operation
from kvstore_mpi.worker.servers import Servers

SLICE = 16
"""Elements; a message has one slice."""

DENSE, TABLE, LATE = 0, 1, 2
"""Numbers of the keys."""


@pytest.fixture
def servers():
    """One server, with a window for two slices."""
    config = NodeConfig(window_bytes=BUNDLES_IN_WINDOW * 4 * SLICE, slice_elements=SLICE)
    topology = Topology(num_clients=1, num_workers=1, num_servers=1)
    return Servers(config, topology, lambda _buffer: None, num_pushers=1, mpi_rank=0)


def push_dense(servers, number, priority, slices):
    size = SLICE * slices
    key = KeyState(KeySpec(0, number, (size,), "float32"), None, bytes(4 * size))
    key.place(number, [Shard(0, 0, size)], SLICE)
    servers.push(key, Operation(Kind.PUSH, priority, None), range(slices))


def push_rows(servers, priority, partitions=2):
    """Push a row of each piece of a table."""
    spec = KeySpec(0, TABLE, (100, 4), "float32", layout="rows", partitions=partitions)
    key = KeyState(spec, None, None)
    key.place(TABLE, [Shard(0, 0, 2 * partitions - 1)], 1)
    ids = np.arange(partitions)
    source = PushedRows(RowSparse(spec), Rows(ids, np.ones((partitions, 4), np.float32)))
    operation = Operation(Kind.PUSH, priority, None, source)
    key.table.begin(operation)
    servers.push(key, operation, range(partitions))


def leaves(servers, under_way=0):
    """Return the keys of what leaves now, by message."""
    return [
        [entry[0] for entry in send.message.entries]
        for send in servers.messages(0.0, lambda _server: under_way)
    ]


def all_leaving(servers):
    """Return the same when everything is acknowledged at once."""
    return [message for messages in iter(lambda: leaves(servers), []) for message in messages]


@pytest.mark.parametrize(
    ("of_rows", "of_late", "order"),
    [
        (0, -1, [TABLE, LATE, DENSE, DENSE, DENSE]),
        (-1, 0, [LATE, TABLE, DENSE, DENSE, DENSE]),
        (-9, 0, [LATE, DENSE, DENSE, DENSE, TABLE]),
    ],
)
def test_rows_and_dense_slices_overtake_each_other(servers, of_rows, of_late, order):
    """While the window is full nothing leaves; what is urgent then goes first, whatever it is."""
    push_dense(servers, DENSE, -5, slices=3)
    assert leaves(servers, under_way=1 << 20) == []
    push_rows(servers, of_rows)
    push_dense(servers, LATE, of_late, slices=1)
    left = [key for message in all_leaving(servers) for key in message]
    assert list(dict.fromkeys(left)) == list(dict.fromkeys(order))
    assert [key for key in left if key != TABLE] == [key for key in order if key != TABLE]
    assert left.count(TABLE) == 2


def test_rows_share_the_window_with_dense_slices(servers):
    """They count with the bytes that they have, so that little of them leaves behind a slice."""
    push_dense(servers, DENSE, 0, slices=1)
    push_rows(servers, -1, partitions=9)
    first = [key for message in leaves(servers) for key in message]
    assert first[0] == DENSE
    assert 0 < first.count(TABLE) < 9
    assert [key for message in all_leaving(servers) for key in message] == [TABLE] * (10 - len(first))
