"""What one rank decides for all, and what it cannot: two workers of two ranks in one process."""

from __future__ import annotations

import queue
import threading
from functools import partial
from types import SimpleNamespace

import pytest

mx = pytest.importorskip("mxnet")

from mxnet.gluon import nn  # noqa: E402
from support.model_parts import loss_of, make_chain  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI, decisions, engine, pipeline  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.mxnet import PipelineTrainer  # noqa: E402
from kvstore_mpi.planner.cluster import NO_LINK  # noqa: E402
from kvstore_mpi.planner.cuts import Handling  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

WORKERS, RANKS = 2, 2
WAIT_S = 60.0


class Links:
    """Joins the ranks of one worker; what comes late is an error, as over MPI."""

    def __init__(self, rank, queues):
        """Share queues with the other rank."""
        self.rank, self._queues = rank, queues

    def broadcast(self, data, root):
        """See ``comm.links``."""
        if self.rank != root:
            return self._queues[self.rank].get(timeout=WAIT_S)
        for rank, each in enumerate(self._queues):
            if rank != root:
                each.put(data)
        return data


@pytest.fixture
def on_all_ranks(monkeypatch):
    """Return what calls something on all ranks at once, each in a thread, and returns what came of it."""
    here, all_here, measure = threading.local(), threading.Barrier(WORKERS * RANKS), pipeline.measure_parts

    def measured(*what):
        call.measured = True
        # Each waits for all that MXNet has under way, and so for the stores of ranks that are ahead.
        graph = measure(*what)
        all_here.wait(WAIT_S)
        return graph

    owners = [Cluster(MemoryNetwork().transport, workers_per_client=WORKERS) for _ in range(RANKS)]
    monkeypatch.setattr(decisions, "KVStoreMPI", lambda mode: KVStoreMPI(mode, here.worker))
    monkeypatch.setattr(pipeline, "own_links", lambda: here.links)
    monkeypatch.setattr(pipeline, "measure_parts", measured)
    monkeypatch.setattr(pipeline, "measure_link", lambda _: (NO_LINK, Handling()))

    def call(what):
        came = {}

        def run(worker, links):
            here.worker, here.links = owners[links.rank].workers[worker], links
            try:
                came[worker, links.rank] = what(worker, links)
            except UsageError as error:
                came[worker, links.rank] = error

        queues = [[queue.Queue() for _ in range(RANKS)] for _ in range(WORKERS)]
        ranks = [
            (worker, Links(rank, queues[worker])) for worker in range(WORKERS) for rank in range(RANKS)
        ]
        owners[0].together([partial(run, *each) for each in ranks])
        return came

    call.measured = False
    yield call
    assert engine.wait_until_idle(60)
    for each in owners:
        each.close()
        assert not each.errors


def test_the_first_rank_of_the_first_worker_decides_for_all(on_all_ranks):
    """It alone is asked, and all have its answer."""
    asked = []

    def decide(worker, links):
        def numbers():
            asked.append((worker, links.rank))
            return [10 * worker + links.rank + 7, 300]

        return decisions.decided_by_first(numbers, worker, links)

    came = on_all_ranks(decide)
    assert [*came.values()] == [(7, 300)] * 4
    assert asked == [(0, 0)]


def shared():
    """Return layers of which the first and the last have one weight."""
    first = nn.Dense(8, in_units=8, prefix="first_")  # all ranks have names like these
    net = nn.HybridSequential()
    net.add(first, nn.Dense(8, in_units=8), nn.Dense(8, in_units=8, params=first.params))
    net.initialize()
    return net


def single():
    """Return one layer."""
    net = nn.HybridSequential()
    net.add(nn.Dense(8))
    net.initialize()
    return net


@pytest.mark.parametrize(
    ("make", "limit", "text"),
    [
        (single, 0, "2 stages cannot be made of 1 layers: give --model-parallel 1 or less"),
        (shared, 0, "because layers that share a weight stay together"),
        (make_chain, 100, "no cut into 2 stages fits into 100 bytes for each"),
    ],
)
def test_what_cannot_be_cut_is_an_error_on_all_ranks(on_all_ranks, make, limit, text):
    """The same everywhere, and nobody waits for a cut that the first rank has not found."""
    nets = {(worker, rank): make() for worker in range(WORKERS) for rank in range(RANKS)}
    sample = mx.nd.ones((4, 1, 8, 8) if make is make_chain else (4, 8))

    def train(worker, links):
        # Of one rank alone, as if the others had another opinion of what fits.
        limits = {"memory_limit": limit if worker == links.rank == 0 else 0}
        store = SimpleNamespace(model_parallel=RANKS, model_rank=links.rank, rank=worker)
        net = nets[worker, links.rank]
        PipelineTrainer(net, loss_of, "sgd", kvstore=store, sample=sample, **limits)

    came = on_all_ranks(train)
    assert len(came) == 4
    assert on_all_ranks.measured == bool(limit)  # not for what no times can mend
    assert len({str(error) for error in came.values()}) == 1
    assert text in str(came[1, 1])
