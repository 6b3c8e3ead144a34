"""Hybrid jobs whose script has a Module, or calls the store itself: no Trainer says what there will be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.hybrid_jobs import hybrid_jobs, keys_on  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.hybrid.density import WINDOW_STEPS  # noqa: E402
from kvstore_mpi.testing import mxnet_sparse_training as training  # noqa: E402

pytestmark = pytest.mark.mxnet

STEPS, ROWS, BATCH = 4, 11, 6


@pytest.fixture
def job():
    """Make jobs of one client with two servers, and end them."""
    with hybrid_jobs() as make:
        yield make


def on_servers_of(store):
    """Return the keys that go to servers, as the plan says."""
    return {each.key for each in store.plan().keys if each.route.value == "servers"}


def in_turn(generators):
    """Let the workers of a job go on step by step; return what each of them gave last."""
    for found in zip(*generators):  # noqa: B007
        pass
    return found


def machine_steps(kv, ranks):
    """Train a factorization machine with the samples of some workers; give the weights at the end."""
    batches = [training.counted_words(step, ranks) for step in range(STEPS)]
    module = training.make_module(training.factorization_machine, kv, batches[0])
    yield None
    yield from training.module_steps(module, batches)


@pytest.mark.parametrize("dense", ["auto", "servers"])
def test_a_module_s_dense_keys_are_its_workers(job, dense):
    """A factorization machine of row-sparse weights comes to the weights of one process."""
    cluster = job(workers_per_client=2, dense=dense)
    stores = [KVStoreMPI("sync", each) for each in cluster.workers]
    found = in_turn(machine_steps(store, range(rank, rank + 1)) for rank, store in enumerate(stores))
    *_, expected = machine_steps(None, range(2))
    for each in found:
        training.compare(each, expected)
    tables = {"linear_weight", "factors_weight"}
    assert keys_on(cluster) == (tables if dense == "auto" else {*tables, "bias"})


def test_what_is_saved_stays_on_the_servers(job, tmp_path, caplog):
    """Dense keys, and a table that the workers would have after a window of dense gradients; told once."""
    caplog.set_level("INFO", "kvstore_mpi.mxnet")
    cluster = job(workers_per_client=4, servers=1, dense="auto", snapshot_dir=str(tmp_path))
    stores = [KVStoreMPI("sync", each) for each in cluster.workers]
    gradient = mx.nd.sparse.row_sparse_array((np.ones((8, 16), np.float32), range(8)), shape=(8, 16))

    def train(store):
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        for key in ("t", "u"):
            store.init(key, mx.nd.zeros((8, 16)))
            store.push(key, gradient)
        store.init("d", mx.nd.zeros(3))
        for _ in range(WINDOW_STEPS + 1):
            store.push("t", gradient)
        store.barrier()

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(train, stores))
    assert on_servers_of(stores[0]) == {"t", "u", "d"} <= keys_on(cluster)
    assert caplog.text.count("tables and dense keys stay on the servers") == 1


def make_module(kv, num_samples, optimizer="sgd"):
    """Make a net whose first key is dense, and another one a dense weight with row-sparse gradients."""
    scale = mx.sym.broadcast_mul(mx.sym.var("factor_weight", shape=(1, 1)), mx.sym.var("numbers"))
    rows = mx.sym.Embedding(
        mx.sym.var("data"), input_dim=ROWS, output_dim=4, sparse_grad=True, name="words"
    )
    scores = mx.sym.FullyConnected(mx.sym.broadcast_mul(scale, rows), num_hidden=3, name="scores")
    net = mx.sym.SoftmaxOutput(scores, name="softmax")
    module = mx.mod.Module(net, data_names=["numbers", "data"])
    module.bind(
        [("numbers", (num_samples, 1)), ("data", (num_samples,))], [("softmax_label", (num_samples,))]
    )
    mx.random.seed(7)
    module.init_params(mx.init.Uniform(0.5))
    options = {"learning_rate": 0.5, "momentum": 0.9}
    if optimizer != "sgd":
        optimizer, options = optimizer(rescale_grad=1 / BATCH, **options), {}
    module.init_optimizer(kvstore=kv, optimizer=optimizer, optimizer_params=options)
    return module


def steps_of(module, ranks):
    """Train with the samples of some workers; give the weights at the end."""
    for step in range(STEPS):
        parts = [np.random.default_rng([step, rank]) for rank in ranks]
        data, labels = zip(*((each.integers(0, ROWS, 3), each.integers(0, 3, 3)) for each in parts))
        ids = mx.nd.array(np.concatenate(data))
        batch = mx.io.DataBatch(
            [1 + ids.reshape((-1, 1)) / ROWS, ids], [mx.nd.array(np.concatenate(labels))]
        )
        module.forward_backward(batch)
        module.update()
        yield None  # for the others' gradients
    yield dict(sorted(module.get_params()[0].items()))


@pytest.mark.parametrize(
    ("optimizer", "on_servers"),
    [
        ("sgd", {"words_weight"}),
        # It knows nothing of the net, whose dense keys are initialised before the first push of rows.
        (mx.optimizer.SGD, {"factor_weight", "words_weight", "scores_weight", "scores_bias"}),
    ],
    ids=["by name", "an object"],
)
def test_the_symbol_says_that_gradients_are_row_sparse(job, optimizer, on_servers):
    """To an optimizer that the Module makes of a name; to any, the weights are those of one process."""
    cluster = job(workers_per_client=2)
    modules = [make_module(KVStoreMPI("sync", each), 3, optimizer) for each in cluster.workers]
    found = in_turn(steps_of(module, range(rank, rank + 1)) for rank, module in enumerate(modules))
    *_, expected = steps_of(make_module(None, BATCH), range(2))
    for each in found:
        training.compare([each[name] for name in expected], list(expected.values()))
    assert on_servers_of(modules[0]._kvstore) == on_servers


def rows_of(values, ids, rows=4):
    return mx.nd.sparse.row_sparse_array((np.array(values, np.float32), ids), shape=(rows, 2))


def sparse_zeros():
    return mx.nd.zeros((4, 2)).tostype("row_sparse")


def train_by_hand(stores, keys):
    """Push ones of all keys; return their values."""
    for _ in range(2):
        for store in stores:
            for key in keys:
                store.push(key, rows_of([[1, 1]], [2]) if key == "table" else mx.nd.ones((4, 2)))
    outs = {key: mx.nd.empty((4, 2)) for key in keys if key != "table"}
    for key, out in outs.items():
        stores[0].pull(key, out=out)
    table = mx.nd.sparse.zeros("row_sparse", (4, 2))
    stores[0].row_sparse_pull("table", out=table, row_ids=mx.nd.arange(4))
    return {
        **{key: out.asnumpy() for key, out in outs.items()},
        "table": table.tostype("default").asnumpy(),
    }


@pytest.mark.parametrize(
    ("config", "order", "on_servers"),
    [
        ({}, ["table", "set", "late"], {"table"}),
        ({}, ["early", "set", "soon", "table", "late"], {"early", "soon", "table"}),
        ({"routes": "other=rows"}, ["set", "soon", "table", "late"], {"soon", "table"}),
        ({"dense": "servers", "routes": "other=rows"}, ["set", "table", "late"], {"table", "late"}),
        ({"dense": "servers"}, ["set", "table", "late"], {"table", "late"}),
        ({"clients": 2}, ["set", "table", "late"], {"table", "late"}),
    ],
    ids=["table first", "between", "another route", "with a route", "servers", "clients"],
)
def test_dense_keys_that_come_after_a_table_are_the_workers(job, config, order, on_servers):
    """What is there already stays; each worker comes to that at the same point."""
    cluster = job(**{"workers_per_client": 1 if "clients" in config else 2, **config})
    stores = [KVStoreMPI("sync", each) for each in cluster.workers]
    for what in order:
        for store in stores:
            if what == "set":
                store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
            else:
                store.init(what, sparse_zeros() if what == "table" else mx.nd.zeros((4, 2)))
    keys = [each for each in order if each != "set"]
    found = train_by_hand(stores, keys)
    row = found.pop("table")
    np.testing.assert_array_equal(row, [[0, 0], [0, 0], [-4, -4], [0, 0]])
    for value in found.values():
        np.testing.assert_array_equal(value, np.full((4, 2), -4))
    assert keys_on(cluster) == on_servers
    assert on_servers_of(stores[0]) == on_servers


def test_states_of_keys_that_came_before_and_after_are_one_file(job, tmp_path):
    """Momentum goes on in a store that learnt of its table in the middle."""
    path = str(tmp_path / "states")

    def begin():
        (worker,) = job().workers
        store = KVStoreMPI("sync", worker)
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
        for key in ("early", "late"):
            store.init(key, mx.nd.zeros((4, 2)))
            if key == "early":
                store.init("table", sparse_zeros())
        return store

    store = begin()
    train_by_hand([store], ["early", "table", "late"])
    store.save_optimizer_states(path)
    again = begin()
    again.load_optimizer_states(path)
    found = train_by_hand([again], ["early", "table", "late"])
    # Momentum of 1.5 has been there, so that steps are 1.75 and 1.875.
    for value in (found["early"], found["late"], found["table"][2:3]):
        np.testing.assert_array_equal(value, np.full(value.shape, -3.625))


@pytest.mark.parametrize(
    ("config", "dense", "computed"),
    [
        # 4 w (N - 1) / N, as in the paper: two ranks with half a key of 32 bytes each.
        ({"workers_per_client": 2}, 64, True),
        ({"workers_per_client": 2, "servers": 0}, 64, True),
        # Up and down.
        ({"clients": 2}, 64, False),
    ],
    ids=["hybrid", "pure MPI", "clients"],
)
def test_a_plan_has_the_bytes_of_all_keys(job, config, dense, computed):
    """Counted between clients and servers; computed, and marked so, of what ranks have summed."""
    stores = [KVStoreMPI("sync", each) for each in job(**config).workers]
    for store in stores:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        store.init("table", mx.nd.zeros((400, 2)).tostype("row_sparse"))
        store.init("dense", mx.nd.zeros((4, 2)))
    assert [each.measured_bytes for each in stores[0].plan().keys] == [None, None]
    values, ids = np.ones((2, 2), np.float32), [2, 3]
    for _ in range(20):
        for store in stores:
            store.push("table", mx.nd.sparse.row_sparse_array((values, ids), shape=(400, 2)))
            store.pushpull("dense", mx.nd.ones((4, 2)), out=mx.nd.empty((4, 2)))
    table, key = stores[0].plan().keys
    assert (key.measured_bytes, key.computed) == (dense, computed)
    assert table.measured_bytes
    assert table.computed == (config.get("servers") == 0)
    assert stores[0].plan().measured_bytes == dense + table.measured_bytes


def test_row_sparse_weights_stay_with_the_servers_however_dense(job):
    """Of a dense weight a worker has all rows, and can go on with them; of a row-sparse one it has some."""
    stores = [KVStoreMPI("sync", each) for each in job(workers_per_client=2, servers=1).workers]
    for store in stores:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        store.init("weight", sparse_zeros())
        store.init("gradient", mx.nd.zeros((4, 2)))
    for _ in range(WINDOW_STEPS + 1):
        for key in ("weight", "gradient"):
            for store in stores:
                store.push(key, rows_of(np.ones((4, 2)), range(4)))
    plan = {each.key: each for each in stores[0].plan().keys}
    assert (plan["gradient"].route.value, plan["gradient"].form.value) == ("allreduce", "dense")
    assert (plan["weight"].route.value, plan["weight"].form.value) == ("servers", "rows")
    assert plan["weight"].alpha_job == 1
    out = mx.nd.sparse.zeros("row_sparse", (4, 2))
    stores[0].row_sparse_pull("weight", out=out, row_ids=mx.nd.arange(4))
    expected = np.full((4, 2), -2 * (WINDOW_STEPS + 1))
    np.testing.assert_array_equal(out.tostype("default").asnumpy(), expected)
    # It was the workers' before its first push, and is so again.
    value = mx.nd.empty((4, 2))
    stores[1].pull("gradient", value)
    np.testing.assert_array_equal(value.asnumpy(), expected)


@pytest.mark.parametrize("how", ["push", "pushpull"])
def test_the_only_key_leaves_the_servers_when_that_is_cheaper(job, how):
    """Its first push says that it is a table, after which no other key is initialised."""
    cluster = job(workers_per_client=2, servers=1)
    stores = [KVStoreMPI("sync", each) for each in cluster.workers]
    for store in stores:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        store.init("w", mx.nd.zeros((4, 2)))
    values = [mx.nd.empty((4, 2)) for _ in stores]
    for _ in range(WINDOW_STEPS + 1):
        for store, value in zip(stores, values):
            ones = rows_of(np.ones((4, 2)), range(4))
            (store.push("w", ones) if how == "push" else store.pushpull("w", ones, out=value))
    for store, value in zip(stores, values):
        store.pull("w", out=value)
        np.testing.assert_array_equal(value.asnumpy(), np.full((4, 2), -2 * (WINDOW_STEPS + 1)))
    [plan] = stores[0].plan().keys
    assert (plan.route.value, plan.form.value) == ("allreduce", "dense")


def test_nothing_is_measured_of_a_table_that_has_just_come_back(job, monkeypatch):
    """Its last window was summed among the workers; the next one has been counted again."""
    monkeypatch.setattr("kvstore_mpi.hybrid.density.LATER_STEPS", 8)
    stores = [KVStoreMPI("sync", each) for each in job(workers_per_client=2, servers=1).workers]
    for store in stores:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        store.init("w", mx.nd.zeros((400, 2)))
    seen = []
    # The push that leaves is not counted, so that windows end with pushes 29 and 37.
    for push in range(1, 38):
        count = 400 if push <= WINDOW_STEPS + 1 else 1
        for store in stores:
            store.push("w", rows_of(np.ones((count, 2)), range(count), 400))
        [plan] = stores[0].plan().keys
        seen.append((plan.route.value, plan.measured_bytes, plan.alpha_job))
    assert {route for route, _, _ in seen[WINDOW_STEPS:30]} == {"allreduce"}
    assert seen[30:36] == 6 * [("servers", None, 1 / 400)]
    assert seen[36][1] > 0
