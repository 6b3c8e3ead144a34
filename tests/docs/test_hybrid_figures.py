"""The figures of docs/hybrid-cost.md are those of the code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.hot_rows import Touched, choose_hot

from kvstore_mpi.hybrid.cost import Cluster, Pull, Speed, Table
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.hybrid.routes import DENSE_ALLREDUCE, ROWS_ALLREDUCE, ROWS_SERVERS, Prices, seconds

PAGE = (Path(__file__).parents[2] / "docs/hybrid-cost.md").read_text(encoding="utf-8")
WORKERS = {Pull.OWN: "ask for rows", Pull.CHANGED: "hold the table"}


def limit(row_bytes, prices):
    """Return the least density at which a dense allreduce among four machines costs less than servers."""
    table, cluster = Table(100_000, row_bytes, 4), Cluster(4, 4)
    for alpha in np.arange(1, 1001) / 1000:
        density = Density(alpha, alpha, 1 - (1 - alpha) ** 4)
        costs = [seconds(way, table, density, cluster, prices) for way in (DENSE_ALLREDUCE, ROWS_SERVERS)]
        if costs[0] < costs[1]:
            return alpha
    return None


@pytest.mark.parametrize("ratio", [1, 1.5, 2])
@pytest.mark.parametrize("pull", list(WORKERS))
def test_limits_of_density(pull, ratio):
    """Each line of the table."""
    limits = [
        limit(row_bytes, Prices(servers=Speed(ratio), pull=pull)) for row_bytes in (16, 64, 256, 2048)
    ]
    figures = " | ".join(f"{each:.2f}" for each in limits)
    assert f"| {WORKERS[pull]} | {ratio} times as long | {figures} |" in PAGE


@pytest.mark.parametrize(
    ("pull", "workers", "servers"),
    [
        *((Pull.CHANGED, *each) for each in [(2, 1), (4, 1), (4, 2), (4, 4), (8, 1), (8, 8)]),
        *((Pull.OWN, *each) for each in [(2, 1), (4, 1), (4, 4), (8, 8)]),
    ],
)
def test_rows_by_allreduce_beside_the_other_ways(pull, workers, servers):
    """Each line of the table."""
    table, cluster, prices = Table(100_000, 256, servers), Cluster(workers, servers), Prices(pull=pull)
    shares = []
    for alpha in (0.001, 0.01, 0.1, 0.3):
        density = Density(alpha, alpha, 1 - (1 - alpha) ** workers)
        own, *others = (
            seconds(way, table, density, cluster, prices)
            for way in (ROWS_ALLREDUCE, ROWS_SERVERS, DENSE_ALLREDUCE)
        )
        shares.append(f"{own / min(others):.2f}")
    assert f"| {WORKERS[pull]} | {workers}, {servers} | {' | '.join(shares)} |" in PAGE


def saving(rows, row_bytes, draws, machines, servers):
    """Return what the best choice saves if rows are touched exactly as often as is to be expected."""
    chances = 1 / np.arange(1, rows + 1)
    touched = -np.expm1(draws * np.log1p(-chances / chances.sum()))
    steps = 10**6
    counts = Touched(
        np.arange(rows),
        np.round(touched * steps * machines).astype(np.int64),
        np.round((1 - (1 - touched) ** machines) * steps).astype(np.int64),
    )
    table, cluster = Table(rows, row_bytes, servers), Cluster(machines, servers)
    return choose_hot(counts, steps, table, cluster, Prices(pull=Pull.OWN), least_saving=0.0).saving


@pytest.mark.parametrize(
    ("what", "rows", "row_bytes", "draws"),
    [
        ("200,000 rows of 256 bytes, 8000 ids a step", 200_000, 256, 8000),
        ("16,000 rows of 512 bytes, 16,000 ids a step", 16_000, 512, 16_000),
        ("1000 rows of 32 bytes, 512 ids a step", 1000, 32, 512),
    ],
)
def test_savings_by_frequent_rows(what, rows, row_bytes, draws):
    """Each line of the table."""
    jobs = [(4, 4), (8, 8), (4, 1), (8, 2)]
    figures = " | ".join(f"{100 * saving(rows, row_bytes, draws, *job):.1f} %" for job in jobs)
    assert f"| {what} | {figures} |" in PAGE
