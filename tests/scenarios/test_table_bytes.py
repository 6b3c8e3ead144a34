"""The bytes of tables in a whole job of real threads, beside those that are predicted."""

from __future__ import annotations

import numpy as np
import pytest
from support.counted import Counted, finished

from kvstore_mpi.hybrid.cost import Cluster as Machines
from kvstore_mpi.hybrid.cost import Pull, Table, Wire, rows_servers, share_of
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.records import Rows
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.values.coding import coding_of

ROWS, WIDTH, STEPS = 20_000, 16, 10
PIECES = 4
TABLE = Table(ROWS, 4 * WIDTH, PIECES)
SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={}).to_dict()


def ids_of(worker, step):
    """Draw the ids of a batch by Zipf's law."""
    rng = np.random.default_rng([worker, step])
    chances = 1 / np.arange(1, ROWS + 1)
    return np.unique(rng.choice(ROWS, 1500, p=chances / chances.sum())).astype(np.int64)


@pytest.mark.parametrize(
    ("workers", "servers", "pull", "compress"),
    [
        *((*job, pull, None) for job in [(3, 2), (2, 1), (1, 2)] for pull in Pull),
        (2, 1, Pull.CHANGED, "bfloat16"),
        (1, 2, Pull.OWN, "float16"),
    ],
)
def test_the_bytes_of_rows_are_those_that_are_predicted(workers, servers, pull, compress):
    """Of the busiest process, to within 3 percent, acknowledgements and barriers and all."""
    steps = [[ids_of(worker, step) for worker in range(workers)] for step in range(STEPS)]
    machines = Machines(workers, servers, colocated=False)
    union = np.mean([np.unique(np.concatenate(step)).size for step in steps]) / ROWS
    machine = np.mean([ids.size for step in steps for ids in step]) / ROWS
    density = Density(machine, machine, union)
    share = share_of(PIECES, machines)
    table = TABLE if compress is None else TABLE._replace(row_bytes=2 * WIDTH)
    predicted = rows_servers(table, density, machines, Wire(), share=share, pull=pull).num_bytes
    assert measured(workers, servers, steps, pull, compress) == pytest.approx(predicted, rel=0.03)


def measured(workers, servers, steps, pull, compress):
    """Train, and return the bytes of the busiest process in a step."""
    network, transports, begun = MemoryNetwork(), [], []

    def transport():
        transports.append(Counted(network.transport()))
        return transports[-1]

    def train(worker):
        store = worker.open_store("sync")
        worker.set_optimizer(store, {**SGD, "compress": coding_of(compress)})
        value = np.zeros((ROWS, WIDTH), np.float32) if worker.rank == 0 else None
        finished(worker.init_rows, store, "t", (ROWS, WIDTH), "float32", value=value, partitions=PIECES)
        finished(worker.pull_rows, store, "t", priority=0, out=[])
        worker.barrier()
        if worker.rank == 0:
            begun.extend((each.sent, each.received) for each in transports[1:])
        worker.barrier()
        for step in steps:
            ids = step[worker.rank]
            rows = Rows(ids, np.ones((ids.size, WIDTH), np.float32))
            if pull is Pull.CHANGED:
                finished(worker.pushpull_rows, store, "t", rows, priority=0, out=[])
            else:
                finished(worker.push_rows, store, "t", rows, priority=0)
                finished(worker.pull_rows, store, "t", priority=0, out=[], ids=ids)
        worker.barrier()

    with Cluster(transport, clients=workers, servers=servers) as cluster:
        cluster.on_all(train)
        ends = [(each.sent, each.received) for each in transports[1:]]
    # The first is the scheduler's.
    return max(sum(end) - sum(begin) for end, begin in zip(ends, begun)) / STEPS
