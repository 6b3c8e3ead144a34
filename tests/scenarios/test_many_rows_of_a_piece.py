"""More rows of one piece of a table than 64 MB, in one step."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.trained_table import SGD, wait

from kvstore_mpi.records import Growth, Rows
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.sockets import SocketTransport

ROWS, WIDTH = 300_000, 64
"""77 MB."""


@pytest.mark.parametrize("growth", [None, Growth()])
def test_they_are_pushed_and_pulled(growth):
    """Of a table that grows when it is pushed to, and of one whose initial value is one piece, too."""
    value = None if growth else np.ones((ROWS, WIDTH), np.float32)
    ids = np.arange(ROWS)
    with Cluster(partial(SocketTransport, "tcp"), servers=1) as cluster:
        [worker] = cluster.workers
        store = worker.open_store("sync")
        worker.set_optimizer(store, SGD)
        shape = (10**8 if growth else ROWS, WIDTH)
        wait(worker.init_rows, store, "t", shape, "float32", value=value, partitions=1, growth=growth)
        out = []
        wait(worker.pull_rows, store, "t", priority=0, out=out, ids=ids)
        [before] = out
        gradient = np.full((ROWS, WIDTH), 2.0, np.float32)
        wait(worker.push_rows, store, "t", Rows(ids, gradient), priority=0)
        out = []
        wait(worker.pull_rows, store, "t", priority=0, out=out, ids=ids)
        [after] = out
    np.testing.assert_array_equal(after.ids, ids)
    np.testing.assert_allclose(before.values - after.values, SGD["hyper"]["lr"] * gradient, rtol=1e-5)
