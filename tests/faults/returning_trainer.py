"""Trains asynchronously with a plain Trainer; the second client once it has been started again.

Run under mpilaunch by ``test_trainers.py``, which ends it by writing to a pipe.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mxnet as mx
from mxnet import autograd, gluon

kv = mx.kv.create("async-mpi")
incarnation = int(os.environ.get("KVMPI_INCARNATION", "0"))
net = gluon.nn.Dense(1, in_units=1, use_bias=False)
net.initialize(mx.init.Constant(1024.0))
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=kv)
weights = []
for _ in range(10 if kv.rank == 0 else 2 * incarnation):
    with autograd.record():
        loss = (net(mx.nd.ones((1, 1))) ** 2).sum() / 2
    loss.backward()
    trainer.step(1)
    weights.append(float(net.weight.data().asnumpy()[0, 0]))
sys.stdout.write(f"READY {kv.rank} {os.getpid()} incarnation {incarnation} weights {weights[-2:]}\n")
sys.stdout.flush()
if not incarnation:
    Path(sys.argv[1]).read_bytes()
