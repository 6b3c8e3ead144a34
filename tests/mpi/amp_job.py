"""Trains with MXNet's automatic mixed precision; run under mpilaunch by ``test_amp.py``.

MXNet's float16 needs a GPU; bfloat16, which it has on processors, goes the same way through a store.
"""

from __future__ import annotations

import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp

BATCH = 16
STEPS = 30

amp.init(target_dtype="bfloat16")
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


def train(kv, update_on_kvstore):
    """Train a small net; where workers update, one step's loss overflows on the last worker alone."""
    mx.random.seed(3)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kv, update_on_kvstore=update_on_kvstore
    )
    amp.init_trainer(trainer)
    draw = np.random.RandomState(kv.rank)
    images, labels = mx.nd.array(draw.normal(size=(BATCH, 8))), mx.nd.array(draw.randint(0, 4, BATCH))

    def step(factor=1.0):
        with autograd.record():
            loss = loss_of(net(images), labels)
            with amp.scale_loss(loss * factor, trainer) as scaled:
                autograd.backward(scaled)
        trainer.step(BATCH * kv.num_workers)
        return float(loss.mean().asscalar())

    losses = [step() for _ in range(STEPS)]
    assert losses[-1] < 0.8 * losses[0]
    weights = weights_of(net)
    if not update_on_kvstore:
        step(np.inf if kv.rank == kv.num_workers - 1 else 1.0)
        assert weights_of(net) == weights
        step()
        assert weights_of(net) != weights
    return weights


def weights_of(net):
    """Return all weights as they are."""
    return [param.data().asnumpy().tolist() for param in net.collect_params().values()]


for where in (True, False):
    store = mx.kv.create("sync-mpi")
    sys.stdout.write(f"TRAINED {'on the servers' if where else 'by the workers'} {train(store, where)}\n")
