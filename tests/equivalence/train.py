"""Trains small models on every worker of a job and compares them with one process and the same batches.

Run by ``test_equivalence.py``, once alone to write down what one process comes to, and under mpilaunch.
Each case opens a store of its own. Every rank prints one line per case: name, largest relative distance
from the reference, and a digest of the weights' bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

GLOBAL_BATCH = 32
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4},
    "adam": {"learning_rate": 0.002},
}


def mlp():
    """Two dense layers."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(24, activation="tanh"), gluon.nn.Dense(10))
    return net, (64,)


def cnn():
    """Two convolutions, so that oneDNN re-lays weights in an evaluation."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(16, 3, activation="tanh"),
        gluon.nn.AvgPool2D(2),
        gluon.nn.Conv2D(16, 3, activation="tanh"),
        gluon.nn.Dense(10),
    )
    return net, (1, 12, 12)


MODELS = {make.__name__: make for make in (mlp, cnn)}


def batches(shape, steps):
    """Return the same global batches on every worker."""
    random = np.random.RandomState(7)
    data = random.normal(size=(steps, GLOBAL_BATCH, *shape)).astype(np.float32)
    return data, random.randint(0, 10, size=(steps, GLOBAL_BATCH))


def train(make, optimizer, steps, kv=None, update_on_kvstore=None):
    """Train on this worker's part of each batch; return the weights in order."""
    net, shape = make()
    mx.random.seed(3)  # Gluon asks the store for rank 0's weights only after the first backward pass
    net.initialize(mx.init.Xavier())
    rank, size = (kv.rank, kv.num_workers) if kv is not None else (0, 1)
    mine = slice(rank * GLOBAL_BATCH // size, (rank + 1) * GLOBAL_BATCH // size)
    data, labels = batches(shape, steps)
    net(mx.nd.array(data[0][mine]))
    trainer = gluon.Trainer(
        net.collect_params(),
        optimizer,
        dict(OPTIMIZERS[optimizer]),
        kvstore=kv,
        update_on_kvstore=update_on_kvstore,
    )
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(steps):
        x, y = mx.nd.array(data[step][mine]), mx.nd.array(labels[step][mine])
        with autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(GLOBAL_BATCH)
        if step % 10 == 5:
            net(x).wait_to_read()
    return [p.data().asnumpy() for p in net.collect_params().values()]


def distance(weights, reference):
    """Return the largest distance of a parameter from the reference, relative to its norm."""
    return max(
        float(np.linalg.norm(w.astype(np.float64) - r) / np.linalg.norm(r))
        for w, r in zip(weights, reference)
    )


def digest(weights):
    """Return a digest of all bits."""
    return hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()[:16]


def references(path, all_steps):
    """Train in this process alone; write the weights of each case after each number of steps."""
    weights = {}
    for steps in all_steps:
        for make in MODELS.values():
            for optimizer in OPTIMIZERS:
                for number, value in enumerate(train(make, optimizer, steps)):
                    weights[f"{make.__name__}-{optimizer}-{steps}-{number}"] = value
    np.savez(path, **weights)


def report(name, rank, apart, bits):
    """Print what has come of a case: how far it is from one process, and the digest of all bits."""
    record = {"case": name, "rank": rank, "distance": apart, "digest": bits}
    sys.stdout.write("RESULT " + json.dumps(record) + "\n")
    sys.stdout.flush()


def main():
    """Run all cases, each in a store of its own; with several numbers of steps, write the references."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reference", required=True)
    parser.add_argument("--steps", type=int, nargs="+", required=True)
    parser.add_argument("--models", choices=[*MODELS], nargs="+", default=[*MODELS])
    arguments = parser.parse_args()
    if len(arguments.steps) > 1:
        references(arguments.reference, arguments.steps)
        return
    [steps] = arguments.steps
    known = np.load(arguments.reference)
    for model in arguments.models:
        make = MODELS[model]
        for optimizer in OPTIMIZERS:
            name = f"{make.__name__}-{optimizer}"
            for update_on_kvstore in (True, False):
                kv = mx.kv.create("sync-mpi")
                weights = train(make, optimizer, steps, kv, update_on_kvstore)
                reference = [known[f"{name}-{steps}-{number}"] for number in range(len(weights))]
                case = f"{name}-{'server' if update_on_kvstore else 'worker'}"
                report(case, kv.rank, distance(weights, reference), digest(weights))


if __name__ == "__main__":
    main()
