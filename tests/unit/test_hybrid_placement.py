"""Which server has which piece of which table, and how evenly steps fall on pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.hybrid.partitions import first_partitions
from kvstore_mpi.hybrid.placement import deal_pieces
from kvstore_mpi.records import Shard
from kvstore_mpi.scheduler.placement import Placement

REPEATABLE = settings(deadline=None, derandomize=True)

MODELS = {
    # Tables as (rows, bytes of a row): input and output embedding of a language model, two vocabularies of
    # a translation, the 26 categories of a click log from 4 to a million values.
    "language": [(200_000, 256), (200_000, 256)],
    "translation": [(16_000, 512), (16_000, 512)],
    "clicks": [(round(4 * (250_000 ** (each / 25))), 64) for each in range(26)],
}


def imbalance(loads):
    """Return how many times the mean the largest load is."""
    return max(loads) * len(loads) / sum(loads)


@pytest.mark.parametrize("num_servers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backwards", [False, True])
def test_no_server_has_a_tenth_more_than_the_mean(model, num_servers, backwards):
    """Whether small tables come first or large ones: these are cut into more pieces."""
    placement = Placement(num_servers, slice_elements=12_500)
    for rows, row_bytes in MODELS[model][:: -1 if backwards else 1]:
        pieces = first_partitions(rows, row_bytes, num_servers)
        placement.place_pieces(pieces, -(-rows // pieces) * row_bytes)
    assert imbalance(placement.loads) <= 1.1


def test_pieces_of_a_table_are_dealt_evenly_whatever_servers_hold():
    """A server with few bytes is not given all pieces of a table that every step touches."""
    assert deal_pieces(4, [100, 0]) == [2, 2]
    assert deal_pieces(5, [100, 0, 50]) == [1, 2, 2]
    assert deal_pieces(1, [100, 0, 50]) == [0, 1, 0]


def test_pieces_follow_each_other_from_server_to_server():
    """A piece p stands in shards as [2p, 2p + 1): pieces are nobody's neighbours."""
    placement = Placement(3, slice_elements=10)
    placement.place(20, 1)
    assert placement.loads == (10, 10, 0)
    assert placement.place_pieces(4, 7) == [Shard(0, 0, 2), Shard(1, 2, 4), Shard(2, 4, 8)]
    assert placement.loads == (17, 17, 14)
    assert placement.place_pieces(1, 7) == [Shard(2, 0, 2)]


@REPEATABLE
@given(count=st.integers(1, 40), loads=st.lists(st.integers(0, 1000), min_size=1, max_size=7))
def test_every_piece_has_one_server_and_the_lightest_have_more(count, loads):
    """For all numbers of pieces and all loads."""
    counts = deal_pieces(count, loads)
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1
    most, least = max(counts), min(counts)
    if most > least:
        light = [load for load, each in zip(loads, counts) if each == most]
        heavy = [load for load, each in zip(loads, counts) if each == least]
        assert max(light) <= min(heavy)


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
