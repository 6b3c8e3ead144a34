"""Trains with a plain Trainer of Gluon, whose keys come into being in its first step.

Run under mpilaunch by ``test_trainers.py``. With ``TAKES_UP`` in the environment weights are read before.
"""

from __future__ import annotations

import os
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import kvstore_mpi.mxnet

first, last = map(int, os.environ["STEPS"].split())
kv = mx.kv.create("sync-mpi")
net = gluon.nn.Dense(1)
net.initialize(mx.init.Constant(5.0))
optimizer = {"learning_rate": 0.1, "momentum": 0.5}
trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer, kvstore=kv)
if os.environ.get("TAKES_UP"):
    net(mx.nd.zeros((1, 4)))
    kvstore_mpi.mxnet.take_up(trainer)
losses = []
for step in range(first, last):
    inputs = np.random.RandomState(2 * step + kv.rank).normal(size=(4, 4))
    with autograd.record():
        loss = ((net(mx.nd.array(inputs)) - mx.nd.array(inputs.sum(1, keepdims=True))) ** 2).sum()
    loss.backward()
    trainer.step(4 * kv.num_workers)
    losses.append(loss.asscalar())
np.save(f"{sys.argv[1]}{kv.rank}.npy", losses)
kv.barrier()
