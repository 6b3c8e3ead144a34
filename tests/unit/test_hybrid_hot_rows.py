"""Which rows of a table go by allreduce: those that cost less so, and only if it is worth it."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.hybrid.cost import Cluster, Pull, Table, Wire, dense_allreduce, rows_servers
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.hybrid.hot_rows import Touched, choose_hot
from kvstore_mpi.hybrid.routes import Prices

ROWS, STEPS = 2000, 20
FOUR = Cluster(4, 4)
NARROW = Table(ROWS, 16, pieces=4)
"""Rows of four float32, which with a place cost 20 bytes at the servers."""


def drawn(machines, draws, seed=2):
    """Return how often rows are touched if all machines draw ids by Zipf's law, and by which steps."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, ROWS + 1)
    chances /= chances.sum()
    by_machines, by_steps, steps = np.zeros(ROWS, np.int64), np.zeros(ROWS, np.int64), []
    for _ in range(STEPS):
        sets = [np.unique(rng.choice(ROWS, draws, p=chances)) for _ in range(machines)]
        for each in sets:
            by_machines[each] += 1
        by_steps[np.unique(np.concatenate(sets))] += 1
        steps.append(sets)
    ids = np.flatnonzero(by_steps)
    return Touched(ids, by_machines[ids], by_steps[ids]), steps


def bytes_of(steps, hot, table, cluster, prices):
    """Count the bytes of the busiest machine in a step, from the very rows that the steps touch."""
    total = 0.0
    for sets in steps:
        cold = [np.setdiff1d(each, hot) for each in sets]
        union = np.unique(np.concatenate(cold)).size
        pushed = sum(each.size for each in cold) / len(cold)
        density = Density(0.0, pushed / table.rows, union / table.rows)
        share = 1 / cluster.server_machines
        total += rows_servers(table, density, cluster, prices.wire, share=share, pull=prices.pull).num_bytes
        total += dense_allreduce(Table(hot.size, table.row_bytes), cluster).num_bytes
    return total / len(steps)


@pytest.mark.parametrize("pull", list(Pull))
def test_the_prediction_is_what_the_steps_amount_to(pull):
    """Counted anew from every row of every step."""
    touched, steps = drawn(4, 400)
    prices = Prices(pull=pull)
    found = choose_hot(touched, STEPS, NARROW, FOUR, prices, least_saving=0.0)
    assert 0 < found.ids.size < touched.ids.size
    assert found.before == pytest.approx(bytes_of(steps, found.ids[:0], NARROW, FOUR, prices))
    assert found.after == pytest.approx(bytes_of(steps, found.ids, NARROW, FOUR, prices))


def test_no_other_set_of_the_most_frequent_rows_costs_less():
    """A sweep over their number finds nothing better."""
    touched, steps = drawn(4, 400)
    found = choose_hot(touched, STEPS, NARROW, FOUR, Prices(), least_saving=0.0)
    order = touched.ids[np.argsort(-(touched.machines + 4 * touched.steps), kind="stable")]
    least = min(bytes_of(steps, order[:size], NARROW, FOUR, Prices()) for size in range(0, 400, 20))
    assert found.after <= least * 1.001


def test_few_servers_make_more_rows_hot():
    """One server's machine carries every machine's rows, an allreduce spreads them over all."""
    touched, _ = drawn(4, 400)
    spread = choose_hot(touched, STEPS, NARROW, FOUR, Prices(), least_saving=0.0)
    alone = choose_hot(touched, STEPS, NARROW._replace(pieces=1), Cluster(4, 1), Prices())
    assert alone.ids.size > 2 * spread.ids.size
    assert alone.saving > 0.1 > spread.saving > 0.01


def test_hot_rows_are_touched_by_nearly_all():
    """Where bytes cost the same, half of the machines would not be enough."""
    touched, _ = drawn(4, 400)
    found = choose_hot(touched, STEPS, NARROW, FOUR, Prices(pull=Pull.OWN, wire=Wire(4, 8, 48)))
    hot = np.isin(touched.ids, found.ids)
    # Of rows with 16 bytes: 4 bytes more with each push, with each request and with each answer.
    assert touched.machines[hot].min() / (4 * STEPS) > 16 / 22
    assert touched.machines[~hot].max() / (4 * STEPS) <= 16 / 22


@pytest.mark.parametrize(
    ("table", "cluster", "draws"),
    [(Table(ROWS, 512, 4), FOUR, 400), (NARROW, FOUR, 10), (NARROW, Cluster(1, 1), 400)],
)
def test_what_saves_little_is_left_to_the_servers(table, cluster, draws):
    """Ids are small beside wide rows; where no row is frequent, or on one machine, nothing is saved."""
    touched, _ = drawn(cluster.machines, draws)
    found = choose_hot(touched, STEPS, table, cluster, Prices())
    assert found.ids.size == 0
    assert found.after == found.before
    assert found.saving == 0


def test_rows_of_a_table_that_nobody_touched():
    """There is nothing to choose."""
    none = np.empty(0, np.int64)
    assert choose_hot(Touched(none, none, none), STEPS, NARROW, FOUR, Prices()).ids.size == 0
