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
from harness.procfs import anonymous_bytes, num_descriptors, processes_of_job

from kvstore_mpi import Elastic
from kvstore_mpi.adapters.mxnet import KVStoreMPI
from kvstore_mpi.adapters.mxnet.centers import Centers

KEYS = 4
ELEMENTS = 10_000
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
    parser.add_argument("mode", choices=("sync", "async", "elastic"))
    parser.add_argument("folder", type=Path, help="where rank 0 writes soak.jsonl")
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for that long at least")
    parser.add_argument("--steps", type=int, default=BLOCK, help="and for that many steps")
    arguments = parser.parse_args()
    step = Steps(arguments.mode)
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
