"""Trains models by several optimizers for some steps, and saves the losses; may wait at the end.

Run under mpilaunch by ``test_resumption.py``.
"""

from __future__ import annotations

import os
import signal
import sys

import mxnet as mx
import numpy as np

SHAPES = {"weight": (31, 9), "bias": (9,)}

OPTIMIZERS = {
    "adam": (mx.optimizer.Adam(learning_rate=0.02), "float32"),
    "lamb": (mx.optimizer.LAMB(learning_rate=0.02), "float32"),
    "sgd": (mx.optimizer.SGD(learning_rate=0.003, momentum=0.9, multi_precision=True), "float16"),
}
"""With states, for whole tensors, and with masters."""


class Model:
    """A layer whose parameters are on the servers."""

    def __init__(self, name, seed):
        optimizer, dtype = OPTIMIZERS[name]
        self._kv = mx.kv.create("sync-mpi")
        self._kv.set_optimizer(optimizer)
        random = np.random.RandomState(seed)
        self._params = {key: mx.nd.array(random.rand(*SHAPES[key]), dtype=dtype) for key in SHAPES}
        for key, value in self._params.items():
            value.attach_grad()
            self._kv.init(key, value)
            # A job that is resumed does not begin with what it gives.
            self._kv.pull(key, out=value)

    def step(self, inputs, wanted):
        """Train once; return the loss before that."""
        with mx.autograd.record():
            weight, bias = (each.astype("float32") for each in self._params.values())
            loss = ((mx.nd.dot(inputs, weight) + bias - wanted) ** 2).mean()
        loss.backward()
        for key, value in self._params.items():
            self._kv.pushpull(key, value.grad, out=value)
        return loss.asscalar()


target = sys.argv[1]
first, last = map(int, os.environ["STEPS"].split())
kv = mx.kv.create("sync-mpi")
models = [Model(name, seed=first) for name in OPTIMIZERS]
losses = []
for step in range(first, last):
    random = np.random.RandomState(2 * step + kv.rank)
    inputs = random.rand(16, SHAPES["weight"][0])
    wanted = np.sin(np.arange(9) + inputs[:, :9])
    losses.append([model.step(mx.nd.array(inputs), mx.nd.array(wanted)) for model in models])
np.save(f"{target}{kv.rank}.npy", losses)
kv.barrier()
if os.environ.get("WAITS"):
    sys.stdout.write(f"READY {kv.rank} {os.getpid()}\n")
    sys.stdout.flush()
    signal.pause()
