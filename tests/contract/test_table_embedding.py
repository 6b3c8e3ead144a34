"""Embeddings whose table is on the servers only: over fake workers, and real servers in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI, TableEmbedding  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.hybrid.density import WINDOW_STEPS  # noqa: E402
from kvstore_mpi.records import RowInit  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.testing.mxnet_contract import run_together  # noqa: E402
from kvstore_mpi.testing.mxnet_rows import after_all  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402
from kvstore_mpi.values.row_init import initial_rows  # noqa: E402

pytestmark = pytest.mark.mxnet

V, D = 40, 3
BEGIN = RowInit("uniform", -1, 1, 5)
STEPS = 8


def start():
    return initial_rows(BEGIN, np.arange(V), D, np.dtype(np.float32))


def sgd():
    return mx.optimizer.create("sgd", learning_rate=0.25)


def batch(rank, step):
    """Return ids of a worker's batch: any shape, with repetitions, and none in some steps."""
    random = np.random.default_rng([rank, step])
    return random.integers(0, V, (0 if (rank + step) % 5 == 4 else 4, 3))


def gradient_of(ids, weights):
    """Return the gradient of sum(weights * rows ** 2) / 2 by row."""
    gradient = np.zeros_like(weights)
    np.add.at(gradient, ids.reshape(-1), weights[ids.reshape(-1)])
    return gradient


def expected(num_workers, steps=STEPS):
    weights = start()
    for step in range(steps):
        pushed = [gradient_of(batch(rank, step), weights) for rank in range(num_workers)]
        weights -= 0.25 / 4 * sum(pushed)
    return weights


def trained(open_store, finals, *, staleness=0, ahead=False):
    """Train a table on the sum of the squares of its rows, and note what it has become."""
    kv = open_store()
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", D, num_rows=V, init=BEGIN, staleness=staleness)
    yield kv
    for step in range(STEPS):
        ids = batch(kv.rank, step)
        with mx.autograd.record():
            rows = table(mx.nd.array(ids, dtype=np.int64) if ids.size else ids)
            loss = (rows * rows).sum() / 2 if ids.size else None
        with mx.util.np_shape(True):
            assert rows.shape == (*ids.shape, D)
        if ahead:
            table.prefetch(batch(kv.rank, step + 1))
        if ids.size:
            loss.backward()
        yield after_all(kv)
        table.step(4)
        yield after_all(kv)
    finals.append(table(np.arange(V)).asnumpy())
    yield kv


def check_trained(workers, num_workers, mode="sync", **how):
    finals, openers = [], [partial(KVStoreMPI, mode, worker) for worker in workers]
    run_together(partial(trained, finals=finals, **how), openers)
    for final in finals:
        np.testing.assert_allclose(final, expected(num_workers), rtol=1e-5)


@pytest.mark.parametrize(
    ("mode", "num_workers", "ahead"),
    [
        *(("sync", number, ahead) for number in (1, 2, 3) for ahead in (False, True)),
        # What async workers ask for ahead need not have the pushes of others.
        *(("async", number, ahead) for number, ahead in ((1, False), (1, True), (2, False))),
    ],
)
def test_training_is_that_of_a_table_on_the_worker(make_group, mode, num_workers, ahead):
    """Without staleness, with rows of the next batch asked for ahead or not."""
    group = make_group(num_workers, num_servers=1)
    check_trained(group.workers, num_workers, mode, ahead=ahead)
    pulls = [call for call in group.calls if call.name == "pull_rows" and call.rank == 0]
    assert len(pulls) <= STEPS + 1 + ahead  # what was asked for ahead in the last step is not all


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_over_real_servers(mode):
    """Two workers, two servers, a network in memory."""
    with Cluster(MemoryNetwork().transport, clients=2, servers=2) as job:
        check_trained(job.workers, 2, mode, ahead=mode == "sync")
        assert engine.wait_until_idle(60)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_plan_has_the_table(ranks):
    """With the rows that a step touches, of several ranks when they have added their counts up."""
    with Cluster(MemoryNetwork().transport, workers_per_client=ranks, servers=1) as job:
        stores = [KVStoreMPI("sync", each) for each in job.workers]
        for kv in stores:
            kv.set_optimizer(sgd())
        tables = [TableEmbedding(kv, "t", D, num_rows=V) for kv in stores]
        assert stores[0].plan().keys[0].alpha_rank is None
        for _ in range(WINDOW_STEPS):
            for table in tables:
                with mx.autograd.record():
                    table(np.arange(V // 4)).backward()
                table.step(1)
        assert engine.wait_until_idle(60)
        [key] = stores[0].plan().keys
        assert (key.route.value, key.form.value, key.rows) == ("servers", "rows", V)
        assert (key.alpha_rank, key.alpha_machine) == (0.25, 0.25)


def counted(lookups, **how):
    """Train on two ranks of one client; return the bytes of rows that they were sent."""
    shape = {"workers_per_client": 2, "servers": 2, "lookups": lookups}
    finals = []

    def run(worker):
        for _ in trained(partial(KVStoreMPI, "sync", worker), finals, **how):
            pass

    with Cluster(MemoryNetwork().transport, **shape) as job:
        job.on_all(run)
        assert engine.wait_until_idle(60)
        for final in finals:
            np.testing.assert_allclose(final, expected(2), rtol=1e-5)
        return sum(worker.rows_counted(0)["t"].received for worker in job.workers)


@pytest.mark.parametrize("ahead", [False, True])
def test_ranks_of_a_client_ask_together(ahead):
    """In training; at the end each asks for all, as one that validates does. A rank may have no ids."""
    assert counted("together", ahead=ahead) < counted("each", ahead=ahead)


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_rank_that_validates_asks_alone(staleness):
    """Between what all of them say that they will need, and its use."""

    def run(worker):
        kv = KVStoreMPI("async", worker)
        kv.set_optimizer(sgd())
        table = TableEmbedding(kv, "t", D, num_rows=V, init=BEGIN, staleness=staleness)
        for step in range(4):
            if worker.rank == step % 2:
                table.prefetch(np.arange(step))
                np.testing.assert_array_equal(table(np.array([9, 8])).asnumpy(), start()[[9, 8]])
            else:
                table.prefetch(np.array([3]))
            for ids in (np.array([2, 3]), np.array([[4]])):  # the second time for what nobody has said
                with mx.autograd.record():
                    loss = table(ids).sum()
                loss.backward()
            with pytest.raises(UsageError):
                table(np.array([-1]))
            table.step(1)
        worker.barrier()
        found = table(np.arange(5, 7)).asnumpy()
        np.testing.assert_array_equal(found, start()[5:7])
        if not staleness:
            np.testing.assert_allclose(table([2, 4]).asnumpy(), start()[[2, 4]] - 4 * 2 * 0.25)

    with Cluster(MemoryNetwork().transport, workers_per_client=2, servers=1, lookups="together") as job:
        job.on_all(run)
        assert engine.wait_until_idle(60)
    assert not job.errors


def test_which_rows_are_asked_for_together(make_group, monkeypatch):
    """Those of recorded passes and prefetches, also after the step; and what nobody needs is not kept."""
    [worker] = make_group(1, num_servers=1).workers
    monkeypatch.setattr(type(worker), "unites_lookups", True)
    calls, pull_rows = [], worker.pull_rows

    def recording(*args, together, **how):
        calls.append((args[5].tolist(), together))
        pull_rows(*args, **how)

    monkeypatch.setattr(worker, "pull_rows", recording)
    kv = KVStoreMPI("sync", worker)
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", D, num_rows=V, init=BEGIN)

    def trained_on(*ids):
        calls.clear()
        with mx.autograd.record():
            for each in ids:
                table(np.array(each, np.int64))
        mx.nd.waitall()
        return calls.copy()

    assert trained_on([1], [], [2, 1]) == [([1], True), ([], True), ([2], True)]
    table.prefetch(np.array([3]))
    table.step(1)
    mx.nd.waitall()
    assert calls[-1] == ([3], True)
    assert trained_on([3, 4], [5]) == [([4], False), ([5], True)]
    calls.clear()
    table(np.array([6])).wait_to_read()
    assert calls == [([6], False)]
    assert trained_on([]) == [([], True)]
    assert not table._coming


def test_what_was_asked_for_ahead_waits_for_no_rank():
    """All ranks have met for it when they said what they would need."""
    went = Event()

    def run(worker):
        kv = KVStoreMPI("sync", worker)
        kv.set_optimizer(sgd())
        table = TableEmbedding(kv, "t", D, num_rows=V, init=BEGIN)
        table.prefetch(np.array([3]))
        if worker.rank == 1:
            assert went.wait(20)
        with mx.autograd.record():
            table(np.array([3]))
        went.set()

    with Cluster(MemoryNetwork().transport, workers_per_client=2, servers=1, lookups="together") as job:
        job.on_all(run)
        assert engine.wait_until_idle(60)


def asked(group):
    return [call.name for call in group.calls if call.name in {"pull_rows", "push_rows"}]


def test_when_rows_are_asked_for(make_group):
    """With staleness at once, before this batch's push; without, as soon as that is queued."""
    for staleness, order in (
        (1, ["pull_rows", "pull_rows", "push_rows"]),
        (0, ["pull_rows", "push_rows"] * 2),
    ):
        group = make_group(1, num_servers=1)
        kv = KVStoreMPI("sync", group.workers[0])
        kv.set_optimizer(sgd())
        table = TableEmbedding(kv, "t", D, num_rows=V, staleness=staleness)
        with mx.autograd.record():
            table(np.array([1, 2])).backward()
        table.prefetch(np.array([2, 3]))
        table.step(1)
        with mx.autograd.record():
            table(np.array([3, 2])).backward()
        table.step(1)
        mx.nd.waitall()
        assert asked(group) == [*order[:3], *(["push_rows"] if staleness else order[3:])]


def test_rows_that_are_there_do_not_wait_for_pushes(make_group, monkeypatch):
    """A push that is still on its way keeps only the rows waiting that are asked for after it."""
    [worker] = make_group(1, num_servers=1).workers
    kv = KVStoreMPI("sync", worker)
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", D, num_rows=V, init=BEGIN, staleness=1)
    with mx.autograd.record():
        table(np.array([1, 2])).backward()
    table.prefetch(np.array([2, 3]))
    go_on, push = Event(), worker.push_rows

    def held_up(*arguments):
        assert go_on.wait(60)
        push(*arguments)

    def look_up():
        with mx.autograd.record():
            return table(np.array([2, 3]))

    monkeypatch.setattr(worker, "push_rows", held_up)
    table.step(1)
    with ThreadPoolExecutor(1) as threads:
        try:
            found = threads.submit(look_up).result(30).asnumpy()
        finally:
            go_on.set()
    np.testing.assert_array_equal(found, start()[[2, 3]])
    mx.nd.waitall()


def test_rows_of_this_worker_are_used_again(make_group):
    """With a staleness of two, a row of every batch is asked for at every third step, and stays so long."""
    group = make_group(1, num_servers=1)
    kv = KVStoreMPI("sync", group.workers[0])
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", D, num_rows=V, init=RowInit("constant", 1), staleness=2)
    seen = []
    for _ in range(7):
        with mx.autograd.record():
            rows = table(np.array([5]))
            rows.backward()
        seen.append(float(rows[0, 0].asscalar()))
        table.step(1)
    mx.nd.waitall()
    assert seen == [1, 1, 1, 0.25, 0.25, 0.25, -0.5]
    assert asked(group).count("pull_rows") == 3


def test_an_evaluation_has_fresh_rows_and_training_its_old_ones(make_group):
    """What is exported lacks no step, and training has the same bits with evaluations and without."""
    kv = KVStoreMPI("sync", make_group(1, num_servers=1).workers[0])
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", D, num_rows=V, init=RowInit("constant", 1), staleness=2)
    used = []
    for number in range(5):
        assert (table(np.array([9, 5]))[:, 0].asnumpy() == [1, 1 - number * 0.25]).all()
        with mx.autograd.record():
            rows = table(np.array([5]))
            rows.backward()
        used.append(float(rows[0, 0].asscalar()))
        table.step(1)
    assert used == [1, 1, 1, 0.25, 0.25]


@pytest.mark.parametrize("staleness", [0, 2])
def test_behind_a_barrier_rows_are_asked_for_once(make_group, staleness):
    """By the first use of them in training."""
    group = make_group(1, num_servers=1)
    kv = KVStoreMPI("async", group.workers[0])
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", D, num_rows=V, staleness=staleness)
    for _ in range(2):
        for _ in range(3):
            with mx.autograd.record():
                table(np.array([3, 5]))
        kv.barrier()
    assert asked(group).count("pull_rows") == 2


@pytest.mark.parametrize(("staleness", "kept"), [(0, 0), (2, 2)])
def test_an_evaluation_keeps_no_rows(make_group, staleness, kept):
    """It may look up more than memory holds, or for ever while others train; what training uses stays."""
    group = make_group(1, num_servers=1)
    kv = KVStoreMPI("async", group.workers[0])
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", D, num_rows=V, staleness=staleness)
    with mx.autograd.record():
        table(np.array([3, 5])).backward()
    table.step(1)
    mx.nd.waitall()
    del group.calls[:]
    for _ in range(3):
        table(np.arange(20))
    assert len(table._cache) == kept
    assert asked(group).count("pull_rows") == 3


@pytest.mark.parametrize("staleness", [0, 2])
def test_behind_a_barrier_rows_are_as_others_left_them(staleness):
    """A worker without steps in common with others keeps no rows from before."""

    def open_table(worker):
        kv = KVStoreMPI("async", worker)
        kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=1.0))
        return kv, TableEmbedding(kv, "t", 1, init=RowInit("constant", 1), staleness=staleness)

    with Cluster(MemoryNetwork().transport, clients=2, servers=1) as job, ThreadPoolExecutor(2) as threads:
        (reader, read), (writer, written) = threads.map(open_table, job.workers)
        assert read([3]).asscalar() == 1
        with mx.autograd.record():
            written([3]).backward()
        written.step(4)
        ended = threads.submit(writer.barrier)
        reader.barrier()
        ended.result(60)
        assert read([3]).asscalar() == written([3]).asscalar() == 0.75
        assert engine.wait_until_idle(60)
