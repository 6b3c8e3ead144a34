"""Tables whose rows are on the servers alone, and are cut otherwise while a job trains."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.often import ONE_OF_MANY
from support.trained_table import wait

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Growth, Retention, RowInit, Rows
from kvstore_mpi.server.snapshot_records import LAST_USED, PLACES, USES, VALUE
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

SHAPE = (2**63 - 1, 3)
IDS = np.array([*range(19), 2**31, 2**40 + 1, 2**62, 2**62 + 1, 2**63 - 3, 2**63 - 2])
GOES, WAITS = 2**33, 2**34
"""Ids of a row that is not pushed after the first steps, and of one that is pushed once."""
GROWTH = Growth(RowInit("uniform", -1, 1, 3), Retention(max_age=5, admit_after=2))
RULES = {
    "sgd": OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={}),
    "adam": OptimizerSpec(name="adam", hyper=HyperParameters(lr=0.125), params={}),
    "exact": OptimizerSpec(
        name="sgd", hyper=HyperParameters(lr=0.125), params={"momentum": 0.5, "lazy_update": False}
    ),
}
STEPS = 12


def rows_of(worker, step):
    """Return some rows of one worker in one step; integers, so that sums are exact in any order."""
    random = np.random.default_rng([worker.rank, step])
    ids = IDS[random.random(IDS.size) < 0.3]
    if worker.rank == 0:
        beside = [GOES] * (step < 2) + [WAITS] * (step == 7)
        ids = np.union1d(ids, np.array(beside, np.int64))
    return Rows(ids, random.integers(-8, 9, (ids.size, SHAPE[1])).astype(np.float32))


def cut(worker, store, pieces, *, by="mod", growth=GROWTH, anew=True):
    wait(
        worker.init_rows,
        store,
        "t",
        SHAPE,
        "float32",
        value=None,
        partitions=pieces,
        by=by,
        growth=growth,
        anew=anew,
    )


def pulled(worker, store):
    """Return all rows as a worker sees them."""
    out = []
    wait(worker.pull_rows, store, "t", priority=0, out=out, ids=IDS)
    rows = {i: row for part in out for i, row in zip(part.ids.tolist(), part.values)}
    return np.array([rows[i] for i in IDS.tolist()])


def train(worker, rule, by, cuts, pieces):
    """Train; before the steps that ``cuts`` names, cut the table otherwise. Return what was looked up."""
    store = worker.open_store("sync")
    worker.set_optimizer(store, RULES[rule].to_dict())
    cut(worker, store, pieces, by=by, anew=False)
    seen, released = [], True
    for step in range(STEPS):
        if step in cuts:
            cut(worker, store, cuts[step], by=by)
            released = False
        # Also of the new pieces before the first push.
        seen.append(pulled(worker, store))
        wait(worker.push_rows, store, "t", rows_of(worker, step), priority=0)
        if not released:
            worker.release_rows(store, "t")
            released = True
    return [*seen, pulled(worker, store)]


def kept(job):
    """Return what the servers have of each row: ages, uses, value and states; each on one of them."""
    found = {}
    for server in job.servers:
        newest = max(server._store.tables)
        table, units = server._store.tables[newest], server._state.keys.by_id[newest].distinct_units
        assert {unit.updates for unit in units} == {STEPS}
        for lo, piece in table._growing.items():
            contents = dict(piece.contents())
            ids = table.layout.ids_of(lo // 2, contents[PLACES])
            admitted = np.flatnonzero(contents[USES] >= GROWTH.retention.admit_after)
            arrays = [array for index, array in contents.items() if index in {VALUE, 0, 1}]
            rows = [array.reshape(admitted.size, -1) for array in arrays]
            for n, each in enumerate(ids.tolist()):
                assert each not in found
                values = [row[n].tolist() for row in rows] if n < admitted.size else []
                found[each] = [contents[LAST_USED][n], contents[USES][n], *values]
    return found


SHAPES = [(1, 1, 2), (2, 1, 3), (1, 2, 1)]


@pytest.mark.parametrize(
    ("shape", "rule", "by"),
    [
        ((2, 1, 2), "sgd", "mod"),
        ((1, 1, 3), "adam", "mod"),
        ((1, 2, 2), "exact", "range"),
        *(
            pytest.param(shape, rule, by, marks=ONE_OF_MANY)
            for shape in SHAPES
            for rule in RULES
            for by in ("mod", "range")
        ),
    ],
)
def test_a_table_that_grows_goes_on_as_it_was(tmp_path, shape, rule, by):
    """Values, states, ages and what waits to be admitted are the same bits as without, and there once."""
    clients, per_client, servers = shape
    jobs = []
    for cuts in [{}, {3: 2 * servers, 4: 5 * servers, 8: 3 * servers, 10: servers}]:
        folder = tmp_path / f"{len(cuts)} cuts"  # with snapshots former pieces stay for some time
        folder.mkdir()
        with Cluster(
            MemoryNetwork().transport,
            clients=clients,
            workers_per_client=per_client,
            servers=servers,
            snapshot_dir=str(folder),
        ) as job:
            seen = job.on_all(lambda worker, cuts=cuts: train(worker, rule, by, cuts, servers))
            jobs.append((seen, kept(job)))
        assert not job.errors
    (expected, rows), (seen, found) = jobs
    np.testing.assert_array_equal(seen, expected)
    assert found == rows
    assert GOES not in rows
    assert len(rows[WAITS]) == 2


def test_what_is_looked_up_of_the_former_pieces_is_there():
    """Another worker may not have come to the cut; none pushes before all have."""
    with Cluster(MemoryNetwork().transport, clients=2, servers=2) as job:
        together = threading.Barrier(2)

        def call(worker):
            store = worker.open_store("sync")
            worker.set_optimizer(store, RULES["sgd"].to_dict())
            cut(worker, store, 2, anew=False)
            wait(worker.push_rows, store, "t", rows_of(worker, 0), priority=0)
            before = pulled(worker, store)
            if worker.rank == 0:
                cut(worker, store, 6)
            together.wait(20)
            after = pulled(worker, store)
            if worker.rank:
                cut(worker, store, 6)
            np.testing.assert_array_equal([after, pulled(worker, store)], [before] * 2)

        job.on_all(call)
    assert not job.errors


@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        ({"pieces": 2}, {"pieces": 3}, "not from 2 into 3"),
        ({"pieces": 5}, {"pieces": 2}, "not from 5 into 2"),
        ({"pieces": 2}, {"pieces": 4, "by": "range"}, "in the same way"),
        (*2 * [{"pieces": 2, "growth": Growth(retention=Retention(max_rows=99))}], "max_rows"),
    ],
)
def test_cuts_that_would_lose_rows_are_refused(first, then, text):
    """In the call, on each worker."""
    with Cluster(MemoryNetwork().transport, servers=2) as job:

        def call(worker):
            store = worker.open_store("sync")
            worker.set_optimizer(store, RULES["sgd"].to_dict())
            cut(worker, store, **first, anew=False)
            with pytest.raises(UsageError, match=text):
                cut(worker, store, **then)
            wait(worker.push_rows, store, "t", rows_of(worker, 0), priority=0)

        job.on_all(call)
    assert not job.errors
