"""Lets jobs run for a long time and sees whether anything grows: memory, descriptors, the time of a step.

Two clients of two workers and one server on one machine, which exchange four small keys as fast as they
can, in sync, async and elastic mode, and rows of four tables. Prints a table and writes JSON. See README.md
beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import soak_summary
from harness.jobs import JobError, Program, run
from harness.results import BENCHMARKS, Results, begin, by_names, load, make_parser, report

if TYPE_CHECKING:
    import argparse

WORKER = BENCHMARKS / "soak_worker.py"
WHAT = "soak"
WITHOUT_SERVERS = "rows-of-workers"
MODES = ("sync", "async", "elastic", "rows", "lookups", WITHOUT_SERVERS)
STARTING_S = 240.0


def measure(mode: str, seconds: float, *, steps: int = 0, clients: int = 2) -> dict[str, Any]:
    """Run one job; return what was seen of its processes, and what it cost.

    Args:
        mode: One of ``MODES``.
        seconds: Length of the measurement, at least.
        steps: Number of steps, at least.
        clients: Number of clients, of two workers each; without servers there is one.

    Raises:
        JobError: The job failed.
    """
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        servers, clients = (0, 1) if mode == WITHOUT_SERVERS else (1, clients)
        launch = (str(Path(sys.executable).with_name("mpilaunch")), "--servers", str(servers))
        shape = ("--clients", str(clients), "--workers", str(2 * clients))
        length = ("--seconds", str(seconds), "--steps", str(steps))
        job = (*launch, *shape, str(WORKER), mode, name, *length)
        usage = run([Program("mpilaunch", job)], folder, STARTING_S + 2 * seconds)
        looks = [json.loads(line) for line in (folder / "soak.jsonl").read_text().splitlines()]
        return {**asdict(usage), "looks": looks}


def measure_all(arguments: argparse.Namespace, modes: list[str]) -> Results:
    """Run one job for each mode and repeat."""
    results = begin(WHAT, arguments)
    for mode in modes * arguments.repeats:
        _measure_into(results, mode, 60 * arguments.minutes)
    return results


def _measure_into(results: Results, mode: str, seconds: float) -> None:
    try:
        results.add({"mode": mode, **measure(mode, seconds)})
    except JobError as error:
        results.fail(f"{mode}: {error}")
    else:
        report(soak_summary.table(results.runs[-1:]))


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="1", plot=False)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each job (default: 10)")
    parser.add_argument("--modes", default=",".join(MODES), help=f"some of {', '.join(MODES)}")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or 1
    modes = by_names(parser, arguments.modes, MODES)
    results = load(arguments.load) if arguments.load else measure_all(arguments, modes)
    results.show(soak_summary.table(results.runs))
    results.close()


if __name__ == "__main__":
    main()
