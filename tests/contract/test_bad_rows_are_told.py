"""A rank that pushes rows that a table has not: it is told so, and the others what it has done."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import PeerLostError, UsageError  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

SHAPE = (10, 3)


def begin(worker):
    store = KVStoreMPI("sync", worker)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
    store.init("w", mx.nd.ones(SHAPE).tostype("row_sparse"))
    return store


def one_row(number):
    return mx.nd.sparse.row_sparse_array((np.ones((1, SHAPE[1]), np.float32), [number]), shape=SHAPE)


def look_up(store):
    out = mx.nd.sparse.zeros("row_sparse", SHAPE)
    store.row_sparse_pull("w", out=out, row_ids=mx.nd.array([2, 3]))


def go_on(store):
    look_up(store)
    assert engine.wait_until_idle(20)
    store.barrier()


@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize(
    "how",
    [
        {"servers": 1, "lookups": "together"},
        {"servers": 1, "lookups": "each"},
        {"servers": 0},
    ],
    ids=str,
)
def test_a_row_that_is_not_there(faulty, how):
    """Nobody is said to have called something else, and nobody waits for a deadline."""
    mistake = "key 'w': the rows of the pushed array go from 50 to 50, but there are 10 rows"
    with Cluster(MemoryNetwork().transport, workers_per_client=2, step_timeout=60.0, **how) as job:
        stores = [begin(worker) for worker in job.workers]
        for store in stores:
            look_up(store)
        stores[1 - faulty].push("w", one_row(5))
        stores[faulty].push("w", one_row(50))
        ended = {}
        for rank, store in enumerate(stores):
            with pytest.raises((UsageError, PeerLostError)) as ended[rank]:
                go_on(store)
    with contextlib.suppress(mx.MXNetError):  # arrays have the errors, and MXNet tells whoever waits next
        mx.nd.waitall()
    assert mistake == str(ended[faulty].value)
    other = ended[1 - faulty].value
    assert isinstance(other, PeerLostError)
    assert str(other).startswith(f"client0.{faulty} (")
    assert str(other).endswith(f") cannot go on: {mistake}")
