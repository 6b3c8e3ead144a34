"""Jobs over real sockets whose large values are received where they belong, and whose sums stay exact."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.worker import exchange_buffers

SLICE, SIZE = 100_000, 250_000
"""Elements: each slice is more than one read brings."""

SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0)).to_dict()


@pytest.fixture(name="written")
def _written(monkeypatch):
    """For each large value that came: whether it was in its place already."""
    seen = []
    write = exchange_buffers.write

    def look(instruction):
        if instruction.view.nbytes >= 4 * (SIZE % SLICE):
            seen.append(instruction.payload.obj is instruction.view.obj)
        write(instruction)

    monkeypatch.setattr(exchange_buffers, "write", look)
    return seen


def train(layout, scheme, mode):
    """Let all workers push ones three times; return the last values that they got."""
    clients, workers, servers = layout
    shape = {"clients": clients, "workers_per_client": workers, "servers": servers}
    config = {"slice_elements": SLICE, "transport": scheme}
    with Cluster(lambda: SocketTransport(scheme), **shape, **config) as job:

        def run(worker):
            store = BlockingStore(worker, mode)
            store.init("w", np.zeros(SIZE, np.float32))
            if mode == "async":
                worker.set_optimizer(store.number, SGD)
            for step in range(1, 4):
                store.begin_pushpull("w", np.full(SIZE, step, np.float32)).result(30.0)
            worker.barrier()
            return store.value("w").copy()

        return job.on_all(run)


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
@pytest.mark.parametrize("layout", [(2, 1, 1), (1, 1, 2), (2, 2, 1)], ids=str)
def test_in_a_synchronous_job_they_are(layout, scheme, written):
    """All of them, from the value that the others pull first to the last sum."""
    workers = layout[0] * layout[1]
    for value in train(layout, scheme, "sync"):
        np.testing.assert_array_equal(value, 3.0 * workers)
    assert len(written) >= 3 * layout[0]
    assert all(written)


def test_where_a_server_may_be_lost_they_are_not(written):
    """What was pushed may have to be sent again, from the buffer."""
    train((2, 1, 1), "tcp", "async")
    assert written
    assert True not in written
