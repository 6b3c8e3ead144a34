"""Train a small CNN on handwritten digits in each of the modes of MXNET-MPI, and in two more.

The mode says how workers are coupled; how many clients they form is the launcher's to say::

    mpilaunch --clients 4 --servers 2 examples/modes.py --mode dist-esgd
    mpilaunch --clients 2 --workers 4 --servers 2 examples/modes.py --mode mpi-esgd
    mpilaunch --clients 1 --workers 4 examples/modes.py --mode pure-mpi

``dist-*``: every worker is a client; ``mpi-*``: a client has several, which sum by MPI.

- ``sgd``: the servers wait for the gradients of all clients, then update.
- ``asgd``: the servers update at once with each client's gradient.
- ``esgd``: clients train by themselves and meet a center now and then (elastic averaging).
- ``diloco``: the same with Nesterov's momentum on the center.
- ``pure-mpi``: one client and no servers.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import digits_data
import mxnet as mx
import numpy as np
from digits_gluon import accuracy, make_net
from mxnet import autograd, gluon

from kvstore_mpi import DiLoCo
from kvstore_mpi.mxnet import ElasticTrainer, KVStoreMPI

MODES = (
    "dist-sgd",
    "dist-asgd",
    "dist-esgd",
    "mpi-sgd",
    "mpi-asgd",
    "mpi-esgd",
    "mpi-diloco",
    "pure-mpi",
)
ASYNCHRONOUS = ("asgd", "esgd")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=MODES, default="mpi-esgd", help="(%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="images per worker (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (%(default)s)")
    parser.add_argument("--interval", type=int, default=8, help="steps between exchanges (%(default)s)")
    parser.add_argument("--alpha", type=float, default=0.5, help="of elastic averaging (%(default)s)")
    parser.add_argument("--seed", type=int, default=4, help="of weights and shuffling (%(default)s)")
    parser.add_argument("--target", type=float, default=0.96, help="test accuracy to reach (%(default)s)")
    return parser.parse_args()


def open_store(mode: str) -> KVStoreMPI:
    """Open the store of a mode; refuse a layout that is not the mode's."""
    kv = mx.kv.create("async-mpi" if mode.endswith(ASYNCHRONOUS) else "sync-mpi")
    if mode.startswith("dist-") and kv.mpi_size > 1:
        raise SystemExit(f"{mode}: every worker is a client; start as many --clients as --workers")
    if mode == "pure-mpi" and kv.num_clients > 1:
        raise SystemExit("pure-mpi: start with --clients 1 and without --servers")
    return kv


def make_trainer(args: argparse.Namespace, net: Any, kv: KVStoreMPI) -> tuple[gluon.Trainer, int]:
    """Return the mode's trainer, and over how many workers its gradients are summed."""
    params = net.collect_params()
    hyper = {"learning_rate": args.lr, "momentum": 0.9}
    if args.mode.endswith("esgd"):
        return ElasticTrainer(
            params, "sgd", hyper, kvstore=kv, interval=args.interval, alpha=args.alpha
        ), 1  # it divides by the number of ranks itself
    if args.mode.endswith("diloco"):
        server = DiLoCo()
        hyper["learning_rate"] /= 5  # the outer momentum makes up to 0.7 / (1 - 0.9) of a client's way
        return ElasticTrainer(
            params, "sgd", hyper, kvstore=kv, interval=args.interval, server_optimizer=server
        ), 1
    if args.mode.endswith("asgd"):
        hyper["learning_rate"] /= kv.num_clients  # as many updates as clients in the time of one
        return gluon.Trainer(params, "sgd", hyper, kvstore=kv), kv.mpi_size
    return gluon.Trainer(params, "sgd", hyper, kvstore=kv), kv.num_workers


def main() -> None:
    """Train, report every epoch on rank 0, fail when the target is missed."""
    args = parse_arguments()
    kv = open_store(args.mode)
    train, test = digits_data.load()
    mine = digits_data.shard(train, kv.rank, kv.num_workers)
    mx.random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002  the loader shuffles with the global generator
    loader = gluon.data.DataLoader(
        gluon.data.ArrayDataset(*mine), args.batch_size, shuffle=True, last_batch="discard"
    )
    net = make_net()
    trainer, num_summed = make_trainer(args, net, kv)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    reached, began = 0.0, time.perf_counter()
    for epoch in range(args.epochs):
        for images, labels in loader:
            with autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(len(images) * num_summed)
        reached = accuracy(net, test)
        if kv.rank == 0:
            seconds = time.perf_counter() - began
            print(f"epoch {epoch + 1:2d}  test accuracy {reached:.4f}  {seconds:.1f} s", flush=True)
    if isinstance(trainer, ElasticTrainer):
        with trainer.center():
            reached = accuracy(net, test)
    print(f"{args.mode}: worker {kv.rank} ends with test accuracy {reached:.4f}", flush=True)
    if reached < args.target:
        raise SystemExit(f"test accuracy {reached:.4f} is below the target {args.target}")


if __name__ == "__main__":
    main()
