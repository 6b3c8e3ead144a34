"""What users do wrong: one clear error that names key and worker, within the deadline, never a hang."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.outcomes import SHORT, check, outcomes

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import (
    ConfigurationError,
    DeadlineError,
    MismatchError,
    PeerError,
    PeerLostError,
    UnsupportedError,
    UsageError,
)
from kvstore_mpi.node import make_worker
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import DEADLINE_S, Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

pytestmark = pytest.mark.usefixtures("short_linger")

SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0)).to_dict()


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

    ended = outcomes(layout, run, connect_timeout=2.0, step_timeout=60.0, finish_timeout=6.0)
    check(
        ended[1],
        MismatchError,
        "'extra'",
        "client1.0" if layout[0] == 2 else "client0.1",
        "sets of keys differ",
    )


def test_a_client_that_was_restarted():
    """What it says of a synchronous store is a consequence of its first end, and no wrong use."""

    def run(worker):
        BlockingStore(worker).init("w", np.zeros(3))

    for error in outcomes((2, 1, 1), run, incarnation=1):
        check(error, PeerLostError, "was restarted", "synchronous")


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


@pytest.mark.parametrize("layout", [(1, 1, 1), (3, 1, 1), (2, 2, 1)])
def test_an_optimizer_for_integers(layout, caplog):
    """The push is refused with the key's name and type, to all clients that have pushed; logged once."""

    def run(worker):
        store = BlockingStore(worker)
        worker.set_optimizer(store.number, SGD)
        store.init("steps", np.zeros(3, np.int64))
        try:
            store.pushpull("steps", np.ones(3, np.int64))
        finally:
            told.wait(DEADLINE_S)  # nobody hears of it by the end of another one

    told = threading.Barrier(layout[0] * layout[1])
    for error in outcomes(layout, run):
        check(error, UsageError, "'steps'", "int64", "optimizer")
    [said] = [each for each in caplog.records if "failed" in each.getMessage() and "server" in each.name]
    assert said.levelname == "ERROR"
    assert "server0: update 1 of key 'steps' by sgd failed: key 'steps' is int64" in said.getMessage()


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
        if worker.rank == 0:
            worker.close()
            over.set()
        assert over.wait(DEADLINE_S)

    over = threading.Event()
    ended = outcomes((1, 2, 1), run, finish_timeout=0.5, connect_timeout=5.0, step_timeout=5.0)
    check(ended[0], DeadlineError, "worker0", "0.5 s", "rest of its client")
