"""Bytes of the busiest machine, wherever servers are; for Table 3 itself see ``tests/paper``."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.hybrid.cost import (
    Cluster,
    Pull,
    Speed,
    Table,
    Traffic,
    Wire,
    dense_servers,
    even_share,
    handled,
    rows_gathered,
    rows_merged,
    rows_servers,
    share_of,
)
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.records import KeySpec, Rows
from kvstore_mpi.transport.framing import head
from kvstore_mpi.values.row_sparse import PushedRows, RowSparse
from kvstore_mpi.wire.codec import encode_message
from kvstore_mpi.wire.messages import Push

KEY = Table(rows=1000, row_bytes=100, pieces=4)
BARE = Wire(0, 0, 0)


def machines_of(workers, servers, *, colocated):
    """Return, for each machine, whether it has a worker and which servers it has."""
    on = [(True, []) for _ in range(workers)] + [(False, []) for _ in range(0 if colocated else servers)]
    for server in range(servers):
        on[server % workers if colocated else workers + server][1].append(server)
    return on


def counted(cluster, pushed, changed):
    """Add up each transfer of each worker, server by server, and return the busiest machine's bytes.

    Each server has the same part of the key. Workers push and get that part of their rows or of the union.
    """
    on = machines_of(cluster.machines, cluster.servers, colocated=cluster.colocated)
    sent, received = [0.0] * len(on), [0.0] * len(on)
    for here, (works, _) in enumerate(on):
        for there, (_, servers) in enumerate(on):
            if works and here != there:
                sent[here] += len(servers) * pushed / cluster.servers
                received[there] += len(servers) * pushed / cluster.servers
                sent[there] += len(servers) * changed / cluster.servers
                received[here] += len(servers) * changed / cluster.servers
    return max(zip(sent, received), key=sum)


@pytest.mark.parametrize("colocated", [True, False])
@pytest.mark.parametrize("servers", [1, 2, 4, 8])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_busiest_machine_is_that_of_a_count_of_every_transfer(workers, servers, colocated):
    """With servers on some machines, on all, several on each, or on machines of their own."""
    cluster = Cluster(workers, servers, colocated=colocated)
    density = Density(0.1, 0.1, 0.25)
    table = KEY._replace(pieces=servers)
    traffic = rows_servers(table, density, cluster, BARE, share=even_share(cluster))
    assert share_of(8, cluster) == even_share(cluster)
    assert sum(traffic[:2]) == pytest.approx(sum(counted(cluster, 10_000, 25_000)))
    assert max(traffic[:2]) == pytest.approx(max(counted(cluster, 10_000, 25_000)))
    dense = dense_servers(table, cluster, BARE, share=even_share(cluster))
    assert dense[:2] == pytest.approx(counted(cluster, 100_000, 100_000))


def test_ids_and_headers_are_counted_with_each_row_and_piece():
    """Between two machines, one with the server; the other sends everything."""
    pair, density = Cluster(2, 1), Density(0.1, 0.1, 0.15)
    wire = Wire(place_bytes=4, id_bytes=8, piece_bytes=50)
    changed = rows_servers(KEY, density, pair, wire, share=1.0)
    assert changed[:2] == pytest.approx((150 * 104 + 4 * 50, 100 * 104 + 4 * 50))
    own = rows_servers(KEY, density, pair, wire, share=1.0, pull=Pull.OWN)
    assert own[:2] == pytest.approx((100 * 104 + 4 * 50, 100 * 108 + 8 * 50))
    alone = rows_servers(KEY, density, pair, wire, share=1.0, pull=Pull.EACH)
    assert alone[:2] == own[:2]
    several, touched = pair._replace(ranks=3), density._replace(rank=0.05)  # of 150 rows 100 are different
    each = rows_servers(KEY, touched, several, wire, share=1.0, pull=Pull.EACH)
    assert each[:2] == pytest.approx((150 * 104 + 12 * 50, 100 * 104 + 150 * 4 + 16 * 50))
    assert rows_servers(KEY, touched, several, wire, share=1.0, pull=Pull.OWN)[:2] == own[:2]
    assert dense_servers(KEY, pair, wire, share=1.0)[:2] == pytest.approx((100_200, 100_200))
    assert rows_gathered(KEY, density, pair, wire)[:2] == pytest.approx((100 * 108 + 50,) * 2)
    assert rows_merged(KEY, density, pair, wire)[:2] == pytest.approx((125 * 108 + 100,) * 2)


@pytest.mark.parametrize(
    ("rows", "width", "touched", "pieces"),
    [
        (200_000, 64, 1750, 4),
        (100_000, 16, 400, 4),
        (16_000, 128, 3360, 8),
        (1000, 16, 100, 1),
        (5000, 4, 60, 2),
    ],
)
def test_ids_and_headers_are_those_of_the_messages(rows, width, touched, pieces):
    """Of a push as it is encoded, to within the 80 bytes of a message itself."""
    layout = RowSparse(KeySpec(0, "table", (rows, width), "float32", "rows", pieces))
    ids = np.sort(np.random.default_rng(0).choice(rows, touched, replace=False)).astype(np.int64)
    pushed = PushedRows(layout, Rows(ids, np.zeros((touched, width), np.float32)))
    pushed.versions = [700] * pieces
    entries = [(37, 2 * piece, 2 * piece + 1, 700, True) for piece in range(pieces)]
    frames = [encode_message(Push(entries, shared=False, coding=1)), *map(pushed.pack, range(pieces))]
    table, density = Table(rows, 4 * width, pieces), Density(0, touched / rows, touched / rows)
    predicted = rows_servers(table, density, Cluster(2, 1), Wire(), share=1.0).received
    assert 0 <= head(frames)[1] - predicted <= 80


def test_each_of_four_pieces_is_a_message_to_its_server_and_one_to_each_machine():
    """Also to those of the own machine."""
    density = Density(0.1, 0.1, 0.15)

    def messages(cluster):
        return rows_servers(KEY, density, cluster, BARE, share=even_share(cluster)).messages

    assert messages(Cluster(4, 4)) == 4 + 4
    assert messages(Cluster(2, 4)) == 4 + 2 * 2
    assert messages(Cluster(4, 2, colocated=False)) == 2 * 4
    assert messages(Cluster(2, 4, colocated=False)) == 4


def test_half_of_what_a_byte_takes_is_its_servers():
    """One server of four machines does what four do otherwise, and its worker no more than others."""
    even = Traffic(5.0, 7.0, 3)
    assert handled(even, Cluster(4, 4), 0.25) == 7.0
    assert handled(even, Cluster(4, 1), 1.0) == 7.0 * (0.5 + 0.5 * 4)


def test_time_is_that_of_the_busier_direction_and_of_the_messages():
    """Links carry both directions at once."""
    assert Speed(2.0, 10.0).seconds(Traffic(5.0, 7.0, 3)) == 2.0 * 7.0 + 10.0 * 3
