"""Which server has which piece of which table, and how evenly steps fall on pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.hybrid.partitions import first_partitions
from kvstore_mpi.hybrid.placement import deal_pieces, deal_tables, imbalance

REPEATABLE = settings(deadline=None, derandomize=True)

MODELS = {
    # Tables as (rows, bytes of a row): input and output embedding of a language model, two vocabularies of
    # a translation, the 26 categories of a click log from 4 to a million values.
    "language": [(200_000, 256), (200_000, 256)],
    "translation": [(16_000, 512), (16_000, 512)],
    "clicks": [(round(4 * (250_000 ** (each / 25))), 64) for each in range(26)],
}


def pieces_of(rows, row_bytes, partitions):
    """Return the bytes of each piece if row i is in piece i % partitions."""
    return [len(range(piece, rows, partitions)) * row_bytes for piece in range(partitions)]


def loads_of(tables, servers, num_servers):
    """Add up what each server gets."""
    loads = [0] * num_servers
    for table, owners in zip(tables, servers):
        for size, server in zip(table, owners):
            loads[server] += size
    return loads


@pytest.mark.parametrize("num_servers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("model", ["language", "translation", "clicks"])
@pytest.mark.parametrize("at_once", [True, False])
def test_no_server_has_a_tenth_more_than_the_mean(model, num_servers, at_once):
    """Whether tables are known together or come one after the other, the largest last."""
    tables = [
        pieces_of(rows, row_bytes, first_partitions(rows, row_bytes, num_servers))
        for rows, row_bytes in MODELS[model]
    ]
    if at_once:
        loads = loads_of(tables, deal_tables(tables, [0] * num_servers), num_servers)
    else:
        loads = [0] * num_servers
        for table in tables:
            for size, server in zip(table, deal_pieces(table, loads)):
                loads[server] += size
    assert imbalance(loads) <= 1.1


def test_the_largest_table_is_dealt_first():
    """In the order of the model, one server would end with nearly twice the other's bytes."""
    assert deal_tables([[3], [3], [6]], [0, 0]) == [[1], [1], [0]]
    assert deal_tables([[2], [2]], [1, 0]) == [[1], [0]]


def test_pieces_of_a_table_are_dealt_evenly_whatever_servers_hold():
    """A server with few bytes is not given all pieces of a table that every step touches."""
    assert deal_pieces([10, 10, 10, 10], [100, 0]) in ([1, 0, 1, 0], [1, 1, 0, 0])
    assert deal_pieces([10], [100, 0, 50]) == [1]
    assert deal_pieces([1, 9], [0, 0]) == [1, 0]


@REPEATABLE
@given(
    tables=st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=9), max_size=12),
    loads=st.lists(st.integers(0, 1000), min_size=1, max_size=7),
)
def test_every_piece_has_one_server_and_each_table_is_spread(tables, loads):
    """For all lists of tables."""
    placed = deal_tables(tables, loads)
    assert [len(each) for each in placed] == [len(each) for each in tables]
    for owners in placed:
        counts = [owners.count(server) for server in range(len(loads))]
        assert max(counts) - min(counts) <= 1
    assert placed == deal_tables(tables, loads)


def test_rows_by_modulus_are_touched_evenly_and_ranges_are_not():
    """Ids by Zipf's law, the frequent ones first, as vocabularies have them; 8 pieces, figures per step."""
    rows, pieces, draws, steps = 100_000, 8, 4000, 20
    rng = np.random.default_rng(6)
    chances = 1 / np.arange(1, rows + 1)
    chances /= chances.sum()
    by_modulus, by_range = [], []
    for _ in range(steps):
        ids = np.unique(rng.choice(rows, draws, p=chances))
        by_modulus.append(imbalance(np.bincount(ids % pieces, minlength=pieces).tolist()))
        by_range.append(imbalance(np.bincount(ids * pieces // rows, minlength=pieces).tolist()))
    assert np.mean(by_modulus) == pytest.approx(1.08, abs=0.02)
    assert np.mean(by_range) == pytest.approx(5.3, abs=0.1)


@pytest.mark.parametrize(
    ("loads", "expected"), [([], 1.0), ([0, 0], 1.0), ([2, 2], 1.0), ([4, 0], 2.0), ([3, 1], 1.5)]
)
def test_imbalance_is_the_largest_over_the_mean(loads, expected):
    """Without a load nothing is uneven."""
    assert imbalance(loads) == expected
