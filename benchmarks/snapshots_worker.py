"""One worker that pushes a model's gradients and waits for its weights, again and again.

Started by ``snapshots.py``; writes ``worker.json``: the seconds of each measured step.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import mxnet as mx
from harness.zoo import load

from kvstore_mpi.adapters.mxnet import KVStoreMPI

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
    marks = [time.monotonic()]
    while marks[-1] - marks[0] < WARMUP_S + arguments.seconds:
        for key, array in enumerate(arrays):
            kv.pushpull(key, array, priority=-key)
        mx.nd.waitall()
        marks.append(time.monotonic())
    first = next(i for i, mark in enumerate(marks) if mark - marks[0] >= WARMUP_S)
    steps = [after - before for before, after in zip(marks[first:], marks[first + 1 :])]
    arguments.results.write_text(json.dumps(steps))


if __name__ == "__main__":
    main()
