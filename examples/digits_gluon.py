"""Train a small CNN on handwritten digits with Gluon, on one worker or on many.

An ordinary MXNet script; the same file runs alone and as every worker of a job::

    python examples/digits_gluon.py
    mpilaunch --clients 2 --servers 2 --workers 4 examples/digits_gluon.py
"""

from __future__ import annotations

import argparse
import time

import digits_data
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    # mpilaunch registers its stores before a script runs; without them this is a script of one worker.
    store = "sync-mpi" if "sync-mpi" in mx.kv.KVStoreBase.kv_registry else "local"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kv-store", default=store, help="name of the store (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=4, help="of weights and shuffling (%(default)s)")
    parser.add_argument("--target", type=float, default=0.97, help="test accuracy to reach (%(default)s)")
    return parser.parse_args()


def make_net() -> nn.HybridSequential:
    """Build the CNN; it has no BatchNorm, whose running statistics would differ between workers."""
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(16, kernel_size=3, padding=1, activation="relu"),
        nn.Conv2D(32, kernel_size=3, padding=1, activation="relu"),
        nn.MaxPool2D(2),
        nn.Dense(64, activation="relu"),
        nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def train_epoch(
    net: nn.HybridSequential, trainer: gluon.Trainer, loader: gluon.data.DataLoader, num_workers: int
) -> tuple[int, float]:
    """Take one step per batch; return the number of images that this worker saw and their mean loss."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    seen, total = 0, mx.nd.zeros(1)
    for images, labels in loader:
        with autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(len(images) * num_workers)  # the store sums over the workers; this makes it a mean
        seen += len(images)
        total += loss.sum()
    mx.nd.waitall()  # so that the last update counts into the epoch's time
    return seen, total.asscalar() / seen


def accuracy(net: nn.HybridSequential, digits: digits_data.Digits) -> float:
    """Return the share of the images that the net names rightly."""
    images, labels = digits
    return float(np.mean(net(mx.nd.array(images)).asnumpy().argmax(axis=1) == labels))


def main() -> None:
    """Train, report every epoch on rank 0, fail when the target is missed."""
    args = parse_arguments()
    kv = mx.kv.create(args.kv_store)
    train, test = digits_data.load()
    mine = digits_data.shard(train, kv.rank, kv.num_workers)
    if kv.rank == 0:
        print(f"{kv.num_workers} worker(s), store {kv.type}, {len(mine[0])} images each", flush=True)

    mx.random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002  the loader shuffles with the global generator
    loader = gluon.data.DataLoader(
        gluon.data.ArrayDataset(*mine), args.batch_size, shuffle=True, last_batch="discard"
    )
    net = make_net()
    optimizer = {"learning_rate": args.lr, "momentum": 0.9}
    # The store goes in as an object: for a name without "dist" MXNet makes no store on a single device.
    trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer, kvstore=kv)
    reached = 0.0
    for epoch in range(args.epochs):
        started = time.perf_counter()
        seen, loss = train_epoch(net, trainer, loader, kv.num_workers)
        seconds = time.perf_counter() - started
        reached = accuracy(net, test)
        if kv.rank == 0:
            print(
                f"epoch {epoch + 1:2d}  loss {loss:.4f}  test accuracy {reached:.4f}"
                f"  {seconds:.2f} s  {seen * kv.num_workers / seconds:.0f} images/s",
                flush=True,
            )
    if kv.rank == 0:
        print(f"final test accuracy {reached:.4f}, target {args.target}", flush=True)
    if reached < args.target:
        raise SystemExit(f"test accuracy {reached:.4f} is below the target {args.target}")


if __name__ == "__main__":
    main()
