"""One worker that replays a model's compute as waits while its gradients really travel.

Started by the ``p3_*.py`` benchmarks; the same script for every store. Writes ``worker<rank>.json``. It
must not know how it was started, only the name of the store.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from harness.procfs import Load, job_pids

TOLERANCE_S = 1e-3
"""A layer whose weights are there this late or earlier has not waited: so much, once, is the resolution."""

PATTERN = 5
"""Sums repeat after 5 iterations and keys, so that a stale one or one of another key is noticed."""


@dataclass(frozen=True)
class Plan:
    """What to replay; lists have one entry per tensor, in forward order.

    Attributes:
        elements: Sizes of the tensors.
        forward_s: Seconds of compute that need the tensor.
        backward_s: Seconds of compute before its gradient is ready.
        warmup: Iterations that are not measured.
        iterations: Iterations that are.
    """

    elements: list[int]
    forward_s: list[float]
    backward_s: list[float]
    warmup: int
    iterations: int


class Pace:
    """Compute as a series of deadlines, so that late wake-ups do not add up."""

    def __init__(self) -> None:
        """Begin now."""
        self._planned = time.monotonic()
        self.stalled_s = 0.0

    def compute(self, seconds: float) -> None:
        """Move the deadline by so much compute."""
        self._planned += seconds

    def sleep(self) -> None:
        """Sleep until the deadline, if that is still to come."""
        left = self._planned - time.monotonic()
        if left > 0:
            time.sleep(left)

    def waited(self) -> None:
        """Go on from now if the wait that has just ended was longer than the tolerance."""
        late = time.monotonic() - self._planned
        if late > TOLERANCE_S:
            self.stalled_s += late
            self._planned += late


class Replay:
    """The tensors of the model and the passes over them."""

    def __init__(self, kv: Any, plan: Plan) -> None:
        """Make the arrays and tell the store; every page is touched."""
        self._kv = kv
        self._plan = plan
        self._views = [np.zeros(size, np.float32) for size in plan.elements]
        self._weights = [mx.nd.from_numpy(view, zero_copy=True) for view in self._views]
        self._gradients = [mx.nd.zeros(size) for size in plan.elements]
        self._pace = Pace()
        for key, size in enumerate(plan.elements):
            kv.init(key, mx.nd.zeros(size))
        mx.nd.waitall()

    def run(self) -> dict[str, Any]:
        """Do all iterations; return when each measured one began and ended, and what it cost.

        ``marks`` are seconds of the machine's monotonic clock, one more than there are iterations;
        ``stalled_s`` is how long their forward passes waited for weights.
        """
        plan = self._plan
        pids = job_pids() if self._kv.rank == 0 else []
        self._kv._barrier()  # noqa: SLF001  MXNet's only name for it
        self._pace = Pace()
        for iteration in range(plan.warmup):
            self._iterate(iteration)
        before = Load.now(pids) if pids else None
        self._pace.stalled_s = 0.0
        marks = [time.monotonic()]
        for iteration in range(plan.warmup, plan.warmup + plan.iterations):
            self._iterate(iteration)
            marks.append(time.monotonic())
        load = [asdict(before), asdict(Load.now(pids))] if before else []
        stalled = self._pace.stalled_s
        self._forward()
        for key in range(len(plan.elements)):
            self._check(key, plan.warmup + plan.iterations - 1)
        return {"marks": marks, "stalled_s": stalled, "load": load}

    def _iterate(self, iteration: int) -> None:
        self._forward()
        self._backward(iteration)

    def _forward(self) -> None:
        """Compute from the first layer to the last, each as soon as its own weights are there."""
        for weight, seconds in zip(self._weights, self._plan.forward_s):
            weight.wait_to_read()
            self._pace.waited()
            self._pace.compute(seconds)
            self._pace.sleep()

    def _backward(self, iteration: int) -> None:
        """Compute from the last layer to the first; hand over each gradient when it would be ready.

        During the time that stands for a layer's compute the gradient of the next is made, and its sum of
        the iteration before is checked: a layer may have megabytes and no compute of its own.
        """
        last = len(self._weights) - 1
        self._prepare(last, iteration)
        for key in range(last, -1, -1):
            self._pace.compute(self._plan.backward_s[key])
            if key:
                self._prepare(key - 1, iteration)
            self._pace.sleep()
            self._kv.pushpull(key, [self._gradients[key]], out=[self._weights[key]], priority=-key)

    def _prepare(self, key: int, iteration: int) -> None:
        self._check(key, iteration - 1)
        self._gradients[key][:] = (self._kv.rank + 1) * _unit(iteration, key)

    def _check(self, key: int, iteration: int) -> None:
        """Make sure that every element is the sum over the workers of that iteration.

        Raises:
            ValueError: An element differs.
        """
        workers = self._kv.num_workers
        expected = workers * (workers + 1) // 2 * _unit(iteration, key) if iteration >= 0 else 0
        least, most = self._views[key].min(), self._views[key].max()
        if not least == most == expected:
            where = f"iteration {iteration}, key {key}, worker {self._kv.rank}"
            raise ValueError(f"{where}: got {least} to {most}, not {expected}")


def _unit(iteration: int, key: int) -> int:
    """Return what the first worker pushes."""
    return (iteration + 2 * key) % PATTERN + 1


def main() -> None:
    """Replay the plan and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-store", default="dist_sync_mpi", help="name given to mx.kv.create")
    parser.add_argument("--plan", type=Path, required=True, help="JSON file with the fields of Plan")
    parser.add_argument("--results", type=Path, default=Path(), help="directory for worker<rank>.json")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if arguments.kv_store.endswith("_mpi"):
        import kvstore_mpi.mxnet  # noqa: F401, PLC0415  registers the store

        gc.freeze()  # as mpilaunch does
    kv = mx.kv.create(arguments.kv_store)
    measured = Replay(kv, Plan(**json.loads(arguments.plan.read_text()))).run()
    (arguments.results / f"worker{kv.rank}.json").write_text(json.dumps(measured))
    kv._barrier()  # noqa: SLF001  MXNet's only name for it


if __name__ == "__main__":
    main()
