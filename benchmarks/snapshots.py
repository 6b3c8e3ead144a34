"""Measures what snapshots cost: time per step while a server saves its shard, beside one that does not.

One worker and one server on one machine, which exchange the tensors of ResNet-50 (25.6 million parameters)
as fast as they can; SGD with momentum on the server, so that a snapshot is twice the model. Prints a table
and writes JSON. See README.md beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np
from harness.jobs import JobError, Program, run
from harness.results import BENCHMARKS, Results, begin, load, make_parser, report
from harness.table import align, each
from harness.zoo import load as load_model

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

WORKER = BENCHMARKS / "snapshots_worker.py"
WHAT = "snapshots"
NEVER = 1e6
DEADLINE_S = 120.0
HEAD = ("snapshots", "mean ms", "each run", "ratio", "median", "longest", "of all", "cpu ms")


def measure(every: float, seconds: float) -> dict[str, Any]:
    """Run one job; return the seconds of its steps, and what it cost.

    Raises:
        JobError: The job failed.
    """
    with tempfile.TemporaryDirectory(prefix="snapshots-") as name:
        folder = Path(name)
        saves = ("--snapshot-dir", name, "--snapshot-every", str(every)) if every < NEVER else ()
        launch = (str(Path(sys.executable).with_name("mpilaunch")), "--clients", "1", "--servers", "1")
        result = folder / "worker.json"
        job = (*launch, "--workers", "1", *saves, str(WORKER), str(seconds), str(result))
        usage = run([Program("mpilaunch", job)], folder, DEADLINE_S + seconds)
        return {**asdict(usage), **json.loads(result.read_text())}


def memcpy_s(num_bytes: int) -> float:
    """Return how long it takes at least to copy so much into new memory."""
    source = np.ones(num_bytes, np.uint8)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        source.copy()
        times.append(time.perf_counter() - begun)
    return min(times)


def measure_all(arguments: argparse.Namespace) -> Results:
    """Run jobs with and without snapshots in turn."""
    results = begin(WHAT, arguments)
    saved = 2 * 4 * sum(replace(load_model("resnet50"), scale=1).elements())
    results.facts.update(snapshot_bytes=saved, memcpy_s=memcpy_s(saved))
    kinds = {"without": NEVER, f"every {arguments.every:g} s": arguments.every}
    for name, every in list(kinds.items()) * arguments.repeats:
        results.add({"variant": name, **measure(every, arguments.seconds)})
        report(f"{name}: {1e3 * fmean(results.runs[-1]['steps_s']):.1f} ms")
    return results


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each kind of job, compared with the first."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for one in runs:
        kinds.setdefault(one["variant"], []).append(one)
    alone = median(fmean(one["steps_s"]) for one in next(iter(kinds.values())))
    return align([HEAD, *(_cells(name, own, alone) for name, own in kinds.items())])


def _cells(name: str, runs: Sequence[Mapping[str, Any]], alone: float) -> tuple[str, ...]:
    """Return the texts of one kind of job."""
    means = [fmean(one["steps_s"]) for one in runs]
    longest = [max(one["steps_s"]) for one in runs]
    middle = median(median(one["steps_s"]) for one in runs)
    cpu = median(one["step_cpu_s"] for one in runs)
    figures = (middle, median(longest), max(longest))
    return (
        name,
        f"{1e3 * median(means):.1f}",
        each(means, 1, 1e3),
        f"{median(means) / alone:.3f}",
        *(f"{1e3 * figure:.1f}" for figure in figures),
        f"{1e3 * cpu:.1f}",
    )


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3", plot=False)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between snapshots (default: 5)")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured in each job (default: 15)")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or 3
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except JobError as error:
        sys.exit(f"{WHAT}: {error}")
    megabytes, copying_ms = results.facts["snapshot_bytes"] / 1e6, 1e3 * results.facts["memcpy_s"]
    said = f"a snapshot is {megabytes:.0f} MB; to copy that takes {copying_ms:.0f} ms"
    results.show(table(results.runs), said)
    results.close()


if __name__ == "__main__":
    main()
