"""One worker that learns which ids go together, from rows that may be old, for ``staleness.py``.

A pair of ids goes together if the product of their hidden vectors is positive; two tables that servers
hold learn vectors of their own from pairs that are drawn by Zipf's law. Rank 0 writes ``worker0.json``: of
how many new pairs the answer was right in the end.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import mxnet as mx
import numpy as np
from harness.hidden_pairs import pairs

from kvstore_mpi.mxnet import KVStoreMPI, RowInit, TableEmbedding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.hidden_pairs import Pairs

PAIRS, DIM = 4096, 16
TESTED = 20_000
RATE = 0.2


def train(tables: list[TableEmbedding], batches: Iterator[Pairs], steps: int, size: int) -> None:
    """Take some steps, in each of which the rows of the next one are asked for."""
    loss_of = mx.gluon.loss.SigmoidBinaryCrossEntropyLoss()
    batch = next(batches)
    for _ in range(steps):
        following = next(batches)
        with mx.autograd.record():
            left, right = (table(ids) for table, ids in zip(tables, batch))
            loss = loss_of((left * right).sum(axis=1), mx.nd.array(batch[2]))
        for table, ids in zip(tables, following):
            table.prefetch(ids)
        loss.backward()
        for table in tables:
            table.step(size)
        batch = following


def main() -> None:
    """Train, and write of which share of new pairs the answer is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--staleness", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--results", type=Path, required=True)
    args = parser.parse_args()
    kv = KVStoreMPI("sync")
    kv.set_optimizer(mx.optimizer.create("adagrad", learning_rate=RATE))

    def table(name: str, staleness: int) -> TableEmbedding:
        init = RowInit("normal", 0, 0.1, seed=args.seed + len(name))
        return TableEmbedding(kv, name, DIM, init=init, staleness=staleness)

    tables = [table(name, args.staleness) for name in ("left", "right")]
    train(tables, pairs(args.seed, kv.rank, PAIRS), args.steps, PAIRS * kv.num_workers)
    for _ in range(args.staleness + 1):  # so that no row is old when the answers are given
        for each in tables:
            each.step(1)
    mx.nd.waitall()
    kv.barrier()
    left, right, together = next(pairs(args.seed, kv.num_workers, TESTED))
    scores = (tables[0](left) * tables[1](right)).sum(axis=1).asnumpy()
    if kv.rank == 0:
        right_share = float(np.mean((scores > 0) == together))
        (args.results / "worker0.json").write_text(json.dumps({"right": right_share}))
    kv.barrier()


if __name__ == "__main__":
    main()
