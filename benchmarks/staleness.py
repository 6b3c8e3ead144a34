"""Shows what old rows cost: two workers learn from rows that may lack some steps, their own and others'.

Hidden vectors say which of 30,000 ids on the left go together with which on the right; two tables of
``TableEmbedding`` learn it from pairs that are drawn by Zipf's law, with AdaGrad, for some staleness and
seeds. Prints a table and writes JSON. Times do not matter. See README.md beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from harness.jobs import Program, run
from harness.results import Results, begin, load, make_parser
from harness.table import align, each

if TYPE_CHECKING:
    import argparse

WHAT = "staleness"
WORKER = Path(__file__).with_name("staleness_worker.py")
DEADLINE_S = 300.0


def run_job(staleness: int, seed: int, steps: int) -> dict[str, float]:
    """Return, as ``right``, of which share of new pairs the answer was.

    Raises:
        JobError: The job failed.
    """
    launcher = str(Path(sys.executable).with_name("mpilaunch"))
    with tempfile.TemporaryDirectory(prefix="staleness-") as name:
        options = ("--clients", "2", "--servers", "1", "--env", "OMP_NUM_THREADS=1", str(WORKER))
        numbers = {"--staleness": staleness, "--seed": seed, "--steps": steps, "--results": name}
        words = [str(word) for pair in numbers.items() for word in pair]
        run([Program("mpilaunch", (launcher, *options, *words))], Path(name), DEADLINE_S)
        return {"right": float(json.loads((Path(name) / "worker0.json").read_text())["right"])}


def measure_all(arguments: argparse.Namespace) -> Results:
    """Run a job for each seed and staleness."""
    results = begin(WHAT, arguments)
    results.facts.update(steps=arguments.steps)
    for seed in range(arguments.repeats):
        for staleness in arguments.staleness:
            job = partial(run_job, staleness, seed, arguments.steps)
            results.attempt(f"s = {staleness}, seed {seed}", job, staleness=staleness, seed=seed)
    return results


def table(runs: list[dict[str, Any]]) -> str:
    """Return a line for each staleness: how often answers are right, and what old rows cost."""
    fresh = {one["seed"]: one["right"] for one in runs if one["staleness"] == 0}
    rows: list[tuple[str, ...]] = [("s", "right %, each seed", "mean", "less than with s = 0, points")]
    for staleness in dict.fromkeys(one["staleness"] for one in runs):
        found = [one for one in runs if one["staleness"] == staleness]
        right = [one["right"] for one in found]
        lost = [100 * (fresh[one["seed"]] - one["right"]) for one in found if one["seed"] in fresh]
        spread = f" +- {stdev(lost):.2f}" if len(lost) > 1 else ""
        cost = f"{fmean(lost):.2f}{spread}" if lost else ""
        rows.append((str(staleness), each(right, 1, 100), f"{100 * fmean(right):.1f}", cost))
    return align(rows)


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="5 seeds, or 1 when quick", quick="one seed", plot=False)
    parser.add_argument("--staleness", default="0,1,8,32", help="comma-separated (%(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="of training (%(default)s)")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 5)
    arguments.staleness = [*map(int, arguments.staleness.split(","))]
    results = load(arguments.load) if arguments.load else measure_all(arguments)
    results.show(table(results.runs))
    results.close()


if __name__ == "__main__":
    main()
