r"""Train the digits CNN with workers of several ranks, each of which has a stage of the net.

The script of ``digits_gluon.py`` with two differences: a ``PipelineTrainer`` takes the steps, and
``gather`` comes before the net is evaluated. Every rank makes the same net and reads the same batches as
the other ranks of its worker; ``kv.rank`` and ``kv.num_workers`` count workers::

    mpilaunch --model-parallel 2 examples/digits_pipeline.py
    mpilaunch --clients 2 --servers 1 --model-parallel 2 examples/digits_pipeline.py
    mpilaunch plan --cluster cluster.toml --epochs-curve curve.json --batch 32 --samples 1437 \
        --output plan.json examples/digits_pipeline.py --epochs 1 --target 0
    mpilaunch --plan plan.json examples/digits_pipeline.py
"""

from __future__ import annotations

import argparse
import time

import digits_data
import mxnet as mx
import numpy as np
from digits_gluon import accuracy, make_net
from mxnet import gluon

from kvstore_mpi.mxnet import PipelineTrainer


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kv-store", default="sync-mpi", help="name of the store (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker (%(default)s)")
    parser.add_argument("--micro-batches", type=int, default=4, help="equal parts of a batch (%(default)s)")
    parser.add_argument(
        "--stages", type=int, nargs="*", help="first layer of each stage but the first (measured)"
    )
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (%(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum (%(default)s)")
    parser.add_argument("--seed", type=int, default=4, help="of weights and shuffling (%(default)s)")
    parser.add_argument("--target", type=float, default=0.97, help="test accuracy to reach (%(default)s)")
    parser.add_argument("--save", default="", help="file for the parameters")
    return parser.parse_args()


def main() -> None:
    """Train, report every epoch, fail when the target is missed."""
    args = parse_arguments()
    kv = mx.kv.create(args.kv_store)
    train, test = digits_data.load()
    images, labels = digits_data.shard(train, kv.rank, kv.num_workers)

    mx.random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002  MXNet's initialisers draw from it
    shuffled = np.random.default_rng(args.seed)  # the same batches on all ranks of a worker
    net, size = make_net(), args.batch_size
    trainer = PipelineTrainer(
        net,
        gluon.loss.SoftmaxCrossEntropyLoss(),
        "sgd",
        {"learning_rate": args.lr, "momentum": args.momentum},
        kvstore=kv,
        stages="auto" if args.stages is None else args.stages,
        micro_batches=args.micro_batches,
        sample=mx.nd.array(images[:size]),
    )
    if kv.rank == kv.model_rank == 0:
        print(f"{kv.num_workers} worker(s) of {kv.model_parallel}; cut before {trainer.stages.bounds}")
    started = time.perf_counter()
    for epoch in range(args.epochs):
        order = shuffled.permutation(len(images))
        for at in range(0, len(order) // size * size, size):
            batch = order[at : at + size]
            loss = trainer.step(mx.nd.array(images[batch]), mx.nd.array(labels[batch]))
        if loss is not None and kv.rank == 0:  # the rank that has the last stage
            print(f"epoch {epoch + 1:2d}  loss {loss.mean().asscalar():.4f}", flush=True)
    kv.barrier()
    trainer.gather()
    reached = accuracy(net, test)
    if kv.rank == kv.model_rank == 0:
        print(f"test accuracy {reached:.4f}, {time.perf_counter() - started:.1f} s", flush=True)
        if args.save:
            net.save_parameters(args.save)
    if reached < args.target:
        raise SystemExit(f"test accuracy {reached:.4f} is below the target {args.target}")


if __name__ == "__main__":
    main()
