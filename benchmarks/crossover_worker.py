"""One rank that trains the digits CNN until a target is reached, for ``crossover.py``.

A worker of one rank has Gluon's own trainer; one of several has a stage of the net on each. Rank 0 writes
``measured.json``: epochs to the target, steps of an epoch, and the median seconds of a step.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from kvstore_mpi.mxnet import PipelineTrainer

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import digits_data
from digits_gluon import accuracy, make_net

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPORTS = 4
"""In each epoch, as in examples/digits_epochs.py."""

RATE, RATE_BATCH = 0.02, 32
"""The learning rate of a batch; that of others is as much larger as they are."""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, required=True, help="images of a worker in a step")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--target", type=float, default=0.97)
    parser.add_argument("--epochs", type=int, default=40, help="at most")
    parser.add_argument("--results", type=Path, required=True)
    return parser.parse_args()


def trainer_of(
    kv: Any, net: Any, optimizer: dict[str, float], sample: Any
) -> tuple[Callable[[Any, Any], Any], Callable[[], None]]:
    """Return what takes a step, and what must come before the net is looked at."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    if kv.model_parallel > 1:
        pipeline = PipelineTrainer(
            net, loss_of, "sgd", optimizer, kvstore=kv, stages="auto", micro_batches=4, sample=sample
        )
        return pipeline.step, pipeline.gather
    trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer, kvstore=kv)

    def step(images: Any, labels: Any) -> None:
        with autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(len(images) * kv.num_workers)

    return step, lambda: None


def batches_of(images: Any, labels: Any, size: int, epochs: int, order: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of some epochs, each in an order of its own."""
    for _ in range(epochs):
        shuffled = order.permutation(len(images))
        for at in range(0, len(images) // size * size, size):
            batch = shuffled[at : at + size]
            yield mx.nd.array(images[batch]), mx.nd.array(labels[batch])


def main() -> None:
    """Train until the target is reached, or for all epochs."""
    args = parse_arguments()
    kv = mx.kv.create("sync-mpi")
    train, test = digits_data.load()
    images, labels = digits_data.shard(train, kv.rank, kv.num_workers)
    mx.random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002  MXNet's initialisers draw from it
    order = np.random.default_rng(args.seed)  # the same batches on all ranks of a worker
    net, size = make_net(), args.batch_size
    rate = RATE * size * kv.num_workers / RATE_BATCH
    optimizer = {"learning_rate": rate, "momentum": 0.9}
    step, gather = trainer_of(kv, net, optimizer, mx.nd.array(images[:size]))
    every = max(1, len(images) // size // REPORTS)
    reached, seconds = None, []
    batches = batches_of(images, labels, size, args.epochs, order)
    begun, before = time.perf_counter(), 0
    for number, batch in enumerate(batches, 1):
        step(*batch)
        if number % (len(images) // size) % every == 0:
            mx.nd.waitall()
            seconds.append((time.perf_counter() - begun) / (number - before))
            gather()
            if accuracy(net, test) >= args.target:
                reached = number / (len(images) // size)
                break
            begun, before = time.perf_counter(), number
    if kv.rank == kv.model_rank == 0:
        found = {
            "epochs": reached,
            "steps": len(images) // size,
            "batch_of_update": size * kv.num_workers,
            "step_s": median(seconds[1:] or seconds),
        }
        (args.results / "measured.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
