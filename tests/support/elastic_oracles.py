"""Loosely coupled training beside the same in one process: parameters, statistics, ``Module``.

The checks have the form of those in ``mxnet_contract.py`` and need servers. ``elastic_training.py`` runs
them with its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet import ElasticCallback, ElasticTrainer
from kvstore_mpi.esgd import Elastic, LocalSGD
from kvstore_mpi.esgd.stagger import exchange_offset
from support.center import Center
from support.elastic_client import elastic_step
from support.elastic_networks import ALPHA, learn, make_net, values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.testing.adapter_contract import Turn
    from kvstore_mpi.testing.mxnet_contract import Check, OpenStore

ORACLE_CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that every worker must pass."""
    ORACLE_CHECKS.append(function)
    return function


@check
def ranks_train_like_one_with_all_their_samples(open_store: OpenStore) -> Iterator[Turn]:
    """Clients of m ranks end like clients of one, whose batches are those of all ranks, exchanges included.

    In an asynchronous store with several clients the result depends on who comes first.
    """
    kv = open_store()
    alpha, interval = ALPHA / kv.num_clients, 2
    hyper = {"learning_rate": 0.02, "momentum": 0.9}
    net = make_net(seed=8)
    trainer = ElasticTrainer(net.collect_params(), "sgd", hyper, kvstore=kv, interval=interval, alpha=alpha)
    alone = [make_net(seed=8) for _ in range(kv.num_clients)]
    trainers = [mx.gluon.Trainer(each.collect_params(), "sgd", hyper, kvstore=None) for each in alone]
    start = values(alone[0])
    centers = {name: Center(Elastic(alpha).spec(), value.reshape(-1)) for name, value in start.items()}
    staggered = "async" in kv.type
    for step in range(1, 10):
        learn(net, trainer, _seed(kv.rank, step))
        yield kv
        for client, (each, plain) in enumerate(zip(alone, trainers)):
            ranks = range(client * kv.mpi_size, (client + 1) * kv.mpi_size)
            learn(each, plain, *(_seed(rank, step) for rank in ranks))
        for key, name in enumerate(start):
            offset = exchange_offset(0, 1, key, len(start), interval) if staggered else 0
            if step % interval == offset:
                _exchange([each.collect_params()[name] for each in alone], centers[name], alpha)
    yield kv
    if staggered and kv.num_clients > 1:
        return
    for name, value in values(alone[kv.client]).items():
        assert np.abs(value - start[name]).max() > 1e-3, name
        np.testing.assert_allclose(values(net)[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    with trainer.center():
        for name, value in values(net).items():
            expected = centers[name].weight.reshape(value.shape)
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def _seed(rank: int, step: int) -> int:
    return 100 * rank + step


def _exchange(params: list[Any], center: Center, alpha: float) -> None:
    """Exchange a parameter of all clients with its center, at once."""
    arrays = [param.data().asnumpy() for param in params]
    before = center.round({client: array.reshape(-1).copy() for client, array in enumerate(arrays)})
    for param, array in zip(params, arrays):
        flat = array.reshape(-1)
        elastic_step(flat, before, alpha)
        param.set_data(mx.nd.array(flat.reshape(array.shape)))


@check
def a_module_does_the_same(open_store: OpenStore) -> Iterator[Turn]:
    """``fit`` with the callback trains within the client and adopts the center."""
    kv = open_store()
    elastic = ElasticCallback(kv, interval=1, server_optimizer=LocalSGD())
    mx.random.seed(kv.rank)
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="layer")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(data, name="softmax"))
    draw = np.random.RandomState(kv.rank)
    inputs, labels = draw.randn(8, 3), draw.randint(0, 2, 8)
    batches = mx.io.NDArrayIter(inputs, labels, batch_size=4)
    yield kv
    module.fit(
        batches, num_epoch=1, kvstore=elastic.client_store, batch_end_callback=elastic,
        optimizer="sgd", optimizer_params={"learning_rate": 0.1}, initializer=mx.init.Xavier(),
    )  # fmt: skip
    yield kv
    with elastic.center():
        center = module.get_params()[0]["layer_weight"].asnumpy()
    own = module.get_params()[0]["layer_weight"].asnumpy()
    assert np.isfinite(own).all()
    if "async" not in kv.type:
        np.testing.assert_array_equal(own, center)


BATCH, FEATURES, BATCHES = 4, 3, 4
DECAY = 0.9
"""Of the running statistics, by MXNet's name their momentum."""


def _samples(rank: int) -> Any:
    return rank + np.random.RandomState(rank).randn(BATCH * BATCHES, FEATURES).astype(np.float32)


def _running_means(num_clients: int, per_client: int, alpha: float) -> dict[str, Any]:
    """Follow the running means of all ranks, and their center, through an epoch of exchanges."""
    ranks = range(num_clients * per_client)
    batches = [_samples(rank).reshape(BATCHES, BATCH, FEATURES) for rank in ranks]
    means = np.zeros((len(batches), FEATURES))
    center = np.zeros(FEATURES)
    for number in range(BATCHES):
        means = DECAY * means + (1 - DECAY) * np.stack([each[number].mean(axis=0) for each in batches])
        if number == 0:  # all begin with what rank 0 has after its first batch
            means[:] = center = means[0].copy()
        pushed = means.reshape(num_clients, per_client, FEATURES).mean(axis=1)
        means = means - alpha * (means - center)
        center = center + alpha * (pushed - center).sum(axis=0)
    return {"own": means, "center": center}


class _Momentum:
    """Looks at a module's momentum before and after what the callback between the two does.

    Attributes:
        exchanges: How many have moved a parameter that had momentum.
    """

    def __init__(self) -> None:
        self.exchanges = 0
        self._before: list[Any] = []
        self._weight: Any = None

    def before(self, param: Any) -> None:
        self._before, self._weight = _states(param), _weight(param)

    def after(self, param: Any) -> None:
        states = _states(param)
        for now, then in zip(states, self._before):
            np.testing.assert_array_equal(now, then)
        moved = np.any(_weight(param) != self._weight)
        self.exchanges += bool(moved and any(map(np.any, states)))


def _states(param: Any) -> list[Any]:
    states = param.locals["self"]._updater.states
    return [states[key].asnumpy() for key in sorted(states) if states[key] is not None]


def _weight(param: Any) -> Any:
    """Return the layer's weight as it is on the device."""
    return param.locals["self"]._exec_group.param_arrays[-2][0].asnumpy()


def _moving_mean(module: Any) -> Any:
    """Return what would be saved as BatchNorm's running mean."""
    return module.get_params()[1]["norm_moving_mean"].asnumpy()


@check
def statistics_of_a_module_take_part(open_store: OpenStore) -> Iterator[Turn]:
    """BatchNorm's running means are exchanged like parameters, and the momentum stays as it is.

    A client gives the mean over its ranks.
    """
    kv = open_store()
    alpha = ALPHA / kv.num_clients
    elastic = ElasticCallback(kv, interval=1, alpha=alpha)
    normed = mx.sym.BatchNorm(mx.sym.var("data"), momentum=DECAY, name="norm")
    layer = mx.sym.FullyConnected(normed, num_hidden=2, name="layer")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(layer, name="softmax"))
    mx.random.seed(kv.rank)
    labels = np.random.RandomState(kv.rank).randint(0, 2, BATCH * BATCHES)
    batches = mx.io.NDArrayIter(_samples(kv.rank), labels, batch_size=BATCH)
    momentum = _Momentum()
    yield kv
    module.fit(
        batches, num_epoch=1, kvstore=elastic.client_store, optimizer="sgd",
        batch_end_callback=[momentum.before, elastic, momentum.after],
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9}, initializer=mx.init.Xavier(),
    )  # fmt: skip
    yield kv
    own = _moving_mean(module)
    with elastic.center():
        center = _moving_mean(module)
    np.testing.assert_array_equal(_moving_mean(module), own)
    if kv.num_clients == 1 or "async" not in kv.type:
        expected = _running_means(kv.num_clients, kv.mpi_size, alpha)
        np.testing.assert_allclose(own, expected["own"][kv.rank], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(center, expected["center"], rtol=1e-4, atol=1e-6)
    assert momentum.exchanges >= BATCHES - 2  # in the first one all begin with the center
