"""Trains the digits CNN on two devices both ways: as two workers of one, and as one worker of two.

Each way, with some batches of a worker and some seeds, until an accuracy is reached: the epochs E, the
steps S of an epoch and the seconds T of a step give what it costs, C = T x S x E, beside what ``mpilaunch
plan`` says (``docs/planner.md``). Prints a table and writes JSON. See README.md beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.jobs import Program, run
from harness.results import Results, begin, load, make_parser
from harness.table import align, each

if TYPE_CHECKING:
    import argparse

WHAT = "crossover"
LAYOUTS = {"2 workers of 1": ("--workers", "2"), "1 worker of 2": ("--model-parallel", "2")}
WORKER = Path(__file__).with_name("crossover_worker.py")
DEADLINE_S = 300.0


def run_job(layout: str, batch: int, seed: int) -> dict[str, Any]:
    """Train once; return what the worker has measured.

    Raises:
        JobError: It failed.
    """
    launcher = str(Path(sys.executable).with_name("mpilaunch"))
    with tempfile.TemporaryDirectory(prefix="crossover-") as name:
        options = (*LAYOUTS[layout], "--env", "OMP_NUM_THREADS=1")
        words = (str(WORKER), "--batch-size", str(batch), "--seed", str(seed), "--results", name)
        run([Program("mpilaunch", (launcher, *options, *words))], Path(name), DEADLINE_S)
        measured: dict[str, Any] = json.loads((Path(name) / "measured.json").read_text())
        return measured


def measure_all(arguments: argparse.Namespace) -> Results:
    """Run a job for each batch, seed and layout."""
    results = begin(WHAT, arguments)
    for batch in arguments.batches:
        for seed in range(arguments.repeats):
            for layout in LAYOUTS:
                name = f"{layout}, batch {batch}, seed {seed}"
                job = partial(run_job, layout, batch, seed)
                results.attempt(name, job, layout=layout, batch=batch, seed=seed)
    return results


def epochs_of(runs: list[dict[str, Any]]) -> list[float]:
    """Return the epochs of each run; infinite where it did not reach the target."""
    return [inf if each_run["epochs"] is None else each_run["epochs"] for each_run in runs]


def table(runs: list[dict[str, Any]]) -> str:
    """Return a line for each batch and layout."""
    head = ("batch of a worker", "layout", "batch", "E, each seed", "median", "S", "T ms", "C s")
    rows: list[tuple[str, ...]] = [head]
    for (batch, layout), found in _groups(runs).items():
        epochs, steps = epochs_of(found), found[0]["steps"]
        step_s = [each_run["step_s"] for each_run in found]
        rows.append(
            (
                str(batch),
                layout,
                str(found[0]["batch_of_update"]),
                each(epochs, 2),
                f"{median(epochs):.2f}",
                str(steps),
                each(step_s, 1, 1e3),
                f"{median(step_s) * steps * median(epochs):.2f}",
            )
        )
    return align(rows)


def verdicts(runs: list[dict[str, Any]]) -> list[str]:
    """Say for each batch from which speed-up of two devices on one worker of them costs less."""
    said, groups = [], _groups(runs)
    for batch in dict.fromkeys(each_run["batch"] for each_run in runs):
        sides = [groups.get((batch, layout)) for layout in LAYOUTS]
        if not all(sides):
            continue
        costs = [found[0]["steps"] * median(epochs_of(found)) for found in sides if found]
        if inf in costs:
            reached = [sum(epochs < inf for epochs in epochs_of(found)) for found in sides if found]
            said.append(
                f"batch {batch} of a worker: two workers get there {reached[0]} times, one {reached[1]}"
            )
            continue
        said.append(
            f"batch {batch} of a worker: {costs[0]:.0f} steps of two workers, {costs[1]:.0f} of one: that "
            f"one costs less if its step takes less than {costs[0] / costs[1]:.2f} of theirs"
        )
    return said


def _groups(runs: list[dict[str, Any]]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for each_run in runs:
        groups.setdefault((each_run["batch"], each_run["layout"]), []).append(each_run)
    return groups


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="5, or 1 when quick", quick="one seed", plot=False)
    parser.add_argument("--batches", default="32,128", help="samples of a worker in a step (%(default)s)")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 5)
    arguments.batches = [*map(int, arguments.batches.split(","))]
    results = load(arguments.load) if arguments.load else measure_all(arguments)
    results.show(table(results.runs), *verdicts(results.runs))
    results.close()


if __name__ == "__main__":
    main()
