"""Bytes sent and received by a machine, as Parallax counts them, and where they come from."""

from __future__ import annotations

import pytest

from kvstore_mpi.hybrid.cost import (
    Cluster,
    Pull,
    Table,
    Wire,
    added,
    dense_allreduce,
    dense_servers,
    even_share,
    rows_gathered,
    rows_servers,
    share_of,
)
from kvstore_mpi.hybrid.density import Density

pytestmark = pytest.mark.paper("Parallax Table 3")

BARE = Wire(0, 0, 0)
ALPHA = 0.02
ROWS = Density(ALPHA, ALPHA, ALPHA)
KEY = Table(1000, 256)
BYTES = 256_000
MACHINES = [1, 2, 4, 8, 48]


def cluster(machines):
    """Return the paper's: one worker and one server on each machine."""
    return Cluster(machines, machines)


@pytest.mark.parametrize("n", MACHINES)
def test_one_key(n):
    """The machine that has the key hears of all others; an allreduce is spread over all."""
    place, share = cluster(n), share_of(1, cluster(n))
    assert dense_servers(KEY, place, BARE, share=share).num_bytes == pytest.approx(2 * BYTES * (n - 1))
    assert dense_allreduce(KEY, place).num_bytes == pytest.approx(4 * BYTES * (n - 1) / n)
    of_rows = rows_servers(KEY, ROWS, place, BARE, share=share, pull=Pull.OWN)
    assert of_rows.num_bytes == pytest.approx(2 * ALPHA * BYTES * (n - 1))
    assert rows_gathered(KEY, ROWS, place, BARE).num_bytes == pytest.approx(2 * ALPHA * BYTES * (n - 1))


@pytest.mark.parametrize("n", MACHINES)
@pytest.mark.parametrize("m", [1, 26])
def test_many_keys_spread_evenly(n, m):
    """Each server has its part of the keys, so that no machine has more to do than another."""
    place = cluster(n)
    share = even_share(place)
    dense = added([dense_servers(KEY, place, BARE, share=share)] * m)
    assert dense.num_bytes == pytest.approx(4 * BYTES * m * (n - 1) / n)
    rows = added([rows_servers(KEY, ROWS, place, BARE, share=share, pull=Pull.OWN)] * m)
    assert rows.num_bytes == pytest.approx(4 * ALPHA * BYTES * m * (n - 1) / n)
    gathered = added([rows_gathered(KEY, ROWS, place, BARE)] * m)
    assert gathered.num_bytes == pytest.approx(2 * ALPHA * BYTES * m * (n - 1))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_key_in_as_many_pieces_as_servers_costs_as_many_keys_do(n):
    """Partitioning does for one key what many keys do by themselves."""
    assert share_of(n, cluster(n)) == share_of(4 * n, cluster(n)) == even_share(cluster(n))
    assert share_of(n + 1, cluster(n)) == pytest.approx(2 / (n + 1))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_rows_by_allreduce_cost_half_the_machines_times_as_much(n):
    """What the paper concludes from its table: N / 2."""
    place = cluster(n)
    servers = rows_servers(KEY, ROWS, place, BARE, share=even_share(place), pull=Pull.OWN)
    ratio = rows_gathered(KEY, ROWS, place, BARE).num_bytes / servers.num_bytes
    assert ratio == pytest.approx(n / 2)
