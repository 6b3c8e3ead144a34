"""Measures steps that only look up and push rows of tables, for ``mpilaunch measure-links``.

One job makes the steps of several loads, one after the other, by the calls of MXNet that a training makes:
most of what rows take is Python around them. ``planner.row_costs`` says which loads, and what follows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import mxnet as mx
import numpy as np

import kvstore_mpi.mxnet  # noqa: F401  registers the stores
from kvstore_mpi.planner.row_costs import Load

WARM_UP, STEPS = 3, 15

DENSE_KEYS, DENSE_ELEMENTS = 4, 256
"""That each step has beside its tables, as those of nets have: they count to what a step takes. Their bytes
do not: four kilobytes."""


class DenseKeys:
    """The other keys of a step."""

    def __init__(self, kv: Any) -> None:
        """Create them; called by all workers at the same point."""
        self._kv = kv
        self._arrays = {f"dense{number}": mx.nd.zeros(DENSE_ELEMENTS) for number in range(DENSE_KEYS)}
        self._gradients = mx.nd.ones(DENSE_ELEMENTS)
        for key, array in self._arrays.items():
            kv.init(key, array)

    def push(self) -> None:
        """Push their gradients, and pull what they are then, behind all tables' priorities."""
        for number, (key, array) in enumerate(self._arrays.items()):
            self._kv.pushpull(key, self._gradients, out=array, priority=-1000 - number)


class Tables:
    """The tables of a load, and the rows that this worker looks up and pushes in each step."""

    def __init__(self, kv: Any, name: str, load: Load) -> None:
        """Create the tables; called by all workers in the same order."""
        self._kv = kv
        self._keys = [f"{name}{number}" for number in range(load.tables)]
        shape = (load.rows, load.width)
        ids = load.ids(kv.rank)
        values = np.ones((load.touched, load.width), np.float32)
        pushed = mx.nd.sparse.row_sparse_array((values, ids), shape=shape)
        self._pushed = len(self._keys) * [pushed]
        self._lookups = [mx.nd.array(ids, dtype="int64") for _ in self._keys]
        self._found = [mx.nd.zeros(shape, stype="row_sparse") for _ in self._keys]
        for key in self._keys:
            if load.pieces:
                kv.partitioner(key, load.pieces)
            kv.init(key, mx.nd.zeros(shape, stype="row_sparse"))

    def look_up(self) -> None:
        """Wait for the rows as they are after the step before."""
        self._kv.row_sparse_pull(self._keys, out=self._found, row_ids=self._lookups)
        mx.nd.waitall()

    def push(self) -> None:
        """Push gradients of the rows, the last table first, as backward does."""
        for number in reversed(range(len(self._keys))):
            self._kv.push(self._keys[number], self._pushed[number], priority=-number)


def step_seconds(kv: Any, tables: Tables, dense: DenseKeys) -> float:
    """Return how long a step takes, in the middle of some."""
    ends = []
    for _ in range(WARM_UP + STEPS):
        tables.look_up()
        dense.push()
        tables.push()
        ends.append(time.perf_counter())
    mx.nd.waitall()
    kv._barrier()  # noqa: SLF001  MXNet's only name for it
    return float(median(np.diff(ends[WARM_UP - 1 :]).tolist()))


def main() -> None:
    """Measure all loads with the workers of this job; the first writes the seconds of a step of each."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="where the seconds go")
    parser.add_argument("--loads", required=True, help="JSON of the loads by name")
    options = parser.parse_args()
    kv = mx.kv.create("dist_sync_mpi")
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, wd=0.0))
    loads = msgspec.json.decode(options.loads, type=dict[str, Load])
    dense = DenseKeys(kv)
    tables = {name: Tables(kv, name, load) for name, load in loads.items()}
    mx.nd.waitall()
    kv._barrier()  # noqa: SLF001
    seconds = {name: step_seconds(kv, each, dense) for name, each in tables.items()}
    if kv.rank == 0:
        options.output.write_bytes(msgspec.json.encode(seconds))
    kv._barrier()  # noqa: SLF001


if __name__ == "__main__":
    main()
