"""Loosely coupled training beside the same in one process: parameters, ``Module``.

The checks have the form of those in ``adapter_contract.py`` and need servers. ``elastic_training.py`` runs
them with its own.
"""

from __future__ import annotations

from typing import Any, Iterator, List

import mxnet as mx
import numpy as np

from ..esgd import Elastic, LocalSGD
from ..esgd.client import elastic_step
from ..esgd.stagger import exchange_offset
from ..mxnet import ElasticCallback, ElasticTrainer
from .adapter_contract import Check, OpenStore, Turn
from .center import Center
from .elastic_networks import ALPHA, learn, make_net, values

ORACLE_CHECKS: List[Check] = []


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
        assert np.abs(value - start[name]).max() > 1e-3, name  # noqa: PLR2004
        np.testing.assert_allclose(values(net)[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    with trainer.center():
        for name, value in values(net).items():
            expected = centers[name].weight.reshape(value.shape)
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def _seed(rank: int, step: int) -> int:
    return 100 * rank + step


def _exchange(params: List[Any], center: Center, alpha: float) -> None:
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
