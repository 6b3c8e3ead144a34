"""Trains with a plain Trainer of Gluon, whose keys come into being in its first step.

Run under mpilaunch by ``test_trainers.py``. With ``TAKES_UP`` in the environment weights are read before.
The bias is frozen at first, and the learning rate goes by ``SCHEDULE``.
"""

from __future__ import annotations

import os
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import kvstore_mpi.mxnet

FROZEN = 6  # steps


class Falling(mx.lr_scheduler.LRScheduler):
    """One that servers do not know, and of which rank 0 asks the rate of each step."""

    def __call__(self, num_update):
        """Return a rate that falls from step to step."""
        return 0.1 / max(1, num_update)


schedules = {
    "own": Falling,
    "factor": lambda: mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1),
}
first, last = map(int, os.environ["STEPS"].split())
kv = mx.kv.create("sync-mpi")
net = gluon.nn.Dense(1)
net.initialize(mx.init.Constant(5.0))
optimizer = {"learning_rate": 0.1, "momentum": 0.5, "lr_scheduler": schedules[os.environ["SCHEDULE"]]()}
here = "UPDATES_HERE" in os.environ
trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer, kvstore=kv, update_on_kvstore=not here)
if os.environ.get("TAKES_UP"):
    net(mx.nd.zeros((1, 4)))
    kvstore_mpi.mxnet.take_up(trainer)
losses, rates = [], []
for step in range(first, last):
    net.bias.grad_req = "null" if step < FROZEN else "write"
    inputs = np.random.RandomState(2 * step + kv.rank).normal(size=(4, 4))
    with autograd.record():
        loss = ((net(mx.nd.array(inputs)) - mx.nd.array(inputs.sum(1, keepdims=True))) ** 2).sum()
    loss.backward()
    trainer.step(4 * kv.num_workers)
    losses.append(loss.asscalar())
    rates.append(trainer.learning_rate)
np.save(f"{sys.argv[1]}{kv.rank}.npy", [losses, rates])
kv.barrier()
