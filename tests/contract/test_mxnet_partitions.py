"""How users say into how many pieces tables are cut, and tables that are cut anew while jobs train."""

from __future__ import annotations

import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from support.often import ONE_OF_MANY

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402
from support.hybrid_jobs import hybrid_jobs  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI, TableEmbedding  # noqa: E402
from kvstore_mpi.adapters.mxnet.tables import live_cuts  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.hybrid import partitions  # noqa: E402
from kvstore_mpi.records import Retention, RowInit  # noqa: E402

pytestmark = pytest.mark.mxnet

ROWS, WIDTH = 40, 3


@pytest.fixture
def job():
    """Make jobs, and end them."""
    with hybrid_jobs() as make:
        yield make


def make_net(weights="dense"):
    mx.random.seed(3)
    net = gluon.nn.Sequential()
    for number in range(2):
        # Named: a Trainer sorts by name, and of two nets one may have 8 and 9, the other 9 and 10.
        prefix = f"embedding{number}_"
        if weights == "dense":
            net.add(gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=True, prefix=prefix))
        else:
            net.add(gluon.contrib.nn.SparseEmbedding(ROWS, WIDTH, prefix=prefix))
    net.initialize(mx.init.Uniform(0.5))
    return net


def train(stores, steps, weights="dense", rule="adam"):
    """Train the workers in turn; return the tables of the first."""
    nets = [make_net(weights) for _ in stores]
    trainers = [
        gluon.Trainer(net.collect_params(), rule, {"learning_rate": 0.02}, kvstore=store)
        for net, store in zip(nets, stores)
    ]
    for step in range(steps):
        for rank, (net, trainer) in enumerate(zip(nets, trainers)):
            ids = np.random.default_rng([step, rank]).integers(0, ROWS, 6)
            ids = mx.nd.array(ids, dtype="float32")
            with autograd.record():
                loss = ((net[0](ids) * net[1](ids)) ** 2).sum()
            loss.backward()
            trainer.step(1)
    mx.nd.waitall()
    rows = mx.nd.arange(ROWS)
    return [
        parameter.row_sparse_data(rows).asnumpy() if weights == "sparse" else parameter.data().asnumpy()
        for parameter in nets[0].collect_params().values()
    ]


def cuts_of(store):
    return [(each.partitions, each.layout) for each in store.plan().keys]


def test_tables_are_cut_as_the_user_says(job):
    """By name or pattern of a parameter; others as they are anyway."""
    store = KVStoreMPI("sync", job().workers[0])
    store.partitioner("embedding0*", 5, by="range")
    store.partitioner("nothing*", 7)
    train([store], 1)
    assert cuts_of(store) == [(5, "row_ranges"), (1, "rows")]


def test_keys_have_names_as_well(job):
    """Where no Trainer knows parameters; the exact name counts before a pattern."""
    store = KVStoreMPI("sync", job().workers[0])
    store.partitioner("*", 3)
    store.partitioner(7, 4)
    store.init([7, 8], [mx.nd.ones((9, 2)).tostype("row_sparse")] * 2)
    assert cuts_of(store) == [(4, "rows"), (3, "rows")]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"pieces": 0}, "whole number above 0, not 0"),
        ({"pieces": "many"}, "'auto' or a whole number above 0, not 'many'"),
        ({"pieces": True}, "not True"),
        ({"pieces": 2, "by": "hash"}, "by 'mod' or by 'range', not by 'hash'"),
    ],
)
def test_other_cuts_are_refused(job, how, text):
    """In the call, by name."""
    store = KVStoreMPI("sync", job().workers[0])
    with pytest.raises(UsageError, match=rf"partitioner\('words'\): .*{text}"):
        store.partitioner("words", **how)


def test_workers_of_an_async_store_have_no_step_in_common(job, caplog):
    """So nothing can be looked for there: the log says so, and it is cut as it is anyway."""
    caplog.set_level(logging.INFO, "kvstore_mpi.mxnet")
    store = KVStoreMPI("async", job(servers=2).workers[0])
    store.partitioner("*", "auto", by="range")
    store.set_optimizer(mx.optimizer.create("sgd"))
    store.init(["a", "b"], [mx.nd.ones((rows, 2)).tostype("row_sparse") for rows in (20_000, 9)])
    assert cuts_of(store) == [(2, "row_ranges"), (1, "row_ranges")]
    assert "table 'a': as many pieces as without partitioner" in caplog.text
    assert "no step in common" in caplog.text
    assert not store._tables.cuts._tables


def test_it_is_called_before_the_first_step_of_a_trainer(job):
    """Which knows tables by the names of their parameters, and numbers them."""
    store = KVStoreMPI("sync", job().workers[0])
    train([store], 1)
    with pytest.raises(UsageError, match=r"'embedding1_weight' is there already"):
        store.partitioner("embedding1*", 2)
    store.partitioner("decoder*", 2)


def test_it_is_called_before_the_key_is_there_and_for_no_more_pieces_than_rows(job):
    """The key is named."""
    store = KVStoreMPI("sync", job().workers[0])
    table = mx.nd.ones((9, 2)).tostype("row_sparse")
    store.init(["a", "dense"], [table, mx.nd.ones(2)])
    with pytest.raises(UsageError, match="'dense' is there already"):
        store.partitioner("dense", 2)
    with pytest.raises(UsageError, match="is there already"):
        store.partitioner("a", 2)
    with pytest.raises(UsageError, match=r"partitioner\('\*'\): 'a' is there already"):
        store.partitioner("*", 2)
    store.partitioner("b", 10)
    with pytest.raises(UsageError, match=r"'b'.*9 rows cannot be cut into 10 partitions"):
        store.init("b", table)


@pytest.mark.parametrize(
    ("workers", "kind"),
    [
        (2, ("dense", "none")),
        (1, ("sparse", "bfloat16")),
        *(
            pytest.param(*each, marks=ONE_OF_MANY)
            for each in [
                (1, ("dense", "none")),
                (1, ("sparse", "none")),
                (2, ("sparse", "none")),
                (2, ("dense", "bfloat16")),
            ]
        ),
    ],
)
def test_the_number_of_pieces_is_looked_for_while_a_job_trains(job, caplog, monkeypatch, workers, kind):
    """Each number is tried for as many steps, then the fastest is kept; values are as without."""
    weights, compress = kind
    caplog.set_level(logging.INFO, "kvstore_mpi.mxnet")
    monkeypatch.setattr(partitions, "WARM_UP_STEPS", 2)
    for module in (partitions, live_cuts):  # the samples of each
        monkeypatch.setattr(module, "SAMPLE_STEPS", 4)
    steps = 6 * partitions.steps_until_sample() + 3
    fixed, searched = (
        [KVStoreMPI("sync", worker) for worker in job(clients=workers).workers] for _ in range(2)
    )
    for store in fixed + searched:
        store.set_gradient_compression({"type": compress})
    expected = train(fixed, steps, weights)
    for store in searched:
        store.partitioner("*embedding*", "auto")
        # 2, 4 and 8 pieces take 3, 2 and 4 ms, and one piece is not tried: two are slower than four. Two
        # are tried after each of the others.
        store._tables.cuts._clock = clock_of(store)
    tables = train(searched, steps, weights)
    assert [cuts_of(store) for store in searched] == [[(4, "rows"), (4, "rows")]] * workers
    assert "cut into 4 pieces from now on; steps took 2: 0.003 s, 4: 0.002 s, 8: 0.004 s" in caplog.text
    for one, other in zip(tables, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("how", "staleness"),
    [
        ({}, 0),
        ({"workers_per_client": 2, "lookups": "together"}, 2),
        *(
            pytest.param(*each, marks=ONE_OF_MANY)
            for each in [
                ({}, 2),
                ({"clients": 2}, 0),
                ({"clients": 2}, 2),
                ({"workers_per_client": 2, "lookups": "together"}, 0),
            ]
        ),
    ],
)
def test_pieces_of_an_embedding_are_looked_for_likewise(job, caplog, monkeypatch, how, staleness):
    """Rows are the same bits as without, on all workers, also those that wait to be admitted."""
    caplog.set_level(logging.INFO, "kvstore_mpi.mxnet")
    monkeypatch.setattr(partitions, "WARM_UP_STEPS", 2)
    for module in (partitions, live_cuts):
        monkeypatch.setattr(module, "SAMPLE_STEPS", 4)
    steps = 6 * partitions.steps_until_sample() + 3
    expected = train_embeddings(job(**how).workers, steps, staleness)
    searched = job(**how)
    rows = train_embeddings(searched.workers, steps, staleness, "auto")
    assert "cut into 4 pieces from now on; steps took 2: 0.003 s, 4: 0.002 s, 8: 0.004 s" in caplog.text
    np.testing.assert_array_equal(rows, expected)
    assert [len(server._store.tables) for server in searched.servers] == [1, 1]


def train_embeddings(workers, steps, staleness, pieces=2):
    """Train a table on the servers, a worker in a thread; return its rows as each sees them."""

    def run(store):
        store.partitioner("words", pieces)
        store.set_optimizer(mx.optimizer.create("adam", learning_rate=0.02))
        begin = {"init": RowInit("uniform", -1, 1, 5), "retention": Retention(admit_after=2, max_age=99)}
        table = TableEmbedding(store, "words", WIDTH, staleness=staleness, **begin)
        if pieces == "auto":
            store._tables.cuts._clock = clock_of(store)
        batches = np.random.default_rng(store.rank).integers(0, ROWS, (steps + 1, 6))
        for ids, following in itertools.pairwise(batches):
            with autograd.record():
                loss = (table(ids) ** 2).sum()
            table.prefetch(following)
            loss.backward()
            table.step(1)
        mx.nd.waitall()
        store.barrier()
        found = table(np.arange(ROWS)).asnumpy()
        if pieces == "auto":
            assert cuts_of(store) == [(4, "rows")]
        return found

    stores = [KVStoreMPI("sync", each) for each in workers]
    with ThreadPoolExecutor(len(stores)) as pool:
        return list(pool.map(run, stores))


def test_times_wait_until_the_key_that_they_are_added_up_in_is_there():
    """Its initial value would otherwise be written over them, and all workers would cut by zeros."""
    created, pushed = [], []
    worker = SimpleNamespace(
        exchange_buffer=np.zeros,
        init=lambda *args, **_: created.append(args[-1]),
        pushpull=lambda *args: pushed.append(cuts._sums.copy()),
    )
    exchange = SimpleNamespace(worker=worker, open_further=lambda _mode: 1)
    cuts = live_cuts.LiveCuts(exchange, "sync", None, None, itertools.count().__next__)
    cuts._make_sums()
    for left in reversed(range(partitions.steps_until_sample())):
        cuts._measure(lambda _error: None, is_sample=not left)
    assert pushed == []
    created[0](None)
    np.testing.assert_array_equal(pushed, [np.ones(partitions.SAMPLE_STEPS)])


def clock_of(store):
    """Return a clock that makes steps as long as their number of pieces has it."""
    now = itertools.count()
    passed = [0.0]

    def clock():
        if next(now):
            passed[0] += {2: 0.003, 4: 0.002, 8: 0.004}[store._tables.cuts._search.pieces]
        return passed[0]

    return clock
