"""What a worker says has travelled of a dense key, beside what the servers' transports have counted."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.counted import Counted, finished

from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.values.coding import coding_of

SIZE, STEPS, SERVERS = 50_000, 6, 2
SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={}).to_dict()
ELASTIC = OptimizerSpec(name="elastic", hyper=HyperParameters(lr=1.0), params={"alpha": 0.1}).to_dict()


def train(worker, spec, calls, between):
    """Make some steps; return what is known before the first, at its end, and what another key has."""
    store = worker.open_store("sync")
    worker.set_optimizer(store, spec)
    value = np.zeros(SIZE, np.float32)
    finished(worker.init, store, "d", value.shape, value)
    finished(worker.pull, store, "d", 0)
    nothing = worker.travelled(store, "d")
    worker.barrier()
    between(worker.rank)
    worker.barrier()
    for step in range(STEPS):
        value[:] = np.random.default_rng([worker.rank, step]).normal(size=SIZE)
        for call in calls:
            finished(getattr(worker, call), store, "d", 0)
    worker.barrier()
    return nothing, worker.travelled(store, "d"), worker.travelled(store, "of another name")


@pytest.mark.parametrize(
    ("shape", "spec", "calls"),
    [
        ((1, 1, "one"), SGD, ("pushpull",)),
        ((3, 1, "one"), SGD, ("push", "pull")),
        ((2, 2, "one"), SGD, ("pushpull",)),
        ((2, 2, "all"), SGD, ("pushpull",)),
        ((1, 3, "all"), SGD, ("push", "pull")),
        ((2, 2, "one"), ELASTIC, ("push", "pull")),
        ((2, 2, "all"), ELASTIC, ("pushpull",)),
        ((2, 1, "one"), {**SGD, "compress": coding_of("bfloat16")}, ("pushpull",)),
        ((2, 2, "all"), {**ELASTIC, "compress": coding_of("int8")}, ("pushpull",)),
    ],
    ids=lambda each: f"{each['name']} {each['compress']}" if isinstance(each, dict) else str(each),
)
def test_what_travels_of_a_dense_key_is_counted(shape, spec, calls):
    """By rank 0 of each client, to within 3 percent, which are heads, announcements and barriers."""
    clients, ranks, leaders = shape
    transports, begun = [], []

    def transport():
        transports.append(Counted(network.transport()))
        return transports[-1]

    def total():
        return sum(each.sent + each.received for each in transports[1 : 1 + SERVERS])  # the servers'

    def between(rank):
        if rank == 0:
            begun.append(total())

    network = MemoryNetwork()
    job = {"clients": clients, "workers_per_client": ranks, "servers": SERVERS, "leaders": leaders}
    with Cluster(transport, **job, slice_elements=3000) as cluster:
        told = cluster.on_all(partial(train, spec=spec, calls=calls, between=between))
        counted = (total() - begun[0]) / STEPS
        assert not cluster.errors
    assert all(before is None and other is None for before, _, other in told)
    assert all((known is None) == (rank % ranks > 0) for rank, (_, known, _) in enumerate(told))
    assert sum(known for _, known, _ in told if known is not None) == pytest.approx(counted, rel=0.03)
