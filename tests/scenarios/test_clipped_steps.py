"""Gradients of all keys, dense and rows, are scaled by one norm that the servers know together."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
from support.outcomes import check, outcomes
from support.trained_table import SHAPE, init, initial, rows_of, scatter, wait

from kvstore_mpi.errors import DeadlineError, MismatchError, PeerError, UsageError
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.server.held_steps import RANK_0
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.wire.codec import encode_message
from kvstore_mpi.wire.endpoint import Endpoint
from kvstore_mpi.wire.messages import StepNorm

pytestmark = pytest.mark.usefixtures("short_linger")

SIZES = {"a": 17, "b": 5, "frozen": 3, "empty": 0}
"""Of the keys; what has no elements is not pushed."""
BOUND, RATE, RESCALE = 3.0, 0.5, 0.25
STEPS = 4
NORM_BYTES = 32
"""Of a message with a norm: its kind, its store and a float64."""


def spec(bound=BOUND, name="sgd", **params):
    """Return an optimizer with a bound on the norm."""
    hyper = HyperParameters(lr=RATE, rescale_grad=RESCALE)
    return OptimizerSpec(
        name=name, hyper=hyper, params=params, clip_norm=bound, unpushed=["frozen"]
    ).to_dict()


def dense(name, rank, step):
    """Return a gradient of integers; in odd steps so small that nothing is clipped."""
    random = np.random.default_rng([len(name), ord(name[0]), rank, step])
    return random.integers(-9, 10, SIZES[name]).astype(np.float32) / (1 if step % 2 == 0 else 64)


def rows(worker, step):
    """Return rows of the same kind."""
    ids, values = rows_of(worker, step)
    return type(rows_of(worker, step))(ids, values / (1 if step % 2 == 0 else 64))


def train(worker, steps=STEPS, pushed=("a", "b", "t"), optimizer=None, pieces=()):
    """Train two keys and a table at once, the keys in any order; return what they are.

    With ``pieces`` the table is cut anew in each step, when all other keys of it have been pushed.
    """
    store = worker.open_store("sync")
    worker.set_optimizer(store, optimizer or spec())
    buffers = {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
    for name, buffer in buffers.items():
        wait(worker.init, store, name, buffer.shape, buffer)
    table = init(worker, store, partitions=3)
    for step in range(steps):
        ended, out = [], []
        for name in pushed[:: -1 if worker.rank and not pieces else 1]:
            done = _Done()
            ended.append(done)
            if name == "t" and pieces:
                worker.barrier()
                how = {"value": table, "partitions": pieces[step], "anew": True}
                wait(worker.init_rows, store, "t", SHAPE, "float32", **how)
            if name == "t":
                worker.pushpull_rows(store, "t", rows(worker, step), priority=0, done=done, out=out)
            else:
                buffers[name][:] = dense(name, worker.rank, step)
                worker.pushpull(store, name, 1, done)
        for done in ended:
            done.wait()
        scatter(table, out)
        if pieces:
            worker.release_rows(store, "t")
    return buffers, table


class _Done:
    """The end of an operation, which other operations may have to begin before."""

    def __init__(self):
        self._ended, self._errors = threading.Event(), []

    def __call__(self, error):
        self._errors.append(error)
        self._ended.set()

    def wait(self):
        assert self._ended.wait(20)
        if self._errors[0] is not None:
            raise self._errors[0]


def expected(workers, steps=STEPS, bound=BOUND):
    """Return what one process would have, in float64; and the factor of each step."""
    values = {name: np.zeros(SIZES[name]) for name in SIZES}
    table, factors = initial().astype(np.float64), []
    for step in range(steps):
        sums = {
            name: RESCALE * sum(dense(name, w.rank, step).astype(float) for w in workers) for name in "ab"
        }
        total = np.zeros(SHAPE)
        for worker in workers:
            ids, given = rows(worker, step)
            total[ids] += RESCALE * given
        norm = np.sqrt(sum((each**2).sum() for each in (*sums.values(), total)))
        factors.append(min(1.0, bound / norm))
        for name, each in sums.items():
            values[name] -= RATE * factors[-1] * each
        table -= RATE * factors[-1] * total
    return values, table, factors


@pytest.mark.parametrize(
    ("shape", "leaders"),
    [((1, 1, 1), "one"), ((2, 2, 2), "one"), ((1, 3, 3), "all"), ((3, 1, 2), "one")],
    ids=str,
)
def test_a_step_is_clipped_as_in_one_process(shape, leaders):
    """The norm is that of dense keys and rows together; a step below the bound is as it was."""
    clients, ranks, servers = shape
    with Cluster(
        MemoryNetwork().transport,
        clients=clients,
        workers_per_client=ranks,
        servers=servers,
        leaders=leaders,
        slice_elements=4,
    ) as job:
        trained = job.on_all(train)
        values, table, factors = expected(job.workers)
        assert min(factors) < 0.9
        assert max(factors) == 1.0
        for buffers, each in trained:
            for name, value in values.items():
                np.testing.assert_allclose(buffers[name], value, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(each, table, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(each, trained[0][1])
        assert not job.errors


@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 2, 2)], ids=str)
def test_a_table_is_cut_anew_in_the_middle_of_a_step(shape):
    """Servers that had nothing of it get some, and others lose theirs; the rest of the step is there."""
    clients, ranks, servers = shape
    sizes = {"clients": clients, "workers_per_client": ranks, "servers": servers, "step_timeout": 10.0}
    with Cluster(MemoryNetwork().transport, **sizes) as job:
        trained = job.on_all(lambda worker: train(worker, pieces=(1, 5, 1, 2)))
        values, table, _ = expected(job.workers)
        for buffers, each in trained:
            np.testing.assert_allclose(each, table, rtol=1e-6, atol=1e-6)
            for name, value in values.items():
                np.testing.assert_allclose(buffers[name], value, rtol=1e-6, atol=1e-6)
        assert not job.errors


def test_only_norms_travel_between_a_sum_and_its_update(monkeypatch):
    """In each step a number from each server to rank 0 and one back; servers send each other nothing."""
    send, sent = Endpoint.send, []

    def noting(self, peer, message, payloads=(), **rest):
        num_bytes = len(encode_message(message)) + sum(memoryview(each).nbytes for each in payloads)
        sent.append((self._identity.node, peer, type(message), num_bytes))
        send(self, peer, message, payloads, **rest)

    monkeypatch.setattr(Endpoint, "send", noting)
    with Cluster(MemoryNetwork().transport, clients=2, workers_per_client=2, servers=3) as job:
        job.on_all(train)
    norms = [(source, to, num_bytes) for source, to, kind, num_bytes in sent if kind is StepNorm]
    servers = [NodeId(Role.SERVER, index) for index in range(3)]
    ways = {(server, RANK_0): STEPS for server in servers} | {(RANK_0, server): STEPS for server in servers}
    assert Counter((source, to) for source, to, _ in norms) == ways
    assert max(num_bytes for _, _, num_bytes in norms) <= NORM_BYTES
    assert [each for each in sent if each[0] in servers and each[1] in servers] == []


def test_repeated_jobs_have_the_same_bits():
    """In whichever order pushes and norms come."""
    ended = []
    for _ in range(3):
        with Cluster(MemoryNetwork().transport, clients=2, servers=3, slice_elements=2) as job:
            ended.append(job.on_all(train)[0])
    for buffers, table in ended[1:]:
        np.testing.assert_array_equal(table, ended[0][1])
        for name, buffer in buffers.items():
            np.testing.assert_array_equal(buffer, ended[0][0][name])


def test_a_pull_after_a_push_has_the_step_in_it():
    """Also of rows: it is answered when the norm is known and the rows are updated, not before."""
    with Cluster(MemoryNetwork().transport, servers=2) as job:
        (worker,) = job.workers
        store = worker.open_store("sync")
        worker.set_optimizer(store, spec())
        value = np.zeros(17, np.float32)
        wait(worker.init, store, "a", value.shape, value)
        table = init(worker, store, partitions=2)
        pushed, pulled, last, out = _Done(), _Done(), _Done(), []
        worker.push_rows(store, "t", rows(worker, 0), priority=0, done=pushed)
        worker.pull_rows(store, "t", priority=0, done=pulled, out=out)
        value[:] = dense("a", 0, 0)
        worker.push(store, "a", 0, last)
        for done in (pushed, pulled, last):
            done.wait()
        scatter(table, out)
        ids, given = rows(worker, 0)
        norm = np.sqrt((dense("a", 0, 0).astype(float) ** 2).sum() + (given.astype(float) ** 2).sum())
        after = initial().astype(np.float64)
        after[ids] -= RATE * min(1.0, BOUND / (RESCALE * norm)) * RESCALE * given
        np.testing.assert_allclose(table, after, rtol=1e-6)


def test_a_key_that_is_never_pushed_is_named():
    """Nothing hangs: the deadline's error says for which key the others wait, and what to do."""

    def run(worker):
        train(worker, pushed=("a", "t"))

    ended = outcomes((2, 1, 2), run, step_timeout=1.0)
    for each in ended:
        assert isinstance(each, (DeadlineError, PeerError)), each
    told = [each for each in ended if "for key 'b'" in str(each)]
    assert told, ended
    assert "without" in str(told[0])


def test_a_worker_that_finishes_early_ends_the_next_step():
    """The others learn it at once, and not after the deadline of a step that waits for a norm."""

    def run(worker):
        train(worker, 1 + worker.rank)

    ended = outcomes((2, 1, 1), run, step_timeout=60.0)
    check(ended[1], MismatchError, "unequal numbers of batches")


@pytest.mark.parametrize(
    ("optimizer", "mode"),
    [(spec(), "async"), (spec(name="elastic", alpha=0.1), "sync")],
    ids=["async", "center"],
)
def test_where_no_step_has_all_gradients_it_is_refused(optimizer, mode):
    """With words that say what to do instead."""
    with Cluster(MemoryNetwork().transport, servers=1) as job:
        (worker,) = job.workers
        store = worker.open_store(mode)
        with pytest.raises(UsageError, match="clip on the workers instead"):
            worker.set_optimizer(store, optimizer)
