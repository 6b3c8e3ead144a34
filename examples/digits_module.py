"""Train a small CNN on handwritten digits with the symbolic Module API, on one worker or on many.

An ordinary MXNet script; the same file runs alone and as every worker of a job::

    python examples/digits_module.py
    mpilaunch --clients 2 --servers 2 --workers 4 examples/digits_module.py
"""

from __future__ import annotations

import argparse

import digits_data
import mxnet as mx
import numpy as np


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


def make_symbol() -> mx.sym.Symbol:
    """Build the CNN; it has no BatchNorm, whose running statistics would differ between workers."""
    x = mx.sym.Variable("data")
    for index, channels in enumerate((16, 32)):
        x = mx.sym.Convolution(x, num_filter=channels, kernel=(3, 3), pad=(1, 1), name=f"conv{index}")
        x = mx.sym.Activation(x, act_type="relu")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = mx.sym.FullyConnected(x, num_hidden=64, name="dense0")
    x = mx.sym.Activation(x, act_type="relu")
    x = mx.sym.FullyConnected(x, num_hidden=10, name="dense1")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def main() -> None:
    """Train, report every epoch on rank 0, fail when the target is missed."""
    args = parse_arguments()
    kv = mx.kv.create(args.kv_store)
    train, test = digits_data.load()
    mine = digits_data.shard(train, kv.rank, kv.num_workers)
    if kv.rank == 0:
        print(f"{kv.num_workers} worker(s), store {kv.type}, {len(mine[0])} images each", flush=True)

    mx.random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002  the iterator shuffles with the global generator
    train_iter = mx.io.NDArrayIter(*mine, args.batch_size, shuffle=True, last_batch_handle="discard")
    test_iter = mx.io.NDArrayIter(*test, batch_size=len(test[0]))
    training = mx.metric.CompositeEvalMetric([mx.metric.CrossEntropy(), mx.metric.Accuracy()])

    def report(validation: mx.model.BatchEndParam) -> None:
        if kv.rank == 0:
            (_, loss), (_, trained) = training.get_name_value()
            ((_, tested),) = validation.eval_metric.get_name_value()
            print(
                f"epoch {validation.epoch + 1:2d}  loss {loss:.4f}"
                f"  training accuracy {trained:.4f}  test accuracy {tested:.4f}",
                flush=True,
            )

    module = mx.mod.Module(make_symbol())
    module.fit(
        train_iter,
        eval_data=test_iter,
        eval_metric=training,
        validation_metric="acc",
        eval_end_callback=report,
        kvstore=kv,
        optimizer="sgd",
        optimizer_params={"learning_rate": args.lr, "momentum": 0.9},
        initializer=mx.init.Xavier(),
        num_epoch=args.epochs,
    )
    ((_, reached),) = module.score(test_iter, "acc")
    if kv.rank == 0:
        print(f"final test accuracy {reached:.4f}, target {args.target}", flush=True)
    if reached < args.target:
        raise SystemExit(f"test accuracy {reached:.4f} is below the target {args.target}")


if __name__ == "__main__":
    main()
