"""What is pending ends with an error, whatever the I/O thread was doing when it failed."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from support.one_worker import SLICE, Worker, only, server

from kvstore_mpi.errors import InternalError, MismatchError
from kvstore_mpi.records import SCHEDULER
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.instructions import Complete
from kvstore_mpi.worker.records import misfit
from kvstore_mpi.worker.state import WorkerState

SIZE = 2 * SLICE - 1


@pytest.mark.parametrize("kind", [Kind.PUSHPULL, Kind.PUSH])
def test_the_end_of_one_operation_begins_a_push_too_many(kind):
    """While the other entries of the same answer are still to be taken."""
    worker = Worker(clients=2, workers=2).init("a", 0, size=4).init("b", 1, size=4)
    for key in "ab":
        worker.submit(kind, key)
    worker.flush()
    worker.submit(kind, "a")
    worker.hears(SCHEDULER, m.BarrierAwaits(1, (2, -1), "client1.0 (host h, pid 7)"))
    entries = [(0, 0, 4, 1), (1, 0, 4, 1)]
    if kind is Kind.PUSH:
        out = worker.hears(server(), m.Applied(entries))
    else:
        out = worker.hears(server(), m.Values(entries, shared=False), ["va", "vb"])
    ended = [(each.done, type(each.error)) for each in only(Complete, out)]
    what = kind.value
    assert sorted(ended[1:]) == [(f"{what} a", MismatchError), (f"{what} b", MismatchError)]
    assert ended[0] == (f"{what} a", type(None))


def test_what_was_taken_out_of_the_state_ends_too(monkeypatch):
    """The thread has forgotten it, and nobody else would end it."""

    def fail(self, *_):
        for key in self.keys:
            key.queue.clear()
        raise ZeroDivisionError

    with Cluster(MemoryNetwork().transport, servers=1, heartbeat=0.2, peer_timeout=1.0) as cluster:
        [worker] = cluster.workers
        store, buffer = worker.open_store("sync"), np.zeros(3, np.float32)
        ended = [Future() for _ in range(3)]
        worker.init(store, "w", buffer.shape, buffer, ended[0].set_result)
        assert ended[0].result(20) is None
        monkeypatch.setattr(WorkerState, "values", fail)
        worker.pushpull(store, "w", 0, ended[1].set_result)
        worker.pull(store, "w", 0, ended[2].set_result)
        for each in ended[1:]:
            assert isinstance(each.result(20), InternalError)
        worker.flush(20)
        for call in (worker.pull, worker.pushpull):  # which nobody would carry out
            with pytest.raises(InternalError, match="I/O thread of worker 0 has failed: ZeroDivisionError"):
                call(store, "w", 0, ended[0].set_result)
        with pytest.raises(InternalError, match="I/O thread of worker 0 has failed: ZeroDivisionError"):
            worker.barrier()
        worker.flush(20)


def test_a_caller_that_fails_when_it_is_told_holds_up_nobody():
    """The others' operations end, with an error; what was waiting for the ends of all goes on."""

    def fail(_):
        raise ZeroDivisionError

    with Cluster(
        MemoryNetwork().transport, clients=2, servers=1, heartbeat=0.2, peer_timeout=1.0
    ) as cluster:
        ended = Future()
        for worker in cluster.workers:
            store, buffer = worker.open_store("sync"), np.zeros(3, np.float32)
            for key in "ab":
                worker.init(store, key, buffer.shape, buffer, lambda error: None)
            worker.flush(20)
        worker, other = cluster.workers
        worker.pushpull(store, "b", 0, ended.set_result)  # to which the other never comes
        worker.pushpull(store, "a", 0, fail)
        other.pushpull(store, "a", 0, lambda error: None)
        assert "of an operation failed: ZeroDivisionError" in str(ended.result(20))
        worker.flush(20)
        assert isinstance(worker.failure(), InternalError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_all_are_told_by_an_io_thread_that_cannot_even_fail(monkeypatch):
    def crash(*_):
        raise ZeroDivisionError

    with Cluster(MemoryNetwork().transport, servers=1, heartbeat=0.2, peer_timeout=1.0) as cluster:
        [worker] = cluster.workers
        store, buffer = worker.open_store("sync"), np.zeros(3, np.float32)
        worker.init(store, "w", buffer.shape, buffer, lambda error: None)
        worker.flush(20)
        ended = Future()
        with monkeypatch.context() as bugs:
            bugs.setattr(WorkerState, "values", crash)
            bugs.setattr(type(worker.io), "fail", crash)
            worker.pushpull(store, "w", 0, ended.set_result)
            assert isinstance(ended.result(20), InternalError)


@pytest.mark.parametrize("then", ["close", "leave"])
def test_a_worker_whose_io_thread_fails_while_it_closes_ends(then, monkeypatch):
    """With its MPI thread, and the error is told; whether it waits for its client or is about to leave."""

    def crash(*_):
        raise ZeroDivisionError

    with Cluster(
        MemoryNetwork().transport, workers_per_client=2, servers=1, heartbeat=0.2, peer_timeout=1.0
    ) as job:
        worker, other = job.workers
        monkeypatch.setattr(type(worker.io), then, crash)
        job.together([worker.close, other.close] if then == "leave" else [worker.close])
        assert "I/O thread of worker 0 has failed: ZeroDivisionError" in str(worker.failure())
        worker._mpi_thread.close(20)
        assert not worker._mpi_thread._thread.is_alive()


@pytest.mark.parametrize(
    ("lo", "hi", "fits"),
    [
        (0, SIZE, True),
        (0, SLICE, True),
        (SLICE, SIZE, True),
        (0, SIZE + 1, False),
        (0, SIZE - 1, False),
        (1, SIZE, False),
        (0, 1, False),
        (SIZE + 5, SIZE + 9, False),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_only_slices_are_taken_for_values(lo, hi, fits, shared):
    """A server that has taken up a snapshot of another shape has others."""
    worker = Worker(clients=2, workers=2).init("a", 0, size=SIZE)
    payloads = [] if shared else [bytes(4 * (hi - lo))]
    error = misfit(worker.state.keys.by_id, m.Values([(0, lo, hi, 1)], shared=shared), payloads)
    assert (error is None) is fits
    if error:
        assert f"'a' of shape ({SIZE},): a server has sent elements {lo} to {hi}" in str(error)
