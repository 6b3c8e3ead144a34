"""The decisions on all keys of one store, on every rank."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid.cost import Cluster, Pull, Table, Wire
from kvstore_mpi.hybrid.decisions import Decisions
from kvstore_mpi.hybrid.density import WINDOW_STEPS, RowCounts
from kvstore_mpi.hybrid.routes import DENSE_ALLREDUCE, DENSE_SERVERS, ROWS_SERVERS, Prices

CLUSTER = Cluster(machines=2, servers=2, ranks=2)
PRICES = Prices(wire=Wire(32, 64, 0), pull=Pull.OWN)
TABLE = Table(1000, 256, pieces=2)


def decisions(force=None, clients=1, cluster=CLUSTER):
    """Return those of one rank."""
    return Decisions(cluster, PRICES, force or {}, clients=clients)


def step(ranks, key, sets):
    """Count a step on all four ranks, of which each knows the ids of its own batch; return the choices.

    Ranks 0 and 2 report the union of their machine, rank 0 that of the job.
    """
    machines = [np.union1d(sets[0], sets[1]).size, np.union1d(sets[2], sets[3]).size]
    job = np.unique(np.concatenate(sets)).size
    counts = [
        each.count(
            key,
            sets[rank].size,
            machine=0 if rank % 2 else machines[rank // 2],
            job=0 if rank else job,
        )
        for rank, each in enumerate(ranks)
    ]
    if None in counts:
        assert counts == [None] * 4
        return []
    totals = RowCounts(*np.sum(counts, axis=0).tolist())
    return [each.decide(key, totals) for each in ranks]


def batches(rng, size):
    """Return the rows that four ranks touch."""
    return [np.unique(rng.integers(0, TABLE.rows, size)) for _ in range(4)]


@pytest.mark.parametrize(("draws", "way"), [(50, ROWS_SERVERS), (5000, DENSE_ALLREDUCE)])
def test_all_ranks_decide_alike_after_twenty_steps(draws, way):
    """From densities that each rank knows only in part."""
    ranks, rng = [decisions() for _ in range(4)], np.random.default_rng(1)
    assert [each.add("table", TABLE) for each in ranks] == [ROWS_SERVERS] * 4
    for _ in range(WINDOW_STEPS - 1):
        assert step(ranks, "table", batches(rng, draws)) == []
    choices = step(ranks, "table", batches(rng, draws))
    assert [each.way for each in choices] == [way] * 4
    assert all(each == choices[0] for each in choices)
    assert all(str(each.plan()) == str(ranks[0].plan()) for each in ranks)
    [planned] = ranks[0].plan().keys
    expected = 1 - (1 - 1 / TABLE.rows) ** np.array([draws, 2 * draws, 4 * draws])
    assert (planned.alpha_rank, planned.alpha_machine, planned.alpha_job) == pytest.approx(
        expected, rel=0.02
    )


def test_windows_follow_each_other():
    """Each decides anew, by its own steps."""
    one, rng = [decisions() for _ in range(4)], np.random.default_rng(2)
    for each in one:
        each.add("table", TABLE)
    ways = []
    for draws in (50, 5000, 50):
        for _ in range(WINDOW_STEPS):
            choices = step(one, "table", batches(rng, draws))
        ways.append(choices[0].way)
    assert ways == [ROWS_SERVERS, DENSE_ALLREDUCE, ROWS_SERVERS]


def test_dense_keys_are_summed_by_the_workers_of_one_client():
    """Several clients meet at the servers, and a user may want a key there."""
    assert decisions().add_dense("a", 400) == DENSE_ALLREDUCE
    assert decisions(clients=2).add_dense("a", 400) == DENSE_SERVERS
    assert decisions({"a": "servers"}).add_dense("a", 400) == DENSE_SERVERS
    assert decisions(cluster=Cluster(2, 0)).add_dense("a", 400) == DENSE_ALLREDUCE


def test_the_plan_has_all_keys_in_their_order():
    """Dense ones with their bytes at once, tables with theirs when their density is known."""
    one = decisions({"emb*": "servers"})
    one.add_dense("weight", 400)
    one.add("emb", TABLE, layout="rows")
    dense, table = one.plan({"emb": 77.0}).keys
    assert (dense.key, dense.predicted_bytes, dense.alpha_job, dense.forced) == ("weight", 800, 1.0, False)
    assert (table.key, table.predicted_bytes, table.alpha_job, table.forced) == ("emb", None, None, True)
    assert (table.partitions, table.layout, table.measured_bytes) == (2, "rows", 77.0)
    assert one.plan().predicted_bytes is None


@pytest.mark.parametrize(("pieces", "received"), [(2, 90 * (288 / 2 + 320 * 3 / 2)), (1, 90 * 320 * 3)])
def test_a_table_that_is_cut_anew_costs_what_its_pieces_do(pieces, received):
    """Of four machines one or two have servers."""
    one = decisions({"*": "servers"}, cluster=Cluster(4, 2))
    one.add("table", TABLE)
    one.cut("table", pieces)
    for _ in range(WINDOW_STEPS):
        counts = one.count("table", 90)
    choice = one.decide("table", RowCounts(4 * counts.rank, 0, 0))
    assert choice.seconds[ROWS_SERVERS] == pytest.approx(received)
    [planned] = one.plan().keys
    assert planned.partitions == pieces
    assert planned.predicted_bytes == pytest.approx(90 * (320 + 288))


def test_errors_name_the_key():
    """A store may have many, and a pattern may fit more than was meant."""
    with pytest.raises(UsageError, match="key 'embedding': the route allreduce is for"):
        decisions({"e*": "allreduce"}).add("embedding", TABLE, resident=False)
    with pytest.raises(UsageError, match=r"key 7: .* 2 clients"):
        decisions({"7": "allreduce"}, clients=2).add_dense(7, 400)
    with pytest.raises(UsageError, match="'e' cannot be 'both'"):
        decisions({"e": "both"})
