"""Small networks for the checks of loosely coupled training, and what is done to them.

This file must not know what is checked.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet import ElasticTrainer, KVStoreMPI

ALPHA = 0.25
"""What the center moves by in a round of all clients that are equal."""


def make_net(seed: int, *, norm: bool = False) -> Any:
    """Make a small network, whose weights the seed alone decides."""
    mx.random.seed(seed)
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(5, in_units=3, activation="relu"))
        if norm:
            net.add(mx.gluon.nn.BatchNorm(in_channels=5))
        net.add(mx.gluon.nn.Dense(2, in_units=5))
    net.initialize(mx.init.Xavier())
    return net


def values(net: Any) -> dict[str, Any]:
    """Return copies of a network's parameters."""
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def idle(trainer: ElasticTrainer) -> None:
    """Make a step in which no parameter has a gradient."""
    trainer.step(1, ignore_stale_grad=True)


def learn(net: Any, trainer: mx.gluon.Trainer, *seeds: int) -> None:
    """Make a step on four samples for each seed."""
    inputs = mx.nd.array(np.concatenate([np.random.RandomState(seed).randn(4, 3) for seed in seeds]))
    with mx.autograd.record():
        loss = (net(inputs) ** 2).sum()
    loss.backward()
    trainer.step(4 * len(seeds))


def total(kv: KVStoreMPI, key: str, value: Any) -> Any:
    """Return the sum of an array over all workers."""
    store = KVStoreMPI("sync", kv._worker)
    array, out = mx.nd.array(value, dtype="float64"), mx.nd.zeros(value.shape, dtype="float64")
    store.init(key, mx.nd.zeros(value.shape, dtype="float64"))
    store.pushpull(key, array, out=out)
    return out


def fill(net: Any, number: float) -> None:
    """Set all parameters to a number."""
    for param in net.collect_params().values():
        param.set_data(mx.nd.full(param.shape, number))
