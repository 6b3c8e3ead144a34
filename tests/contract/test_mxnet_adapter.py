"""The MXNet store over fake workers: the adapter contract, names, and optimizers."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from support.often import often, often_of

mx = pytest.importorskip("mxnet")

from support.held_arrays import held  # noqa: E402

from kvstore_mpi.adapters import in_place  # noqa: E402
from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.errors import ConfigurationError, UnsupportedError, UsageError  # noqa: E402
from kvstore_mpi.esgd import Elastic  # noqa: E402
from kvstore_mpi.testing import mxnet_training as training  # noqa: E402
from kvstore_mpi.testing.mxnet_compatibility import COMPATIBILITY_CHECKS  # noqa: E402
from kvstore_mpi.testing.mxnet_contract import CHECKS, run_together  # noqa: E402
from kvstore_mpi.testing.mxnet_exchange import EXCHANGE_CHECKS  # noqa: E402

pytestmark = pytest.mark.mxnet


def openers(group, mode="sync"):
    return [partial(KVStoreMPI, mode, worker) for worker in group.workers]


def open_one(group, mode="sync"):
    return KVStoreMPI(mode, group.workers[0])


# --- the contract ---


@pytest.mark.parametrize(
    ("num_workers", "num_servers"), often_of([(1, 0), (3, 0), (3, 2)], [1, 2, 3], [0, 2])
)
@pytest.mark.parametrize("check", [*CHECKS, *COMPATIBILITY_CHECKS], ids=lambda check: check.__name__)
def test_values(make_group, check, num_workers, num_servers):
    """Every check of the adapter contract holds over fake workers."""
    run_together(check, openers(make_group(num_workers, num_servers=num_servers)))


@pytest.mark.parametrize("num_workers", often([2], [1, 2]))
@pytest.mark.parametrize(
    "check", [*CHECKS, *COMPATIBILITY_CHECKS, *training.TRAINING_CHECKS], ids=lambda check: check.__name__
)
def test_gradients_sent_from_where_they_lie(make_group, monkeypatch, check, num_workers):
    """Nothing else changes when gradients of all sizes are not copied first."""
    monkeypatch.setattr(in_place, "SENT_IN_PLACE_BYTES", 1)
    run_together(check, openers(make_group(num_workers, num_servers=2)))


def test_gradients_of_convolutions_can_be_sent_from_where_they_lie(make_group, monkeypatch):
    """oneDNN, which likes other layouts for weights and activations, leaves them plain."""
    monkeypatch.setattr(in_place, "SENT_IN_PLACE_BYTES", 1)
    kv = open_one(make_group(num_servers=1))
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(64, 3, in_channels=64), mx.gluon.nn.Dense(256, in_units=64 * 196))
    net.initialize()
    net.hybridize(static_alloc=True)
    images = mx.nd.random.uniform(shape=(8, 64, 16, 16))
    net(images)  # an inference, which changes the layout of weights
    with mx.autograd.record():
        loss = (net(images) ** 2).sum()
    loss.backward()
    for key, param in enumerate(net.collect_params().values()):
        out = mx.nd.zeros(param.shape)
        kv.init(key, out)
        kv.pushpull(key, param.grad(), out=out)
        np.testing.assert_array_equal(out.asnumpy(), param.grad().asnumpy())


def test_a_layout_of_onednn_is_an_error_and_not_a_wrong_value(make_group, monkeypatch):
    """Only weights and activations have one; who pushes those is told what to do."""
    monkeypatch.setattr(in_place, "SENT_IN_PLACE_BYTES", 1)
    kv = open_one(make_group(num_servers=1))
    layer = mx.gluon.nn.Conv2D(64, 3, in_channels=64)
    layer.initialize()
    for _ in range(2):
        layer(mx.nd.random.uniform(shape=(8, 64, 16, 16))).wait_to_read()
    weight, out = layer.weight.data(), mx.nd.zeros(layer.weight.shape)
    kv.init("w", out)
    kv.pushpull("w", weight.copy(), out=out)
    np.testing.assert_array_equal(out.asnumpy(), weight.copy().asnumpy())
    with held(weight):  # or the call itself may find that its exchange has failed
        kv.pushpull("w", weight, out=out)
    with pytest.raises(UnsupportedError, match=r"value\.copy\(\)"):
        out.wait_to_read()
    with pytest.raises(UnsupportedError, match=r"value\.copy\(\)"):
        kv.pull("w", out=out)


def test_parameters_are_never_read_where_they_lie(make_group, monkeypatch):
    """They may have any layout; the adapter knows before the worker that a store takes them."""
    monkeypatch.setattr(in_place, "SENT_IN_PLACE_BYTES", 1)
    kv = open_one(make_group(num_servers=1))
    kv.set_optimizer(Elastic())
    layer = mx.gluon.nn.Conv2D(64, 3, in_channels=64)
    layer.initialize()
    for _ in range(2):
        layer(mx.nd.random.uniform(shape=(8, 64, 16, 16))).wait_to_read()
    weight, center = layer.weight.data(), mx.nd.zeros(layer.weight.shape)
    kv.init("w", weight)
    kv.pushpull("w", weight, out=center)
    np.testing.assert_array_equal(center.asnumpy(), weight.asnumpy())


@pytest.mark.parametrize(("num_workers", "num_servers"), often_of([(1, 0), (2, 1)], [1, 2], [0, 1]))
@pytest.mark.parametrize("check", training.TRAINING_CHECKS, ids=lambda check: check.__name__)
def test_training(make_group, check, num_workers, num_servers):
    """Training over fake workers equals training in one process."""
    if (num_workers, num_servers, check.__name__) == (2, 0, "training_sparse_gradients"):
        pytest.skip("MXNet's sparse operators share scratch memory: two such workers need two processes")
    run_together(check, openers(make_group(num_workers, num_servers=num_servers)))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("check", EXCHANGE_CHECKS, ids=lambda check: check.__name__)
def test_exchanges(make_group, check, num_workers, mode):
    """Every check of exchanges of parameters holds over fake workers."""
    run_together(check, openers(make_group(num_workers, num_servers=2), mode))


def test_a_center_needs_servers(make_group):
    """Pure MPI has none, and says so."""
    kv = open_one(make_group())
    with pytest.raises(UsageError, match="this job has none"):
        kv.set_optimizer(Elastic())


def test_module_fit_with_evaluation(make_group):
    """Module.fit with an evaluation after each epoch comes to the weights that no store comes to."""
    data = mx.io.NDArrayIter(
        mx.nd.random.normal(shape=(32, 8)), mx.nd.array(np.arange(32) % 5), 8, label_name="softmax_label"
    )

    def fit(kvstore):
        output = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, name="output")
        module = mx.mod.Module(mx.sym.SoftmaxOutput(output, name="softmax"))
        mx.random.seed(3)
        module.fit(
            data,
            eval_data=data,
            kvstore=kvstore,
            optimizer_params={"learning_rate": 0.5, "momentum": 0.9},
            initializer=mx.init.Xavier(),
            num_epoch=3,
        )
        return module.get_params()[0]["output_weight"].asnumpy()

    np.testing.assert_array_equal(fit(open_one(make_group())), fit(None))


@pytest.mark.parametrize(
    ("optimizer", "options"), [("sgd", {"momentum": 0.9, "wd": 0.1}), ("adam", {"wd": 0.1})]
)
def test_lazy_updates_without_servers(make_group, optimizer, options):
    """Row-sparse gradients update the rows that they have and no others, momentum included."""
    case = training.Case("embedding", optimizer, {"learning_rate": 0.1, **options})
    run_together(partial(training.train, case=case), openers(make_group()))


def test_async_store_updates_at_every_push(make_group):
    """In async mode each push is an update, and a pull gives the newest weight."""
    first, second = (KVStoreMPI("async", worker) for worker in make_group(2, num_servers=1).workers)
    weights = [mx.nd.zeros((3,)), mx.nd.ones((3,))]
    for kv, weight in zip((first, second), weights):
        assert kv.type == "dist_async_mpi"
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        kv.broadcast("w", weight, out=weight)
    for _ in range(3):
        first.pushpull("w", mx.nd.ones((3,)), out=weights[0])
    assert weights[0].asnumpy().tolist() == [-3] * 3
    second.push("w", mx.nd.ones((3,)))
    second.pull("w", out=weights[1])
    assert weights[1].asnumpy().tolist() == [-4] * 3


# --- who and how ---


def test_names_and_identity(make_group):
    """A store says who it is, in the words that Trainer and Module read."""
    kv = KVStoreMPI("sync", make_group(4, num_servers=2).workers[3])
    assert isinstance(kv, mx.kv.KVStore)
    assert (kv.type, kv.rank, kv.num_workers, kv.local_rank) == ("dist_sync_mpi", 3, 4, 3)
    assert (kv.client, kv.num_clients, kv.mpi_rank, kv.mpi_size, kv.num_servers) == (3, 4, 0, 1, 2)


def test_a_store_that_cannot_be_made_leaves_no_trace(make_group):
    """Async mode without servers is refused, and the half-made object goes quietly."""
    with pytest.raises(ConfigurationError, match="needs servers"):
        open_one(make_group(), "async")


def test_keys_reach_the_worker_in_program_order(make_group):
    """Initialisations arrive in the order of the program, whatever the sizes: placement depends on it."""
    group = make_group()
    kv = open_one(group)
    for index in range(20):
        kv.init(index, mx.nd.random.normal(shape=(1 + 100_000 * ((7 * index) % 3),)))
    assert [call.key for call in group.calls] == list(range(20))


def test_barrier_waits_for_own_operations(make_group):
    """A barrier comes after everything that the worker has called before."""
    group = make_group(2)
    stores = [opener() for opener in openers(group)]
    values = [mx.nd.ones((4,)), mx.nd.ones((4,))]
    for kv, value in zip(stores, values):
        kv.init("a", value)
        kv.pushpull("a", value)
    group.hold(lambda call: call.rank == 1)
    other = threading.Thread(target=stores[1]._barrier)
    other.start()
    group.release()
    stores[0].barrier()
    other.join(30)
    assert not other.is_alive()
    assert [value.asnumpy().tolist() for value in values] == [[2] * 4] * 2


# --- optimizers ---


@pytest.mark.parametrize("num_servers", [0, 1])
def test_hyper_parameters_reach_the_update(make_group, num_servers):
    """Learning rate, rescale_grad and multipliers count from the next push on, and not before."""
    kv = open_one(make_group(num_servers=num_servers))
    optimizer = mx.optimizer.SGD(learning_rate=1.0)
    optimizer.set_lr_mult({"b": 0.0})
    kv.set_optimizer(optimizer)
    weights = [mx.nd.zeros((2,)), mx.nd.zeros((2,))]
    kv.broadcast(["a", "b"], weights, out=weights)
    for change in ({}, {"lr": 0.5}, {"rescale_grad": 0.5}):
        vars(optimizer).update(change)
        kv.pushpull(["a", "b"], [mx.nd.ones((2,))] * 2, out=weights)
    optimizer.set_lr_mult({})
    kv.pushpull(["a", "b"], [mx.nd.ones((2,))] * 2, out=weights)
    seen = [weight.asnumpy()[0] for weight in weights]
    assert seen == [-1 - 0.5 - 0.25 - 0.25, -0.25]


@pytest.mark.parametrize(
    ("key", "told", "expected"),
    [
        ("w", {"lr_mult": {"w": 0.5}}, 0.0),
        ("w", {"wd_mult": {"w": 0.5}}, -0.5),
        (3, {"lr_mult": {"w": 0.5}, "idx2name": {3: "w"}}, 0.0),
        (3, {"param_dict": {3: SimpleNamespace(lr_mult=0.5, wd_mult=0.5)}}, 0.25),
    ],
)
def test_multipliers_count_for_whoever_pushes_first(make_group, key, told, expected):
    """Trainer and Module give an optimizer before there are keys; rank 0 has pushed nothing yet."""
    stores = [KVStoreMPI("async", worker) for worker in make_group(2, num_servers=1).workers]
    weight = mx.nd.ones((2,))
    for kv in stores:
        optimizer = mx.optimizer.SGD(learning_rate=1.0, wd=1.0)
        vars(optimizer).update(told)
        kv.set_optimizer(optimizer)
        kv.init(key, weight)
    stores[1].pushpull(key, mx.nd.ones((2,)), out=weight)
    assert weight.asnumpy().tolist() == [expected] * 2


def test_hyper_parameters_do_not_overtake_pushes(make_group):
    """A new learning rate waits for the pushes before it, even those whose gradients are not ready."""
    group = make_group(num_servers=1)
    kv = open_one(group)
    optimizer = mx.optimizer.SGD(learning_rate=1.0)
    kv.set_optimizer(optimizer)
    kv.init(["a", "b"], [mx.nd.zeros((2,))] * 2)
    kv.push("b", mx.nd.ones((2,)))
    kv.barrier()
    started = len(group.hyper)
    group.hold(lambda call: call.key == "a")
    kv.push("a", mx.nd.ones((2,)))
    optimizer.lr = 0.5
    kv.push("b", mx.nd.ones((2,)))
    assert len(group.hyper) == started
    group.release()
    kv.barrier()
    assert [hyper["lr"] for hyper in group.hyper[started:]] == [0.5]


def test_updater_functions(make_group):
    """A function updates the stored weight without servers, and is refused with them."""
    kv = open_one(make_group())
    kv.init(3, mx.nd.ones((2,)))

    def update(key, value, stored):
        stored += value * key

    kv._set_updater(update)
    out = mx.nd.zeros((2,))
    kv.push(3, mx.nd.ones((2,)))
    kv.pull(3, out=out)
    assert out.asnumpy().tolist() == [4, 4]
    with pytest.raises(UnsupportedError, match="set_optimizer"):
        open_one(make_group(num_servers=1))._set_updater(update)


def test_optimizer_set_after_init(make_group):
    """An optimizer may come after the keys, as in MXNet's documentation."""
    for num_servers in (0, 1):
        kv = open_one(make_group(num_servers=num_servers))
        weight = mx.nd.zeros((2,))
        kv.init(3, weight)
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
        kv.push(3, mx.nd.ones((2,)))
        kv.pull(3, out=weight)
        assert weight.asnumpy().tolist() == [-0.5, -0.5]


def test_states_move_between_servers_and_local_stores(make_group, tmp_path):
    """A file saved over servers loads without servers, and the other way round."""
    saved, states = str(tmp_path / "states"), []
    for num_servers in (1, 0, 1):
        kv = open_one(make_group(num_servers=num_servers))
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
        kv.init("w", mx.nd.zeros((2, 3)))
        if states:
            kv.load_optimizer_states(saved)
        kv.push("w", mx.nd.ones((2, 3)))
        kv.save_optimizer_states(saved, dump_optimizer=True)
        states.append(kv._updater.states["w"].asnumpy())
        assert kv._updater.optimizer.momentum == 0.9
    expected = np.zeros((2, 3), np.float32)
    for state in states:
        expected = expected * 0.9 - 0.1
        np.testing.assert_allclose(state, expected, rtol=1e-6)


def test_async_push_needs_an_optimizer(make_group):
    """An async store without an optimizer refuses the first push, at the call."""
    kv = open_one(make_group(num_servers=1), "async")
    kv.init("a", mx.nd.zeros((2,)))
    with pytest.raises(UsageError, match="without an optimizer"):
        kv.push("a", mx.nd.zeros((2,)))
