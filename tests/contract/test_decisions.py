"""What one rank decides for all, and what it cannot: two workers of two ranks in one process."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

mx = pytest.importorskip("mxnet")

from mxnet.gluon import nn  # noqa: E402
from support.model_parts import loss_of, make_chain  # noqa: E402

from kvstore_mpi.adapters.mxnet import decisions  # noqa: E402
from kvstore_mpi.adapters.mxnet.parts import pipeline  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.mxnet import PipelineTrainer  # noqa: E402
from kvstore_mpi.planner.cluster import NO_LINK  # noqa: E402
from kvstore_mpi.planner.cuts import Handling  # noqa: E402

pytestmark = pytest.mark.mxnet

WORKERS, RANKS = 2, 2
WAIT_S = 60.0


class Turn:
    """One thread at a time has it: MXNet is not made to be called by several at once."""

    def __init__(self):
        """Let the first one begin."""
        self._lock = threading.Lock()

    def __enter__(self):
        """Take the turn."""
        self._lock.acquire()

    def __exit__(self, *_):
        """Let another one have it."""
        self._lock.release()

    def wait_for(self, box):
        """Return what comes, while others have their turns; what comes late is an error."""
        self._lock.release()
        try:
            return box.get(timeout=WAIT_S)
        finally:
            self._lock.acquire()


class Links:
    """Joins the ranks of one worker."""

    def __init__(self, rank, boxes, turn):
        """Share boxes with the other rank."""
        self.rank, self._boxes, self._turn = rank, boxes, turn

    def broadcast(self, data, root):
        """See ``comm.links``."""
        if self.rank != root:
            return self._turn.wait_for(self._boxes[self.rank])
        for rank, each in enumerate(self._boxes):
            if rank != root:
                each.put(data)
        return data


@pytest.fixture
def on_all_ranks(monkeypatch):
    """Return what calls something on all ranks, each in a thread, and returns what came of it."""
    here, turn, measure = threading.local(), Turn(), pipeline.measure_parts
    between = [[queue.Queue() for _ in range(RANKS)] for _ in range(WORKERS)]

    def measured(*what):
        call.measured = True
        return measure(*what)

    def of_worker_0(data):  # by a store, which has threads of its own, in jobs
        rank = here.links.rank
        if here.worker:
            return turn.wait_for(between[here.worker][rank])
        for boxes in between[1:]:
            boxes[rank].put(data)
        return data

    monkeypatch.setattr(decisions, "_of_worker_0", of_worker_0)
    monkeypatch.setattr(pipeline, "own_links", lambda: here.links)
    monkeypatch.setattr(pipeline, "measure_parts", measured)
    monkeypatch.setattr(pipeline, "measure_link", lambda _: (NO_LINK, Handling()))

    def call(what):
        def run(worker, links):
            here.worker, here.links = worker, links
            with turn:
                try:
                    return what(worker, links)
                except UsageError as error:
                    return error

        within = [[queue.Queue() for _ in range(RANKS)] for _ in range(WORKERS)]
        ranks = [(worker, rank) for worker in range(WORKERS) for rank in range(RANKS)]
        with ThreadPoolExecutor(len(ranks)) as threads:
            came = {
                (worker, rank): threads.submit(run, worker, Links(rank, within[worker], turn))
                for worker, rank in ranks
            }
            return {who: each.result(2 * WAIT_S) for who, each in came.items()}

    call.measured = False
    return call


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
