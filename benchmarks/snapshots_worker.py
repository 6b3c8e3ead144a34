"""One worker that pushes a model's gradients and waits for its weights, again and again.

Started by ``snapshots.py``; writes ``worker.json``: the seconds of each measured step, and the processor
time of all processes in one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import mxnet as mx
from harness.procfs import Load, job_pids
from harness.zoo import load

from kvstore_mpi.adapters.mxnet import KVStoreMPI

if TYPE_CHECKING:
    from collections.abc import Sequence

WARMUP_S = 3.0


def main() -> None:
    """Train for some seconds and write how long each step took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("results", type=Path)
    arguments = parser.parse_args()
    kv = KVStoreMPI("async")
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1e-3, momentum=0.9))
    arrays = [mx.nd.ones(size) for size in replace(load("resnet50"), scale=1).elements()]
    for key, array in enumerate(arrays):
        kv.init(key, array)
    pids = job_pids()
    run(kv, arrays, WARMUP_S)
    before = Load.now(pids)
    steps = run(kv, arrays, arguments.seconds)
    cpu_s = (Load.now(pids).job_s - before.job_s) / len(steps)
    arguments.results.write_text(json.dumps({"steps_s": steps, "step_cpu_s": cpu_s}))


def run(kv: KVStoreMPI, arrays: Sequence[mx.nd.NDArray], seconds: float) -> list[float]:
    """Push and pull for some seconds; return how long each step took."""
    marks = [time.monotonic()]
    while marks[-1] - marks[0] < seconds:
        for key, array in enumerate(arrays):
            kv.pushpull(key, array, priority=-key)
        mx.nd.waitall()
        marks.append(time.monotonic())
    return [after - before for before, after in itertools.pairwise(marks)]


if __name__ == "__main__":
    main()
