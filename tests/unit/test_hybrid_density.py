"""How many rows a step touches: counted, or expected under Zipf's law."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.hybrid.density import Counted, density_of, ends_window, zipf_density


def zipf_ids(rng, rows, size):
    """Draw ids, the frequent ones first."""
    chances = 1 / np.arange(1, rows + 1)
    return rng.choice(rows, size=size, p=chances / chances.sum())


def test_windows_end_after_twenty_steps_and_then_every_two_hundred():
    """What training touches is looked at soon, and then now and again."""
    assert [step for step in range(700) if ends_window(step)] == [20, 220, 420, 620]


def test_counts_of_all_ranks_make_a_density():
    """Three ranks that push 20 rows each, 40 together, and are told of 60, in five steps of 100 rows."""
    counted = Counted(pushes=5, rank=5 * 3 * 20, client=5 * 40, job=5 * 60, sent=0, received=0)
    assert density_of(counted, 100, ranks=3, apart=False) == pytest.approx((0.2, 0.4, 0.6))
    # In a job of one client, on several hosts, its workers are the machines.
    assert density_of(counted, 100, ranks=3, apart=True) == pytest.approx((0.2, 0.2, 0.6))
    assert density_of(counted._replace(job=0), 100, ranks=3, apart=True) == pytest.approx((0.2, 0.2, 0.4))


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
