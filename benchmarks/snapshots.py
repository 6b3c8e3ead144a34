"""Measures what snapshots cost: time per step while a server saves its shard, beside one that does not.

One worker and one server on one machine, which exchange the tensors of ResNet-50 (25.6 million parameters)
as fast as they can; SGD with momentum on the server, so that a snapshot is twice the model. Prints a table
and writes JSON. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness.machine import describe
from harness.p3_cli import BENCHMARKS, report
from harness.zoo import load

WORKER = BENCHMARKS / "snapshots_worker.py"
NEVER = 1e6
DEADLINE_S = 120.0


def steps(every: float, seconds: float) -> list[float]:
    """Run one job; return the seconds of its steps.

    Raises:
        CalledProcessError: The job failed.
    """
    with tempfile.TemporaryDirectory(prefix="snapshots-") as name:
        folder = Path(name)
        saves = ["--snapshot-dir", str(folder), "--snapshot-every", str(every)] if every < NEVER else []
        launch = [str(Path(sys.executable).with_name("mpilaunch")), "--clients", "1", "--servers", "1"]
        result = folder / "worker.json"
        job = [*launch, "--workers", "1", *saves, str(WORKER), str(seconds), str(result)]
        subprocess.run(job, check=True, timeout=DEADLINE_S + seconds, capture_output=True)
        told: list[float] = json.loads(result.read_text())
        return told


def memcpy_s(num_bytes: int) -> float:
    """Return how long it takes at least to copy so much into new memory."""
    source = np.ones(num_bytes, np.uint8)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        source.copy()
        times.append(time.perf_counter() - begun)
    return min(times)


def row(name: str, runs: list[list[float]], alone: float | None) -> tuple[str, dict[str, Any]]:
    """Return a line of the table, and what goes into the file."""
    means = [statistics.fmean(run) for run in runs]
    longest = [max(run) for run in runs]
    mean, middle = statistics.median(means), statistics.median(map(statistics.median, runs))
    ratio = mean / alone if alone else 1.0
    line = (
        f"{name:16} {1e3 * mean:8.1f} {1e3 * min(means):8.1f}-{1e3 * max(means):6.1f} {ratio:8.3f} "
        f"{1e3 * middle:8.1f} {1e3 * statistics.median(longest):8.1f} {1e3 * max(longest):8.1f}"
    )
    return line, {"name": name, "mean_s": means, "median_s": middle, "longest_s": longest}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between snapshots (default: 5)")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured in each job (default: 15)")
    parser.add_argument("--repeats", type=int, default=3, help="jobs of each kind (default: 3)")
    parser.add_argument("--json", type=Path, default=BENCHMARKS / "results" / "snapshots.json")
    arguments = parser.parse_args()
    kinds = {"without": NEVER, f"every {arguments.every:g} s": arguments.every}
    runs: dict[str, list[list[float]]] = {name: [] for name in kinds}
    for name, every in list(kinds.items()) * arguments.repeats:
        runs[name].append(steps(every, arguments.seconds))
        report(f"{name}: {1e3 * statistics.fmean(runs[name][-1]):.1f} ms")
    saved = 2 * 4 * sum(replace(load("resnet50"), scale=1).elements())
    head = {
        "date": time.strftime("%Y-%m-%dT%H%M%S"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        **describe(),
        "snapshot_bytes": saved,
        "memcpy_s": memcpy_s(saved),
    }
    print("snapshots        mean ms             range    ratio   median  longest  of all")
    alone: float | None = None
    rows = []
    for name, own in runs.items():
        line, told = row(name, own, alone)
        alone = alone or statistics.median(told["mean_s"])
        rows.append(told)
        print(line)
    print(f"a snapshot is {saved / 1e6:.0f} MB; to copy that takes {1e3 * head['memcpy_s']:.0f} ms")
    arguments.json.write_text(json.dumps({**head, "rows": rows}) + "\n")
    report(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
