"""Train the CNN of digits_gluon.py until a target is reached, for ``mpilaunch measure-epochs``.

Each update is made of as many batches as the job's delay says, and four times in an epoch the script
reports what it has reached::

    mpilaunch measure-epochs --target 0.97 --batch 32 --repeats 3 examples/digits_epochs.py --seed {repeat}
"""

from __future__ import annotations

import argparse

import digits_data
import mxnet as mx
import numpy as np
from digits_gluon import accuracy, make_net
from mxnet import autograd, gluon

from kvstore_mpi import report_epoch
from kvstore_mpi.mxnet import DelayedTrainer

REPORTS = 4
"""In each epoch."""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=40, help="passes over the data at most (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images of all workers (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one batch (%(default)s)")
    parser.add_argument("--seed", type=int, default=4, help="of weights and shuffling (%(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train until the target is reached, or for all epochs."""
    args = parse_arguments()
    kv = mx.kv.create("sync-mpi")
    train, test = digits_data.load()
    mine = digits_data.shard(train, kv.rank, kv.num_workers)
    mx.random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002  the loader shuffles with the global generator
    loader = gluon.data.DataLoader(
        gluon.data.ArrayDataset(*mine),
        args.batch_size // kv.num_workers,
        shuffle=True,
        last_batch="discard",
    )
    net, loss_of = make_net(), gluon.loss.SoftmaxCrossEntropyLoss()
    optimizer = {"learning_rate": args.lr, "momentum": 0.9}
    trainer = DelayedTrainer(net.collect_params(), "sgd", optimizer, kvstore=kv)
    every = len(loader) // REPORTS
    for epoch in range(args.epochs):
        for number, (images, labels) in enumerate(loader, 1):
            with autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(len(images) * kv.num_workers)
            if number % every == 0 and report_epoch(accuracy(net, test), epoch + number / len(loader)):
                return


if __name__ == "__main__":
    main()
