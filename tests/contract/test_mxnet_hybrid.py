"""Jobs of one client with servers: those have the tables, and the workers everything else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402
from support.hybrid_jobs import hybrid_jobs, keys_on  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.server_updates import ServerUpdates  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.hybrid.density import WINDOW_STEPS  # noqa: E402

pytestmark = pytest.mark.mxnet

STEPS = 6


def make_net(*, sparse=True, weights="default"):
    """Return a small net with the same parameters each time."""
    mx.random.seed(3)
    net = gluon.nn.Sequential()
    if weights == "default":
        net.add(gluon.nn.Embedding(11, 4, sparse_grad=sparse))
    else:
        net.add(gluon.contrib.nn.SparseEmbedding(11, 4))
    net.add(gluon.nn.Dense(3, in_units=8))
    net.initialize(mx.init.Uniform(0.5))
    return net


def train(net, kvstore, optimizer="sgd", *, steps=STEPS, states="", **options):
    """Train on a few batches; return the parameters and the trainer."""
    rule = mx.optimizer.create(optimizer, learning_rate=0.1, **options)
    trainer = gluon.Trainer(net.collect_params(), rule, kvstore=kvstore)
    random = np.random.default_rng(1)
    for step in range(steps):
        ids = mx.nd.array(random.integers(0, 11, (5, 2)), dtype="float32")
        with autograd.record():
            loss = (net(ids) ** 2).sum()
        loss.backward()
        if states and not step:
            trainer.load_states(states)
        trainer.step(5)
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()], trainer


@pytest.fixture
def job():
    """Make jobs of one worker and two servers, and end them."""
    with hybrid_jobs() as make:
        yield make


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("sgd", {}), ("sgd", {"momentum": 0.9, "wd": 0.01}), ("adam", {})],
    ids=str,
)
@pytest.mark.parametrize("dense", ["auto", "servers"])
def test_training_comes_to_the_same(job, optimizer, options, dense):
    """As by one process without a store; the servers have the table alone, or everything if told so."""
    cluster = job(dense=dense)
    store = KVStoreMPI("sync", cluster.workers[0])
    got, _ = train(make_net(), store, optimizer, **options)
    wanted, _ = train(make_net(), "local", optimizer, **options)
    for ours, theirs in zip(got, wanted):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert len(keys_on(cluster)) == (1 if dense == "auto" else 3)


def test_a_job_without_tables_leaves_dense_keys_to_its_servers(job):
    """Unless it says who is to have them: then the servers have nothing."""
    for dense, count in (("auto", 3), ("workers", 0)):
        cluster = job(dense=dense)
        train(make_net(sparse=False), KVStoreMPI("sync", cluster.workers[0]))
        assert len(keys_on(cluster)) == count


@pytest.mark.parametrize(
    ("routes", "dense", "count"),
    [
        ("embedding*=allreduce", "auto", 0),  # the table is dense then, and nothing is left for the servers
        ("embedding*=allreduce", "servers", 2),
        ("dense*_bias=servers", "auto", 2),
        ("dense*=servers,*bias=allreduce", "workers", 3),  # what is said first
        ("*weight=allreduce", "servers", 1),
        ("embedding*=rows", "auto", 0),
        ("embedding*=rows,dense*bias=rows", "servers", 1),
    ],
)
def test_the_user_says_which_way_keys_go(job, routes, dense, count):
    """By names of parameters; the servers have the others, and the weights are the same."""
    cluster = job(routes=routes, dense=dense)
    store = KVStoreMPI("sync", cluster.workers[0])
    got, _ = train(make_net(), store, momentum=0.9)
    wanted, _ = train(make_net(), "local", momentum=0.9)
    for ours, theirs in zip(got, wanted):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert len(keys_on(cluster)) == count
    assert any(each.forced for each in store.plan().keys)


@pytest.mark.parametrize("route", ["allreduce", "rows"])
def test_a_table_of_row_sparse_weights_can_be_summed_by_workers(job, route):
    """Rows that are looked up are then taken from the worker's own copy."""
    cluster = job(routes=f"sparseembedding*={route}")
    got, _ = train_sparse(KVStoreMPI("sync", cluster.workers[0]))
    wanted, _ = train_sparse("local")
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert not keys_on(cluster)


def test_routes_that_are_not_possible(job, caplog):
    """Workers do not sum in asynchronous stores, nor what is there already; a wrong name is told."""
    sgd = mx.optimizer.create("sgd")
    (worker,) = job(routes="w=allreduce").workers
    with pytest.raises(UsageError, match=r"'w' cannot have the route allreduce: .*sync-mpi store"):
        KVStoreMPI("async", worker).set_optimizer(sgd)
    for call, argument in (("clip_global_norm", 1.0), ("average_weights", 0.9)):
        store = KVStoreMPI("sync", worker)
        getattr(store, call)(argument)
        with pytest.raises(UsageError, match=f"'w' cannot have the route allreduce: with {call}"):
            store.set_optimizer(sgd)
    store = KVStoreMPI("sync", worker)
    store.init("w", mx.nd.ones(3))
    with pytest.raises(UsageError, match=r"key 'w'.*call set_optimizer before init"):
        store.set_optimizer(sgd)
    train(make_net(), KVStoreMPI("sync", worker))
    assert "'w' is the name of no parameter; there are ['dense" in caplog.text


def test_several_clients_meet_at_the_servers(job):
    """There all keys go to the servers, whatever is wanted, since only those know the sum."""
    for worker in job(clients=2, dense="workers").workers:
        store = KVStoreMPI("sync", worker)
        store.set_optimizer(mx.optimizer.create("sgd"))
        assert type(store._updates) is ServerUpdates


def test_weights_that_are_row_sparse_go_to_the_servers(job):
    """And the workers fetch the rows that they look up."""
    cluster = job()
    got, _ = train_sparse(KVStoreMPI("sync", cluster.workers[0]))
    wanted, _ = train_sparse("local")
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert len(keys_on(cluster)) == 1


def train_sparse(kvstore):
    net = make_net(weights="row_sparse")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kvstore)
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        ids = mx.nd.array(random.integers(0, 11, (5, 2)), dtype="float32")
        with autograd.record():
            loss = (net(ids) ** 2).sum()
        loss.backward()
        trainer.step(1)
    (table,) = [each for each in net.collect_params().values() if each._stype == "row_sparse"]
    return table.row_sparse_data(mx.nd.arange(11)).asnumpy(), trainer


def test_states_of_both_are_saved_and_loaded(job, tmp_path):
    """Training that is interrupted goes on as it would have, with momentum of tables and of the rest."""
    path = str(tmp_path / "states")
    options = {"momentum": 0.9, "wd": 0.01}
    first = make_net()
    _, trainer = train(first, KVStoreMPI("sync", job().workers[0]), **options)
    trainer.save_states(path)
    first.save_parameters(str(tmp_path / "net"))
    going_on, _ = train(first, KVStoreMPI("sync", job().workers[0]), states=path, **options)
    second = make_net()
    second.load_parameters(str(tmp_path / "net"))
    again, _ = train(second, KVStoreMPI("sync", job().workers[0]), states=path, **options)
    without, _ = train(reloaded(tmp_path), KVStoreMPI("sync", job().workers[0]), **options)
    for one, other, third in zip(going_on, again, without):
        np.testing.assert_array_equal(one, other)
        assert not np.array_equal(one, third)


@pytest.mark.parametrize("dump", [True, False], ids=["optimizer", "states"])
def test_servers_and_workers_follow_one_optimizer_after_a_load(job, tmp_path, dump):
    """A rate of 0 stops the table and what workers have, and all keys are counted on."""
    path = str(tmp_path / "states")
    net = make_net()
    _, trainer = train(net, KVStoreMPI("sync", job().workers[0]))
    trainer._kvstore.save_optimizer_states(path, dump_optimizer=dump)
    trainer.load_states(path)
    trainer.set_learning_rate(0)
    before = [each.data().asnumpy() for each in net.collect_params().values()]
    with autograd.record():
        loss = (net(mx.nd.array([[1, 2]])) ** 2).sum()
    loss.backward()
    trainer.step(5)
    for one, each in zip(before, net.collect_params().values()):
        np.testing.assert_array_equal(one, each.data().asnumpy())
    assert trainer._optimizer._index_update_count == dict.fromkeys(range(3), STEPS + 1)


def reloaded(tmp_path):
    net = make_net()
    net.load_parameters(str(tmp_path / "net"))
    return net


def test_the_plan_says_what_each_key_does(job):
    """Routes, measured densities, and bytes as counted; as a table and as JSON."""
    store = KVStoreMPI("sync", job().workers[0])
    train(make_net(), store)
    plan = store.plan()
    (table,) = [each for each in plan.keys if each.form.value == "rows"]
    dense = [each for each in plan.keys if each is not table]
    assert (table.route.value, table.form.value, table.rows, table.row_bytes) == ("servers", "rows", 11, 16)
    assert (table.partitions, table.layout) == (1, "rows")
    assert [(each.route.value, each.form.value) for each in dense] == [("allreduce", "dense")] * 2
    assert table.alpha_rank is not None
    assert 0.3 < table.alpha_rank < 0.9
    # What is pushed comes back, with places of four bytes and a header of 24 in each payload.
    rows = 11 * table.alpha_rank
    assert table.measured_bytes == pytest.approx(2 * rows * (16 + 4) + 48, abs=8)
    assert "servers" in str(plan)
    assert type(plan).from_json(plan.to_json()) == plan


def test_the_plan_has_the_bytes_of_dense_keys_on_servers(job):
    """Up and down once in a step; of those that MPI sums they are computed, and here is one machine."""
    store = KVStoreMPI("sync", job(dense="servers", routes="*bias=allreduce").workers[0])
    train(make_net(sparse=False), store)
    plan = store.plan()
    measured = {each.rows * each.row_bytes: each.measured_bytes for each in plan.keys}
    assert measured == {176: 2 * 176, 96: 2 * 96, 12: 0}
    # However small: what goes beside the values they have in common.
    assert [each.predicted_bytes for each in plan.keys] == [each.measured_bytes for each in plan.keys]
    assert store.plan().measured_bytes == 2 * (176 + 96)
    assert [each.row_bytes for each in store.plan().keys if each.computed] == [12]


def test_a_client_that_is_alone_on_one_host_is_one_machine_to_servers(job):
    """Its ranks push one sum, and pull the value each for itself; later it comes with the push, once."""
    stores = [KVStoreMPI("sync", worker) for worker in job(workers_per_client=2, dense="servers").workers]
    value = mx.nd.ones((5, 4))
    for store in stores:
        store.init(3, value)
    for _ in range(STEPS):
        for store in stores:
            store.push(3, value)
            store.pull(3, mx.nd.zeros((5, 4)))
    mx.nd.waitall()
    (key,) = stores[0].plan().keys
    assert key.measured_bytes == pytest.approx(((1 + 2) + (STEPS - 1) * (1 + 1)) * 80 / STEPS)
    assert stores[1].plan().keys[0].measured_bytes is None


@pytest.mark.parametrize("lookups", ["each", "together"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_ranks_of_a_host_have_in_common_is_predicted_once(job, ranks, lookups):
    """Rows that they push, and with lookups that come together, those that they look up."""
    workers = job(workers_per_client=ranks, lookups=lookups).workers
    stores = [KVStoreMPI("sync", worker) for worker in workers]

    def train_rows(rank):
        store = stores[rank]
        store.init("t", mx.nd.zeros((1000, 16)).tostype("row_sparse"))
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        out = mx.nd.zeros((1000, 16)).tostype("row_sparse")
        for step in range(WINDOW_STEPS):
            # Of the neighbour's 300 are the same.
            rows = np.random.default_rng(step).permutation(1000)[100 * rank :][:400]
            store.row_sparse_pull("t", out=out, row_ids=mx.nd.array(rows, dtype="int64"))
            gradient = (np.ones((400, 16), np.float32), np.sort(rows))
            store.push("t", mx.nd.sparse.row_sparse_array(gradient, shape=(1000, 16)))
        mx.nd.waitall()

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(train_rows, range(ranks)))
    (key,) = stores[0].plan().keys
    assert (key.alpha_rank, key.alpha_machine) == pytest.approx((0.4, 0.3 + 0.1 * ranks))
    assert key.measured_bytes == pytest.approx(key.predicted_bytes, rel=0.02)


def test_rows_in_half_precision(job):
    """As asked for by ``compression_params``: half the bytes, and weights that differ by their rounding."""
    exact, _ = train(make_net(), KVStoreMPI("sync", job().workers[0]))
    store = KVStoreMPI("sync", job().workers[0])
    store.set_gradient_compression({"type": "bfloat16"})
    rounded, _ = train(make_net(), store)
    for one, other in zip(exact, rounded):
        assert not np.array_equal(one, other)
        np.testing.assert_allclose(one, other, rtol=0, atol=0.02)
    (table,) = [each for each in store.plan().keys if each.form.value == "rows"]
    assert table.row_bytes == 8
    assert table.measured_bytes == pytest.approx(2 * 11 * table.alpha_rank * (8 + 4) + 48, abs=8)


def watch(worker):
    """Return, growing from now on, what the ranks of a client do together on each key."""
    seen, collect = {}, worker.io._collect

    def record(instruction):
        spec = instruction.key.spec
        # What ranks count of a table has its name, in a store of its own.
        if spec.dtype == "float32":
            seen.setdefault(spec.key, set()).add(instruction.operation.name)
        collect(instruction)

    worker.io._collect = record
    return seen


@pytest.mark.parametrize("dense", [True, False], ids=["both", "tables alone"])
def test_dense_keys_are_no_matter_of_servers_nor_tables_of_allreduces(job, dense):
    """Servers know the table alone; of it the ranks merge rows, and everything else they sum."""
    cluster = job(workers_per_client=2)
    seen = watch(cluster.workers[0])
    stores = [KVStoreMPI("sync", worker) for worker in cluster.workers]
    nets = [make_net() if dense else make_net()[:1] for _ in stores]
    trainers = [
        gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)
        for net, store in zip(nets, stores)
    ]
    for _ in range(3):
        for net, trainer in zip(nets, trainers):
            with autograd.record():
                loss = (net(mx.nd.array([[1, 2], [3, 4]])) ** 2).sum()
            loss.backward()
            trainer.step(2)
    mx.nd.waitall()
    [table] = [each.key for each in stores[0].plan().keys if each.form.value == "rows"]
    assert keys_on(cluster) == {table}
    assert seen.pop(table) == {"REDUCE_SHARE", "SHARE"}
    assert len(seen) == (2 if dense else 0)
    assert all(kinds == {"BROADCAST", "ALLREDUCE"} for kinds in seen.values())


def test_the_workers_have_the_rows_of_a_table_that_the_user_leaves_to_them(job, tmp_path):
    """The plan says so, and momentum is saved and loaded."""
    path, options = str(tmp_path / "states"), {"momentum": 0.9}
    store = KVStoreMPI("sync", job(routes="embedding*=rows").workers[0])
    first = make_net()
    _, trainer = train(first, store, **options)
    [table] = [each for each in store.plan().keys if each.form.value == "rows"]
    assert (table.route.value, table.forced, table.partitions) == ("allreduce", True, 0)
    assert 0.3 < table.alpha_rank < 0.9
    trainer.save_states(path)
    first.save_parameters(str(tmp_path / "net"))
    going_on, again = (
        train(
            reloaded(tmp_path),
            KVStoreMPI("sync", job(routes=f"embedding*={route}").workers[0]),
            states=path,
            **options,
        )[0]
        for route in ("rows", "servers")
    )
    for one, two in zip(going_on, again):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("servers", "routes"), [(0, ""), (2, "t=rows")], ids=["pure MPI", "by route"])
def test_pushes_of_rows_that_workers_merge_wait_for_nobody(job, servers, routes):
    """Not even for the others' rows of the step before: only who reads the weight does."""
    cluster = job(workers_per_client=2, servers=servers, routes=routes)
    stores = [KVStoreMPI("sync", worker) for worker in cluster.workers]
    for store in stores:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
        store.init("t", mx.nd.ones((6, 2)))
    outs = [mx.nd.zeros((6, 2)) for _ in stores]
    for rank, store in enumerate(stores):  # all steps of the first one before any of the other
        for _ in range(3):
            gradient = (np.ones((2, 2), np.float32), [rank, 3])
            store.push("t", mx.nd.sparse.row_sparse_array(gradient, shape=(6, 2)))
            store.pull("t", out=outs[rank])
    for out in outs:
        # Steps of 1, 1.5 and 1.75, and twice as much where both have pushed.
        expected = np.array([1 - 4.25, 1 - 4.25, 1, 1 - 8.5, 1, 1])
        np.testing.assert_array_equal(out.asnumpy(), np.repeat(expected[:, None], 2, axis=1))
    [key] = stores[0].plan().keys
    assert (key.route.value, key.form.value) == ("allreduce", "rows")
    assert not keys_on(cluster)
