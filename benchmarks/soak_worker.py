"""One worker that exchanges some keys for a long time, while rank 0 looks at all processes of the job.

Started by ``soak.py``. Rank 0 writes a line of JSON for each look: steps so far, seconds, and of each
process its own memory and its descriptors. Nothing is kept here, or it would look like growth.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from harness.procfs import anonymous_bytes, num_descriptors, processes_of_job

from kvstore_mpi import Elastic
from kvstore_mpi.adapters.mxnet import KVStoreMPI
from kvstore_mpi.adapters.mxnet.centers import Centers

KEYS = 4
ELEMENTS = 10_000
ROWS, WIDTH, TOUCHED = 1_000, 10, 100
TURNS = 4
"""Drawings of rows that a worker goes through again and again."""

BLOCK = 50
"""Steps between two looks at the clock, after which all workers agree whether to go on."""


class Steps:
    """The tensors of one worker, and a step with them."""

    def __init__(self, mode: str) -> None:
        """Open the store that the mode needs."""
        self.kv = KVStoreMPI("sync" if mode == "sync" else "async")
        self._weights = [mx.nd.ones(ELEMENTS) for _ in range(KEYS)]
        self._gradients = [mx.nd.ones(ELEMENTS) for _ in range(KEYS)]
        self._centers = Centers(self.kv, Elastic(0.4), 1, 0) if mode == "elastic" else None
        if self._centers is None:
            self.kv.set_optimizer(mx.optimizer.SGD(learning_rate=1e-6, momentum=0.9))
        for key, weight in enumerate(self._weights):
            if self._centers is not None:
                self._centers.join(key, [weight])
            else:
                self.kv.init(key, weight)

    def __call__(self) -> None:
        """Exchange every key once, and wait for it."""
        if self._centers is not None:
            self._centers.step(KEYS)
        else:
            for key in range(KEYS):
                self.kv.pushpull(key, [self._gradients[key]], out=[self._weights[key]], priority=-key)
        mx.nd.waitall()


class RowSteps:
    """The tables of one worker, and a step: rows are pushed, and others looked up or all pulled."""

    def __init__(self, mode: str) -> None:
        """Open the store; in ``rows`` weights are dense, otherwise they are row-sparse."""
        self.kv = KVStoreMPI("sync")
        self.kv.set_optimizer(mx.optimizer.SGD(learning_rate=1e-6))
        drawn = [
            np.random.default_rng((self.kv.rank, turn)).permutation(ROWS)[:TOUCHED] for turn in range(TURNS)
        ]
        self._ids = [mx.nd.array(np.sort(ids), dtype="int64") for ids in drawn]
        ones = mx.nd.ones((TOUCHED, WIDTH))
        self._gradients = [
            mx.nd.sparse.row_sparse_array((ones, ids), shape=(ROWS, WIDTH)) for ids in self._ids
        ]
        self._looks_up = mode != "rows"
        self._out = [
            mx.nd.sparse.zeros("row_sparse", (ROWS, WIDTH))
            if self._looks_up
            else mx.nd.zeros((ROWS, WIDTH))
            for _ in range(KEYS)
        ]
        value = mx.nd.zeros((ROWS, WIDTH))
        for key in range(KEYS):
            self.kv.init(key, value.tostype("row_sparse") if self._looks_up else value)
        self._turn = 0

    def __call__(self) -> None:
        """Push rows of every table, and wait for what comes back."""
        self._turn = (self._turn + 1) % TURNS
        for key, out in enumerate(self._out):
            self.kv.push(key, self._gradients[self._turn], priority=-key)
            if self._looks_up:
                self.kv.row_sparse_pull(key, out=out, row_ids=self._ids[self._turn - 1], priority=-key)
            else:
                self.kv.pull(key, out=out, priority=-key)
        mx.nd.waitall()


def look(results: Path, processes: dict[str, int], step: int, seconds: float) -> None:
    """Append what the processes of the job hold now."""
    line = {
        "step": step,
        "seconds": seconds,
        "memory": {name: anonymous_bytes(pid) for name, pid in processes.items()},
        "descriptors": {name: num_descriptors(pid) for name, pid in processes.items()},
    }
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    """Take a number of steps, the same on all workers, and look at the processes in between."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("sync", "async", "elastic", "rows", "lookups", "rows-of-workers"))
    parser.add_argument("folder", type=Path, help="where rank 0 writes soak.jsonl")
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for that long at least")
    parser.add_argument("--steps", type=int, default=BLOCK, help="and for that many steps")
    arguments = parser.parse_args()
    with_tensors = arguments.mode in {"sync", "async", "elastic"}
    step = Steps(arguments.mode) if with_tensors else RowSteps(arguments.mode)
    step.kv.barrier()  # all processes are there
    processes = processes_of_job()
    begun, done, looked = time.monotonic(), 0, 0.0
    every = max(arguments.seconds / 200, 0.05)
    over = arguments.folder / "over"
    while not over.exists():
        for _ in range(BLOCK):
            step()
        done += BLOCK
        seconds = time.monotonic() - begun
        if step.kv.rank == 0 and seconds - looked >= every:
            looked = seconds
            look(arguments.folder / "soak.jsonl", processes, done, seconds)
        if step.kv.rank == 0 and seconds >= arguments.seconds and done >= arguments.steps:
            over.touch()
        step.kv.barrier()


if __name__ == "__main__":
    main()
