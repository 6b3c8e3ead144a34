"""Training with several batches to an update, and the same with one that is as large.

As a program it is a worker of a job, which prints how far the two are apart::

    mpilaunch --workers 2 --delay 3 -m support.delayed_training
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from kvstore_mpi.mxnet import DelayedTrainer

DELAY, UPDATES, LEFT_OVER = 3, 2, 1
BATCH, WIDTH, LR = 4, 6, 0.05

Weights = list[np.ndarray[Any, Any]]


def train(kv: Any, optimizer: str, delay: int | None, rank: int = 0, workers: int = 1) -> Weights:
    """Train on this worker's part of each batch; return the weights."""
    net, loss = _net(), gluon.loss.L2Loss()
    trainer = DelayedTrainer(net.collect_params(), optimizer, {"learning_rate": LR}, kv, delay=delay)
    for data, labels in _batches(DELAY * UPDATES + LEFT_OVER, BATCH):
        mine = slice(rank * BATCH // workers, (rank + 1) * BATCH // workers)
        with autograd.record():
            value = loss(net(data[mine]), labels[mine])
        value.backward()
        trainer.step(BATCH)
    return [param.data().asnumpy() for param in net.collect_params().values()]


def trained_at_once(optimizer: str) -> Weights:
    """Train with batches that are DELAY times as large, on no store; return the weights."""
    net, loss = _net(), gluon.loss.L2Loss()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": LR * DELAY}, kvstore=None)
    batches = _batches(DELAY * UPDATES, BATCH)
    for update in range(UPDATES):
        part = batches[update * DELAY : (update + 1) * DELAY]
        data, labels = (mx.nd.concat(*arrays, dim=0) for arrays in zip(*part))
        with autograd.record():
            value = loss(net(data), labels)
        value.backward()
        trainer.step(BATCH * DELAY)
    return [param.data().asnumpy() for param in net.collect_params().values()]


def distance(found: Weights, expected: Weights) -> float:
    """Return the largest relative distance between two sets of weights."""
    pairs = zip(found, expected)
    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs)


def _net() -> Any:
    mx.random.seed(5)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="tanh"), gluon.nn.Dense(3))
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, WIDTH)))
    return net


def _batches(number: int, size: int) -> list[tuple[Any, Any]]:
    random = np.random.RandomState(7)
    return [
        (mx.nd.array(random.normal(size=(size, WIDTH))), mx.nd.array(random.normal(size=(size, 3))))
        for _ in range(number)
    ]


def main() -> None:
    """Train as a worker; print the distance from one process."""
    kv = mx.kv.create("sync-mpi")
    found = train(kv, "sgd", None, kv.rank, kv.num_workers)
    print(f"distance {distance(found, trained_at_once('sgd')):.3g}", flush=True)  # noqa: T201  it is a program


if __name__ == "__main__":
    main()
