"""Averages that servers keep are in snapshots, and go on in a job of another shape."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.trained_table import SHAPE, init, rows_of, wait

from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.server_optimizers.averages import Averaged, brought_up
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

pytestmark = pytest.mark.usefixtures("short_linger")

DECAY, SIZE = 0.75, 11
SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5, wd=0.125), params={"momentum": 0.5})
SPEC = Averaged("sgd", learning_rate=0.0, decay=DECAY).around(SGD).to_dict()


def train(worker, steps, partitions):
    """Make some steps with a dense key and a table; return their averages."""
    store = worker.open_store("sync")
    worker.set_optimizer(store, SPEC)
    value = np.arange(SIZE, dtype=np.float32)
    wait(worker.init, store, "d", value.shape, value)
    init(worker, store, partitions=partitions)
    for step in steps:
        wait(worker.push_rows, store, "t", rows_of(worker, step), priority=0)
        value[:] = step + worker.rank
        wait(worker.pushpull, store, "d", 0)
    out = []
    wait(worker.pull_rows, store, "t", priority=0, out=out, ids=np.arange(SHAPE[0]))
    table = np.empty(SHAPE, np.float32)
    for ids, values in out:
        table[ids] = values
    states = worker.optimizer_states(store)
    average, last = states["t"].arrays[-2].reshape(SHAPE), states["t"].arrays[-1].reshape(-1, 1)
    return states["d"].arrays[-1], brought_up(table, average, last, states["t"].updates, DECAY), table


@pytest.mark.parametrize("first", [(1, 1), (3, 5)], ids=["to more servers", "to fewer"])
def test_a_job_goes_on_with_its_averages(tmp_path, first):
    """With other servers, slices and pieces: as if it had never ended."""
    second = (2, 4)
    ended = []
    for (servers, pieces), steps, snapshots in (
        (second, range(6), {}),
        (first, range(3), {"snapshot_dir": str(tmp_path)}),
        (second, range(3, 6), {"snapshot_dir": str(tmp_path), "resume": True}),
    ):
        shape = {"clients": 2, "servers": servers, "slice_elements": 4}
        with Cluster(MemoryNetwork().transport, **shape, **snapshots) as job:
            ended.append(job.on_all(partial(train, steps=steps, partitions=pieces))[0])
            assert not job.errors
    for whole, resumed in zip(ended[0], ended[2]):
        np.testing.assert_allclose(resumed, whole, rtol=1e-6)
    assert not np.allclose(ended[0][1], ended[0][2])
