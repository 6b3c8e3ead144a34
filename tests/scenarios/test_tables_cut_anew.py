"""Tables that are cut otherwise while a job trains, against one that never was."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Rows, name_of_table, parameter_of
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

SHAPE = (23, 3)
RULES = {
    "sgd": OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={}),
    "momentum": OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.125), params={"momentum": 0.5}),
    "adam": OptimizerSpec(name="adam", hyper=HyperParameters(lr=0.125), params={}),
}


def wait(call, *args, **named):
    """Make an asynchronous call and wait for its end."""
    ended, errors = threading.Event(), []

    def done(error):
        errors.append(error)
        ended.set()

    call(*args, done=done, **named)
    assert ended.wait(20)
    if errors[0] is not None:
        raise errors[0]


def initial():
    return np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)


def rows_of(worker, step):
    """Return some rows of one worker in one step; integers, so that sums are exact in any order."""
    random = np.random.default_rng([worker.rank, step])
    ids = np.sort(random.choice(SHAPE[0], size=random.integers(0, 6), replace=False)).astype(np.int64)
    return Rows(ids, random.integers(-8, 9, (ids.size, SHAPE[1])).astype(np.float32))


def cut_anew(worker, store, table, pieces, by):
    """Do what a caller must between two steps: rank 0 gives the new table what the former one was."""
    states = worker.row_states(store, "t") if worker.rank == 0 else None
    wait(worker.init_rows, store, "t", SHAPE, "float32", value=table, partitions=pieces, by=by, anew=True)
    if states is not None:
        worker.load_row_states(store, "t", states)


def train(worker, rule, cuts, steps=8):
    """Train; before the steps that ``cuts`` names, cut the table otherwise. Return table and states."""
    store = worker.open_store("sync")
    worker.set_optimizer(store, RULES[rule].to_dict())
    table = initial() if worker.rank == 0 else np.zeros(SHAPE, np.float32)
    wait(worker.init_rows, store, "t", SHAPE, "float32", value=table, partitions=3)
    released = True
    for step in range(steps):
        if step in cuts:
            cut_anew(worker, store, table, *cuts[step])
            released = False
        out = []
        wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
        for ids, values in out:
            table[ids] = values
        if not released:
            worker.release_rows(store, "t")
            released = True
    states = worker.optimizer_states(store)
    assert set(states) == {"t"}
    return table, states["t"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("clients", "per_client"), [(1, 1), (2, 1), (1, 2)])
def test_a_table_that_is_cut_anew_goes_on_as_it_was(rule, clients, per_client):
    """Values and states are the same bits as without, on all workers; and the servers have it once."""
    results = []
    for cuts in [{}, {3: (5, "mod"), 4: (2, "range"), 6: (23, "mod")}]:
        network = MemoryNetwork()
        with Cluster(network.transport, clients=clients, workers_per_client=per_client, servers=2) as job:
            results.append(job.on_all(lambda worker, cuts=cuts: train(worker, rule, cuts)))
            for server in job.servers:
                assert len(server._store.tables) == 1
        assert not job.errors
    for (table, states), (expected, expected_states) in zip(results[1], results[0]):
        np.testing.assert_array_equal(table, expected)
        assert states.updates == expected_states.updates == 8
        for one, other in zip(states.arrays, expected_states.arrays):
            np.testing.assert_array_equal(one, other)


def test_what_has_travelled_is_counted_of_the_present_pieces():
    """Also while the former ones are still there, in which a plan may be looked at."""
    with Cluster(MemoryNetwork().transport, servers=2) as job:

        def call(worker):
            store = worker.open_store("sync")
            wait(worker.init_rows, store, "t", SHAPE, "float32", value=initial(), partitions=3)
            cut_anew(worker, store, initial(), 5, "mod")
            assert {key: count.pieces for key, count in worker.rows_counted(store).items()} == {"t": 5}

        job.on_all(call)
    assert not job.errors


def test_a_table_that_is_none_cannot_be_cut_anew():
    """And says so at the call."""
    with Cluster(MemoryNetwork().transport, servers=1) as job:

        def call(worker):
            store = worker.open_store("sync")
            with pytest.raises(UsageError, match="no table that could be cut anew"):
                worker.init_rows(store, "t", SHAPE, "float32", initial(), lambda _: None, anew=True)

        job.on_all(call)


@pytest.mark.parametrize("key", [7, "words", "table 7", "two words"])
@pytest.mark.parametrize("number", [1, 2, 13])
def test_names_of_tables_lead_back_to_parameters(key, number):
    assert parameter_of(name_of_table(key, number)) == key
    assert parameter_of(key) == key
