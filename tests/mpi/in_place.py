"""Trains a layer whose gradient is overwritten as soon as it is pushed; run by ``test_in_place.py``."""

from __future__ import annotations

import sys

import mxnet as mx
import numpy as np

STEPS, OUTPUTS, INPUTS = 5, 300, 400

kv = mx.kv.create("sync-mpi")
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
weight = mx.nd.zeros((OUTPUTS, INPUTS))
weight.attach_grad()
kv.broadcast("w", weight, out=weight)
expected = np.zeros(weight.shape, np.float32)
for step in range(STEPS):
    data = mx.nd.full((1, INPUTS), step + kv.rank)
    with mx.autograd.record():
        loss = mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=OUTPUTS).sum()
    loss.backward()
    kv.pushpull("w", weight.grad, out=weight)
    weight.grad[:] = -100  # counts for nothing any more
    expected -= 0.5 * sum(step + rank for rank in range(kv.num_workers))
np.testing.assert_array_equal(weight.asnumpy(), expected)
sends = kv._worker.sends_source(kv._exchange.store, "w")
sys.stdout.write(f"TRAINED {kv.rank} {'in place' if sends else 'copied'}\n")
