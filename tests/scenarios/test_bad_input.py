"""What users do wrong: one clear error that names key and worker, within the deadline, never a hang."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import (
    ConfigurationError,
    DeadlineError,
    MismatchError,
    PeerError,
    UnsupportedError,
    UsageError,
)
from kvstore_mpi.node import make_worker
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import DEADLINE_S, Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.wire import io_loop

SHORT = {
    "heartbeat": 0.1,
    "peer_timeout": 0.5,
    "connect_timeout": 3.0,
    "step_timeout": 0.8,
    "finish_timeout": 1.0,
    "slice_elements": 8,
    "transport": "tcp",
}
SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0)).to_dict()


@pytest.fixture(autouse=True)
def _short_linger(monkeypatch):
    """Processes of a job that has failed wait for nobody."""
    monkeypatch.setattr(io_loop, "LINGER_S", 0.2)


def outcomes(layout, program, **config):
    """Run a program on every worker, close them all, and return what each ended with.

    That is the error of the program, or the one that only closing showed, or nothing.
    """
    clients, workers, servers = layout
    network = MemoryNetwork()
    job = Cluster(
        network.transport,
        clients=clients,
        workers_per_client=workers,
        servers=servers,
        **{**SHORT, **config},
    )

    def guarded(worker):
        error = None
        try:
            program(worker)
        except Exception as raised:  # noqa: BLE001  compared by the test
            error = raised
        worker.close()
        return error or worker.failure()

    ended = job.on_all(guarded)
    job.close()
    return ended


def check(error, kind, *parts):
    """Check the class of an error, and what its message names."""
    assert type(error) is kind, repr(error)
    for part in parts:
        assert part in str(error), f"{part!r} is not in: {error}"


# --- workers that do not fit together ---


@pytest.mark.parametrize("layout", [(2, 1, 1), (1, 2, 0), (1, 2, 1)])
@pytest.mark.parametrize(
    ("value", "what"),
    [(np.zeros((3, 4), np.float32), "(3, 4)"), (np.zeros((4, 3), np.float64), "float64")],
    ids=["shape", "dtype"],
)
def test_another_shape_or_dtype(layout, value, what):
    """The worker that deviates from rank 0 is told at init."""

    def run(worker):
        store = BlockingStore(worker)
        store.init("fc1_weight", np.zeros((4, 3), np.float32) if worker.rank == 0 else value)

    ended = outcomes(layout, run)
    check(
        ended[1],
        MismatchError,
        "'fc1_weight'",
        what,
        "client0.0",
        "client1.0" if layout[0] == 2 else "client0.1",
    )
    assert ended[0] is None or isinstance(ended[0], PeerError)


def test_another_mode():
    """A store that is sync on one worker and async on another."""

    def run(worker):
        BlockingStore(worker, "sync" if worker.rank == 0 else "async").init("w", np.zeros(3))

    ended = outcomes((2, 1, 1), run)
    check(ended[1], MismatchError, "'w'", "mode", "client1.0", "same order")


@pytest.mark.parametrize("layout", [(2, 1, 1), (1, 2, 0)])
def test_a_key_that_rank_0_does_not_have(layout):
    """The sets of keys differ: the others cannot wait for rank 0 for ever."""

    def run(worker):
        store = BlockingStore(worker)
        store.init("common", np.zeros(3))
        if worker.rank == 1:
            store.init("extra", np.zeros(3))

    ended = outcomes(layout, run, connect_timeout=1.0, step_timeout=60.0, finish_timeout=3.0)
    check(
        ended[1],
        MismatchError,
        "'extra'",
        "client1.0" if layout[0] == 2 else "client0.1",
        "sets of keys differ",
    )


def test_a_key_that_only_rank_0_has():
    """Its first push waits for the other client, which is named."""

    over = threading.Event()

    def run(worker):
        if worker.rank == 0:
            store = BlockingStore(worker)
            store.init("extra", np.zeros(3))
            with pytest.raises(DeadlineError, match=r"'extra'.*push of client 1; client 0 has pushed"):
                store.push("extra", np.zeros(3))
            over.set()
        assert over.wait(DEADLINE_S)

    ended = outcomes((2, 1, 1), run, step_timeout=0.5)
    assert isinstance(ended[0], DeadlineError)


# --- unequal numbers of operations ---


def _batches(counts, kind="pushpull"):
    """Return a program that pushes as often as is said for each rank."""

    def run(worker):
        store = BlockingStore(worker)
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
    """The member, which has finished, is told what its leader waits for; the leader is not left alone."""
    ended = outcomes((1, 2, servers), _batches((3, 2)))
    check(ended[1], MismatchError, "'w'", "client0.1", "number 3", "unequal numbers of batches")
    assert isinstance(ended[0], PeerError), repr(ended[0])
    assert "'w'" in str(ended[0]) or "client0.1" in str(ended[0])


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


# --- calls that cannot work ---


@pytest.mark.parametrize("call", ["push", "pull", "pushpull"])
def test_before_init(call):
    """Refused on the spot, with the key's name; the worker goes on."""

    def run(worker):
        store = BlockingStore(worker)
        with pytest.raises(UsageError, match=f"{call} of key 'w' by worker {worker.rank} before its init"):
            getattr(store, f"begin_{call}")("w", *([0] if call != "pull" else []))
        store.init("w", np.zeros(3))

    assert outcomes((1, 1, 1), run) == [None]


@pytest.mark.parametrize("shape", [(3,), (4, 2)])
def test_init_twice(shape):
    """Refused on the spot, with both shapes if they differ."""

    def run(worker):
        store = BlockingStore(worker)
        store.init("w", np.zeros(3))
        with pytest.raises(UsageError, match="duplicate init of key 'w'") as caught:
            store.init("w", np.zeros(shape))
        assert (str(shape) in str(caught.value)) or shape == (3,)

    assert outcomes((1, 1, 1), run) == [None]


def test_async_without_an_optimizer():
    """The first push is refused, and says what to do."""

    def run(worker):
        store = BlockingStore(worker, "async")
        store.init("w", np.zeros(3))
        store.push("w", np.ones(3))

    for error in outcomes((2, 1, 1), run):
        check(error, UsageError, "'w'", "set_optimizer")


def test_async_without_servers():
    """Refused at once."""

    def run(worker):
        with pytest.raises(UsageError, match="--servers"):
            worker.open_store("async")
        with pytest.raises(UnsupportedError, match="no servers"):
            worker.set_optimizer(BlockingStore(worker).number, SGD)

    assert outcomes((1, 1, 0), run) == [None]


def test_an_unknown_optimizer():
    """Refused by the servers; the caller may choose another one."""

    def run(worker):
        store = BlockingStore(worker)
        wrong = OptimizerSpec(name="sgdd", hyper=HyperParameters(lr=1.0)).to_dict()
        with pytest.raises(UsageError, match=r"'sgdd'.*server0"):
            worker.set_optimizer(store.number, wrong)
        worker.set_optimizer(store.number, SGD)
        store.init("w", np.zeros(3))
        np.testing.assert_array_equal(store.pushpull("w", np.ones(3)), -np.ones(3))

    assert outcomes((1, 1, 1), run) == [None]


def test_an_optimizer_for_integers():
    """The push is refused with the key's name and type."""

    def run(worker):
        store = BlockingStore(worker)
        worker.set_optimizer(store.number, SGD)
        store.init("steps", np.zeros(3, np.int64))
        store.pushpull("steps", np.ones(3, np.int64))

    (error,) = outcomes((1, 1, 1), run)
    check(error, UsageError, "'steps'", "int64", "optimizer")


def test_a_type_that_cannot_travel():
    """Refused on the spot."""

    def run(worker):
        with pytest.raises(UnsupportedError, match="complex64"):
            BlockingStore(worker).init("w", np.zeros(3, np.complex64))

    assert outcomes((1, 1, 1), run) == [None]


def test_everything_after_a_failure_fails_at_once():
    """With the same error: operations, requests and barriers."""

    def run(worker):
        store = BlockingStore(worker, "async")
        store.init("w", np.zeros(3))
        with pytest.raises(UsageError) as first:
            store.push("w", np.ones(3))
        for call in (
            lambda: store.pull("w"),
            lambda: store.init("v", np.zeros(3)),
            lambda: worker.set_optimizer(store.number, SGD),
            lambda: worker.optimizer_states(store.number),
            worker.barrier,
        ):
            with pytest.raises(UsageError) as later:
                call()
            assert str(later.value) == str(first.value)
        worker.set_hyper(store.number, HyperParameters(lr=1.0).to_dict())
        worker.flush(1.0)

    (error,) = outcomes((1, 1, 1), run, step_timeout=60.0)
    check(error, UsageError, "set_optimizer")


# --- workers that are not there ---


class _Incomplete(Cluster):
    """A job whose last client never comes."""

    def _start_workers(self, clients, per_client):
        return super()._start_workers(clients - 1, per_client)


def test_a_worker_that_never_joins():
    """The others are told who is missing, and so is the scheduler's log."""
    network = MemoryNetwork()
    with pytest.raises(DeadlineError, match=r"missing: client1\.0\. .*did their script create the store"):
        _Incomplete(network.transport, clients=2, servers=1, **{**SHORT, "connect_timeout": 1.0})


def test_another_number_of_ranks_than_the_job_has():
    """An mpiexec of another MPI starts processes that are all alone."""
    config = NodeConfig(num_clients=2, num_workers=4, num_servers=1, scheduler="memory://0", job_file="x")
    with pytest.raises(ConfigurationError, match=r"client 0 has 1 MPI ranks.*clients of 2.*doctor"):
        make_worker(config, memory_communicators(1)[0], MemoryNetwork().transport())


def test_a_worker_that_waits_for_the_rest_of_its_client_for_ever():
    """The wait for the others' end has a deadline and names the worker."""

    def run(worker):
        if worker.rank == 1:
            store = BlockingStore(worker)
            with pytest.raises(PeerError):  # rank 0 gives up first
                store.init("w", np.zeros(3))

    ended = outcomes((1, 2, 1), run, finish_timeout=0.5, connect_timeout=5.0, step_timeout=5.0)
    check(ended[0], DeadlineError, "worker0", "0.5 s", "rest of its client")
