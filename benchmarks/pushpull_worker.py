"""One worker of a pushpull measurement; the same script for every kind of store.

Started by ``pushpull.py``, under mpilaunch or as a worker of MXNet's own parameter server; writes
``worker<rank>.json``. It must not know how it was started, only the name of the store.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from harness.cases import CASES, MEMORY_MODEL, Case, by_names
from harness.procfs import (
    Load,
    job_pids,
    peak_bytes,
    resident_bytes,
    server_pids,
    shared_bytes,
    start_new_peak,
)

Exchange = Callable[[Any, int, mx.nd.NDArray, mx.nd.NDArray, int], None]

KEYS_PER_CASE = 1_000
LEARNING_RATE = 1e-3
MOMENTUM = 0.9


@dataclass
class Parameters:
    """The keys of one case with their gradients and weights.

    Attributes:
        keys: Integer keys, distinct between cases.
        gradients: One float32 array per key.
        weights: Where the results go, one per key, of the same shapes.
        views: The memory of weights on the host, read-only; looking at it costs no copy, so that the two
            workers do not drift apart while they check.
    """

    keys: list[int]
    gradients: list[mx.nd.NDArray]
    weights: list[mx.nd.NDArray]
    views: list[np.ndarray[Any, Any]]

    @classmethod
    def of(
        cls, shapes: list[tuple[int, ...]], first_key: int, device: mx.Context | None = None
    ) -> Parameters:
        """Allocate arrays of these shapes on a GPU, or on the host with every page touched."""
        keys = list(range(first_key, first_key + len(shapes)))
        if device is not None:
            gradients, weights = ([mx.nd.ones(s).as_in_context(device) for s in shapes] for _ in range(2))
            mx.nd.waitall()
            return cls(keys, gradients, weights, [])
        views = [np.ones(shape, np.float32) for shape in shapes]
        weights = [mx.nd.from_numpy(view, zero_copy=True) for view in views]
        gradients = [mx.nd.ones(shape) for shape in shapes]
        mx.nd.waitall()
        return cls(keys, gradients, weights, views)

    @property
    def num_bytes(self) -> int:
        """Bytes of one set of gradients."""
        return sum(4 * gradient.size for gradient in self.gradients)

    def fill(self, value: float) -> None:
        """Write new gradients; the stock store overwrites them with what it pulls.

        Those on a GPU are copied there, for which MXNet needs no code for the card.
        """
        for gradient in self.gradients:
            if self.views:
                gradient[:] = value
            else:
                mx.nd.full(gradient.shape, value).copyto(gradient)
        mx.nd.waitall()

    def check(self, expected: float, where: str) -> None:
        """Make sure that every element of every weight is ``expected``, to rounding.

        Raises:
            ValueError: An element differs.
        """
        for key, view in zip(self.keys, self.views or (weight.asnumpy() for weight in self.weights)):
            least, most = view.min(), view.max()
            if not np.allclose([least, most], expected, rtol=1e-6, atol=0):
                raise ValueError(f"{where}, key {key}: got {least} to {most}, not {expected}")


def key_shapes(case: Case) -> list[tuple[int, ...]]:
    """Return the shapes of a case's keys in forward order."""
    if not case.model:
        return [(case.elements,)]
    net = mx.gluon.model_zoo.vision.get_model(case.model)
    net.infer_shape(mx.nd.zeros((1, 3, 224, 224)))
    return [parameter.shape for parameter in net.collect_params().values() if parameter.grad_req != "null"]


def pushpull(kv: Any, key: int, gradient: mx.nd.NDArray, weight: mx.nd.NDArray, priority: int) -> None:
    """Exchange one key by one call."""
    kv.pushpull(key, [gradient], out=[weight], priority=priority)


def push_pull(kv: Any, key: int, gradient: mx.nd.NDArray, weight: mx.nd.NDArray, priority: int) -> None:
    """Exchange one key by two calls."""
    kv.push(key, [gradient], priority=priority)
    kv.pull(key, out=[weight], priority=priority)


CALLS = {"pushpull": pushpull, "push-pull": push_pull}


def round_trip(kv: Any, parameters: Parameters, exchange: Exchange) -> tuple[float, float, float]:
    """Push and pull all keys once; return when it began, when the calls had returned, and when it ended.

    Times are in seconds of the machine's monotonic clock, which all processes of a host share.
    """
    begin = time.monotonic()
    for index, key in enumerate(parameters.keys):
        exchange(kv, key, parameters.gradients[index], parameters.weights[index], -index)
    called = time.monotonic()
    for weight in parameters.weights:
        weight.wait_to_read()
    return begin, called, time.monotonic()


def measure(
    kv: Any, case: Case, first_key: int, exchange: Exchange, device: mx.Context | None
) -> dict[str, Any]:
    """Time one case; every sum is checked, outside of the timed part.

    An asynchronous store adds all gradients up, and the last weights are checked, when all have met.
    """
    adds_up = "async" in kv.type
    added = 0.0
    parameters = Parameters.of(key_shapes(case), first_key, device)
    for key, weight in zip(parameters.keys, parameters.weights):
        kv.init(key, mx.nd.zeros(weight.shape))
    kv._barrier()  # noqa: SLF001  MXNet's only name for it
    times = []
    load: list[dict[str, float]] = []
    pids = job_pids() if kv.rank == 0 else []
    for iteration in range(case.warmup + case.iterations):
        if pids and iteration == case.warmup:
            load.append(asdict(Load.now(pids)))
        step = iteration % 5 + 1
        parameters.fill(step * (kv.rank + 1))
        times.append(round_trip(kv, parameters, exchange))
        total = step * kv.num_workers * (kv.num_workers + 1) / 2
        added -= total
        if not adds_up:
            parameters.check(total, f"{case.name}, iteration {iteration}, worker {kv.rank}")
    load += [asdict(Load.now(pids))] if pids else []
    if adds_up:
        kv._barrier()  # noqa: SLF001  MXNet's only name for it
        kv.pull(parameters.keys, out=[[weight] for weight in parameters.weights])
        mx.nd.waitall()
        parameters.check(added, f"{case.name}, worker {kv.rank}")
    return {
        "bytes": parameters.num_bytes,
        "keys": len(parameters.keys),
        "times": times[case.warmup :],
        "load": load,
    }


def measure_memory(kv: Any, steps: int) -> dict[str, Any]:
    """Train with SGD and momentum on the server; return bytes held before the first key, and at most."""
    parameters = Parameters.of(key_shapes(MEMORY_MODEL), 0, None)
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=LEARNING_RATE, momentum=MOMENTUM))
    kv._barrier()  # noqa: SLF001  MXNet's only name for it
    pids = {"worker": [os.getpid()], "server": server_pids()}
    before = {role: [resident_bytes(pid) for pid in pids[role]] for role in pids}
    for pid in pids["worker"] + pids["server"]:
        start_new_peak(pid)
    kv._barrier()  # noqa: SLF001  MXNet's only name for it
    for key, weight in zip(parameters.keys, parameters.weights):
        kv.init(key, weight)
    for _ in range(steps):
        parameters.fill(1.0)
        round_trip(kv, parameters, pushpull)
    parameters.check(trained_weight(steps, kv.num_workers), f"memory, worker {kv.rank}")
    kv._barrier()  # noqa: SLF001  MXNet's only name for it
    peak = {role: [peak_bytes(pid) for pid in pids[role]] for role in pids}
    # A server maps buffers that workers own and that are counted there.
    peak["server"] = [whole - shared_bytes(pid) for pid, whole in zip(pids["server"], peak["server"])]
    return {"bytes": parameters.num_bytes, "before": before, "peak": peak}


def trained_weight(steps: int, gradient: float) -> float:
    """Return what a weight of one becomes under SGD with momentum and a constant gradient."""
    weight, velocity = 1.0, 0.0
    for _ in range(steps):
        velocity = MOMENTUM * velocity - LEARNING_RATE * gradient
        weight += velocity
    return weight


def gpu_of(rank: int) -> mx.Context:
    """Return the GPU of a worker: workers of one host take them in turn."""
    count = mx.context.num_gpus()
    if not count:
        sys.exit("MXNet sees no GPU here: leave out --on gpu")
    return mx.gpu(rank % count)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-store", default="dist_sync_mpi", help="name given to mx.kv.create")
    parser.add_argument(
        "--cases", default=",".join(case.name for case in CASES), help="comma-separated names"
    )
    parser.add_argument("--calls", choices=CALLS, default="pushpull", help="by what a key is exchanged")
    parser.add_argument("--on", choices=("host", "gpu"), default="host", help="where arrays lie")
    parser.add_argument("--divisor", type=int, default=1, help="divide the numbers of iterations by this")
    parser.add_argument("--memory", type=int, default=0, help="steps over which memory is measured instead")
    parser.add_argument("--results", type=Path, default=Path(), help="directory for worker<rank>.json")
    return parser.parse_args()


def main() -> None:
    """Run the cases and write what was measured."""
    arguments = parse_arguments()
    if arguments.kv_store.endswith("_mpi"):
        import kvstore_mpi.mxnet  # noqa: F401, PLC0415  registers the store, where mpilaunch has not

        gc.freeze()  # as mpilaunch does

    kv = mx.kv.create(arguments.kv_store)
    if "async" in kv.type:
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, wd=0.0))
        kv._barrier()  # noqa: SLF001  MXNet's only name for it
    exchange = CALLS[arguments.calls]
    if arguments.memory:
        results = {MEMORY_MODEL.name: measure_memory(kv, arguments.memory)}
    else:
        device = gpu_of(kv.rank) if arguments.on == "gpu" else None
        cases = [case.shortened(arguments.divisor) for case in by_names(arguments.cases, CASES)]
        results = {
            case.name: measure(kv, case, index * KEYS_PER_CASE, exchange, device)
            for index, case in enumerate(cases)
        }
    (arguments.results / f"worker{kv.rank}.json").write_text(json.dumps(results))
    kv._barrier()  # noqa: SLF001  MXNet's only name for it


if __name__ == "__main__":
    main()
