"""How many rows a step touches: counted, or expected under Zipf's law."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.hybrid.density import Density, DensityWindow, RowCounts, density_of, zipf_density


def zipf_ids(rng, rows, size):
    """Draw ids, the frequent ones first."""
    chances = 1 / np.arange(1, rows + 1)
    return rng.choice(rows, size=size, p=chances / chances.sum())


def test_a_window_adds_up_steps_and_begins_anew():
    """As whole numbers."""
    window = DensityWindow(3)
    assert [window.add(10, 15, 20), window.add(1), window.add(0, 1)] == [False, False, True]
    assert window.take() == (11, 16, 20)
    assert (window.steps, window.take()) == (0, (0, 0, 0))


def test_a_window_has_twenty_steps():
    """As long as a route is not decided, unless something else is asked for."""
    window = DensityWindow()
    assert [window.add(1) for _ in range(20)] == [False] * 19 + [True]


def test_counts_of_all_ranks_make_a_density():
    """Two machines with three ranks each, over five steps, of a table with 100 rows."""
    counts = RowCounts(rank=5 * 6 * 20, machine=5 * 2 * 40, job=5 * 60)
    assert density_of(counts, 5, 100, machines=2, ranks=3) == pytest.approx((0.2, 0.4, 0.6))


def test_unions_that_nobody_has_counted_are_as_large_as_they_can_be():
    """No more than what the members have, and no more than there is."""
    counts = RowCounts(rank=5 * 6 * 20, machine=0, job=0)
    assert density_of(counts, 5, 100, machines=2, ranks=3) == pytest.approx((0.2, 0.6, 1.0))
    counts = RowCounts(rank=5 * 6 * 20, machine=5 * 2 * 30, job=0)
    assert density_of(counts, 5, 100, machines=2, ranks=3) == pytest.approx((0.2, 0.3, 0.6))


def test_a_table_without_rows_has_no_density():
    """And divides nothing by 0."""
    assert density_of(RowCounts(0, 0, 0), 5, 0, machines=2, ranks=1) == Density(0, 0, 0)


@pytest.mark.parametrize("rows", [100, 5000, 100_000])
def test_the_expected_density_is_that_of_drawn_ids(rows):
    """Of one rank, of three on a machine and of the six of the job."""
    rng, draws, steps = np.random.default_rng(4), 400, 30
    sums = np.zeros(3)
    for _ in range(steps):
        ids = zipf_ids(rng, rows, (6, draws))
        sums += [np.unique(part).size for part in (ids[0], ids[:3], ids)]
    expected = zipf_density(rows, draws, ranks=3, machines=2)
    assert expected == pytest.approx(tuple(sums / steps / rows), rel=0.03)


def test_ranks_touch_the_same_frequent_rows():
    """Their union is smaller than if each rank drew its rows independently of how frequent they are."""
    expected = zipf_density(100_000, 400, ranks=4)
    assert expected.rank < expected.machine < 0.9 * (1 - (1 - expected.rank) ** 4)


def test_large_tables_are_expected_as_fast_as_small_ones():
    """The bins make little difference to the sum over all rows."""
    rows, draws = 300_000, 5000
    chances = 1 / np.arange(1, rows + 1)
    chances /= chances.sum()
    exactly = float((1 - (1 - chances) ** draws).sum()) / rows
    assert zipf_density(rows, draws).rank == pytest.approx(exactly, rel=1e-3)
    assert 0 < zipf_density(10**9, draws).rank < exactly


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_edges_of_the_expected_density(exponent):
    """One row is touched by any draw; no draw touches any."""
    assert zipf_density(1, 1, exponent=exponent).rank == 1
    assert zipf_density(1000, 0, exponent=exponent).rank == 0
