"""Workers that do not call the same: those that called too much, or something else, are told at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.outcomes import check, outcomes

from kvstore_mpi.errors import DeadlineError, MismatchError, PeerError
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import DEADLINE_S

SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0)).to_dict()

pytestmark = pytest.mark.usefixtures("short_linger")


def _batches(counts, kind="pushpull", mode="sync"):
    """Return a program that pushes as often as is said for each rank."""

    def run(worker):
        store = BlockingStore(worker, mode)
        if mode == "async":
            worker.set_optimizer(store.number, SGD)
        store.init("w", np.zeros(20))
        for _ in range(counts[worker.rank]):
            getattr(store, kind)("w", np.ones(20))

    return run


@pytest.mark.parametrize("kind", ["push", "pushpull"])
@pytest.mark.parametrize("counts", [(3, 2), (2, 3)])
def test_clients_with_unequal_numbers_of_batches(counts, kind):
    """The one with more batches is told who has finished, before any deadline."""
    ended = outcomes((2, 1, 1), _batches(counts, kind), step_timeout=60.0)
    more, fewer = (0, 1) if counts[0] > counts[1] else (1, 0)
    check(ended[more], MismatchError, "'w'", f"client{fewer}.0", "unequal numbers of batches", "2 times")
    assert ended[fewer] is None


@pytest.mark.parametrize("layout", [(2, 1, 1), (2, 2, 2), (1, 2, 1), (1, 2, 0)])
@pytest.mark.parametrize("kind", ["push", "pushpull"])
def test_unequal_batches_before_a_barrier(layout, kind):
    """The ones with fewer batches wait at the barrier: the one with more is told at once."""
    clients, per_client, servers = layout
    last = clients * per_client - 1
    train = _batches([2] * last + [3], kind)

    def run(worker):
        train(worker)
        worker.barrier(settled=True)

    # In pure MPI the others see the end of a process by MPI, which is not here.
    ended = outcomes(layout, run, step_timeout=60.0 if servers else 5.0)
    check(
        ended[last], MismatchError, "waits at barrier 1", "2 pushes", "push 3", "unequal numbers of batches"
    )
    assert all(isinstance(each, (PeerError, MismatchError)) for each in ended)


@pytest.mark.parametrize("mode", ["async", "client"])
@pytest.mark.parametrize("counts", [(1, 1, 3, 2), (0, 0, 0, 1), (2, 2, 1, 1)])
def test_unequal_batches_within_a_client_before_a_barrier(counts, mode):
    """Clients push as often as they like, and the ranks of each equally often: the other one is told."""
    train = _batches(counts, mode=mode)

    def run(worker):
        train(worker)
        worker.barrier(settled=True)

    ended = outcomes((2, 2, 1), run, step_timeout=60.0)
    if counts[2] == counts[3]:
        assert set(ended) == {None}
        return
    more, fewer = (2, 3) if counts[2] > counts[3] else (3, 2)
    surplus = f"push or lookup {counts[more]}", "unequal numbers of batches"
    check(ended[more], MismatchError, f"client1.{fewer - 2}", "waits at barrier 1", *surplus)
    assert isinstance(ended[fewer], PeerError)


@pytest.mark.parametrize("layout", [(2, 2, 2), (1, 2, 0)])
def test_equal_batches_between_barriers(layout):
    """However the workers hurry, nobody is told of a push too many."""

    def run(worker):
        store = BlockingStore(worker)
        store.init("w", np.zeros(20))
        for step in range(30):
            for _ in range(step % 3):
                store.pushpull("w", np.ones(20))
            worker.barrier(settled=True)

    ended = outcomes(layout, run, step_timeout=60.0)
    assert set(ended) == {None}


def test_pushes_on_another_thread_than_the_barrier():
    """A worker that waits there may still make the push that another one has made already."""

    def run(worker):
        store = BlockingStore(worker)
        store.init("w", np.zeros(20))
        with ThreadPoolExecutor(1) as other:
            for _ in range(30):
                store.pushpull("w", np.ones(20))
                if worker.rank == 0:
                    waits = other.submit(worker.barrier)
                    store.pushpull("w", np.ones(20))
                    waits.result(DEADLINE_S)
                else:
                    store.pushpull("w", np.ones(20))
                    worker.barrier()

    assert set(outcomes((2, 1, 1), run, step_timeout=60.0)) == {None}


@pytest.mark.parametrize("servers", [0, 1])
def test_a_member_with_too_many_batches(servers):
    """Its leader has finished: the member is told at once."""
    ended = outcomes((1, 2, servers), _batches((2, 3)), step_timeout=60.0)
    check(ended[1], MismatchError, "'w'", "client0.1", "leader", "number 3", "unequal numbers of batches")


@pytest.mark.parametrize("servers", [0, 1])
def test_a_member_with_too_few_batches(servers):
    """Its leader waits for it: the leader is told at once, and the member is not left alone."""
    ended = outcomes((1, 2, servers), _batches((3, 2)), step_timeout=60.0)
    check(ended[0], MismatchError, "'w'", "rank 1", "number 3", "unequal numbers of batches")
    assert isinstance(ended[1], PeerError | DeadlineError), repr(ended[1])  # whichever comes first


def test_a_barrier_that_runs_out():
    """It says what it waited for; that is the worker's error before anybody can see it give up."""

    def run(worker):
        if worker.rank == 0:
            with pytest.raises(
                DeadlineError, match=r"worker 0 on .* waited 0\.5 s for barrier 1 of all workers"
            ) as raised:
                worker.barrier()
            errors.extend((worker.failure(), raised.value))
            over.set()
        assert over.wait(DEADLINE_S)

    errors = []
    over = threading.Event()
    ended = outcomes((2, 1, 1), run, step_timeout=0.5)
    assert errors[0] is errors[1]
    check(ended[0], DeadlineError, "barrier 1")


def test_unequal_numbers_of_barriers():
    """Whoever waits alone is told who has finished."""

    def run(worker):
        for _ in range(2 - worker.rank):
            worker.barrier()

    ended = outcomes((2, 1, 1), run, step_timeout=60.0)
    check(ended[0], MismatchError, "barrier 2", "client1.0", "equally often")


@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.parametrize("servers", [0, 1])
def test_unequal_numbers_of_barriers_within_a_client(servers, waits):
    """The other rank has finished, and stays for this one."""

    def run(worker):
        for _ in range(2 if worker.rank == waits else 1):
            worker.barrier()

    # In pure MPI the first rank sees the end of the other by MPI, which is not here.
    ended = outcomes((1, 2, servers), run, step_timeout=60.0, finish_timeout=60.0 if servers else 5.0)
    check(ended[waits], MismatchError, f"client0.{1 - waits}", "waits at barrier 2", "equally often")


@pytest.mark.parametrize("layout", [(1, 2, 0), (1, 2, 1), (2, 2, 1)])
def test_a_key_that_rank_0_lacks_when_it_has_finished_before_its_client(layout):
    """Who waits for it is told at once."""

    def run(worker):
        if worker.rank:
            BlockingStore(worker).init("w", np.zeros(20))

    # In pure MPI nobody tells rank 0 here that the other is no more.
    finish = 60.0 if layout[2] else 5.0
    deadlines = {"step_timeout": 60.0, "connect_timeout": 60.0, "finish_timeout": finish}
    for ended in outcomes(layout, run, **deadlines)[1:]:
        check(ended, MismatchError, "'w'", "not by rank 0", "client0.0", "has finished without it")


@pytest.mark.parametrize("clients", [1, 2])
def test_an_optimizer_that_rank_0_does_not_give_when_it_has_finished_before_its_client(clients):
    """Who waits for it is told at once."""

    def run(worker):
        if worker.rank:
            worker.set_optimizer(worker.open_store("sync"), SGD)

    for ended in outcomes((clients, 2, 1), run, step_timeout=60.0, finish_timeout=60.0)[1:]:
        check(ended, MismatchError, "client0.0", "has finished without having given an optimizer")


@pytest.mark.parametrize("first", ["push", "pushpull"])
def test_push_against_pushpull_inside_a_client(first):
    """All workers of a client must call the same; the message names key, worker and both calls."""
    second = "pushpull" if first == "push" else "push"

    def run(worker):
        store = BlockingStore(worker)
        store.init("w", np.zeros(20))
        getattr(store, first if worker.rank == 0 else second)("w", np.ones(20))

    ended = outcomes((1, 2, 1), run)
    check(ended[1], MismatchError, "'w'", "client0.1", f"called {second}", f"called {first}")
    assert isinstance(ended[0], PeerError), repr(ended[0])


def test_push_against_pushpull_between_clients():
    """Is no mistake: each client gets what it asked for."""

    def run(worker):
        store = BlockingStore(worker)
        store.init("w", np.zeros(20))
        if worker.rank == 0:
            store.push("w", np.ones(20))
        else:
            np.testing.assert_array_equal(store.pushpull("w", np.ones(20)), np.full(20, 2.0))

    assert outcomes((2, 1, 1), run) == [None, None]
