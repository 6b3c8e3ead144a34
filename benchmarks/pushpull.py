"""Measures the round trip of pushpull beside MXNet's own parameter server: table, JSON and plot.

Two workers and one server on this machine, the same worker script for all, fresh processes for every
repeat, variants in turn. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cases import CASES, MEMORY_MODEL, STOCK, VARIANTS, Variant, by_names
from harness.jobs import JobError, Meter, Usage, plan, run
from harness.machine import describe, memcpy_bytes_per_s
from harness.summary import Worker, memory_table, merge_workers, pushpull_table, summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
PLOT = HERE.parent / "docs" / "images" / "pushpull.png"
QUICK_CASES = ",".join(case.name for case in CASES if case.name != "vgg19")
QUICK_DIVISOR = 4
MEMORY_STEPS = 4
MOST_FOREIGN_CORES = 0.25
"""More than this kept busy by others makes a measurement doubtful."""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ",".join(variant.name for variant in VARIANTS)
    parser.add_argument("--variants", help=f"comma-separated, of {names} (default: all, or two when quick)")
    parser.add_argument("--cases", help=f"comma-separated, of {','.join(case.name for case in CASES)}")
    parser.add_argument("--repeats", type=int, help="jobs of each variant (default: 5, or 2 when quick)")
    parser.add_argument(
        "--quick", action="store_true", help="fewer variants, cases, repeats and iterations"
    )
    parser.add_argument("--memory", action="store_true", help="measure peak memory instead of time")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: benchmarks/results/<what>-<date>.json)"
    )
    parser.add_argument(
        "--plot", type=Path, nargs="?", const=PLOT, help=f"draw a PNG (default place: {PLOT})"
    )
    parser.add_argument(
        "--allow-load", action="store_true", help="measure though others use the processors"
    )
    parser.add_argument("--realtime", action="store_true", help="run in the real-time class (needs root)")
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds until one job is killed")
    arguments = parser.parse_args(argv)
    quick = arguments.quick or arguments.memory
    arguments.variants = arguments.variants or (f"{STOCK.name},2x1" if quick else names)
    arguments.cases = arguments.cases or (QUICK_CASES if quick else ",".join(case.name for case in CASES))
    arguments.repeats = arguments.repeats or (2 if arguments.quick else 5)
    return _checked(parser, arguments)


def _checked(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> argparse.Namespace:
    """End with a message if a name is unknown or a program is missing."""
    try:
        by_names(arguments.cases, CASES)
        arguments.variants = by_names(arguments.variants, VARIANTS)
    except ValueError as error:
        parser.error(str(error))
    launcher = Path(sys.executable).parent / "mpilaunch"
    if arguments.variants != [STOCK] and not launcher.exists():
        parser.error(f"{launcher} is missing: install the package there, or give --variants {STOCK.name}")
    return arguments


def run_variant(
    variant: Variant, options: Sequence[str], arguments: argparse.Namespace
) -> tuple[list[Worker], Usage]:
    """Run one job and return what its workers wrote, by rank, and what it cost."""
    with tempfile.TemporaryDirectory(prefix="pushpull-") as name:
        directory = Path(name)
        worker = [sys.executable, str(HERE / "pushpull_worker.py"), "--kv-store", variant.kv_store]
        worker += ["--results", name, *options]
        usage = run(plan(variant, worker, directory), directory, arguments.deadline)
        return [json.loads(path.read_text()) for path in sorted(directory.glob("worker*.json"))], usage


def measure(
    arguments: argparse.Namespace, options: Sequence[str], repeats: int
) -> dict[str, list[dict[str, Any]]]:
    """Run all variants in turn; return variant -> for each repeat its ``workers`` and ``usage``.

    Every second repeat goes through the variants backwards, so that none always follows the same other.
    """
    jobs: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in arguments.variants}
    for repeat in range(repeats):
        for variant in arguments.variants[:: -1 if repeat % 2 else 1]:
            workers, usage = run_variant(variant, options, arguments)
            jobs[variant.name].append({"workers": workers, "usage": asdict(usage)})
            report(f"repeat {repeat + 1}/{repeats} {variant.name}: {usage.wall_s:.1f} s{load_note(usage)}")
    return jobs


def load_note(usage: Usage) -> str:
    """Return a warning if others kept the processors busy."""
    if usage.foreign_cores <= MOST_FOREIGN_CORES:
        return ""
    return f"  !! DOUBTFUL: others kept {usage.foreign_cores:.2f} cores busy"


def report(line: str) -> None:
    """Tell the user how far it is."""
    print(line, file=sys.stderr, flush=True)


def push_others_aside() -> None:
    """Move this process, and with it all that it starts, to the real-time class."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        sys.exit("pushpull: --realtime needs root, or the capability CAP_SYS_NICE")


def probe(arguments: argparse.Namespace) -> tuple[float, Usage]:
    """Return the speed of memcpy in bytes per second and the load by others; refuse a busy machine."""
    meter = Meter()
    limit = memcpy_bytes_per_s()
    before = meter.read()
    report(f"memcpy of all cores {limit / 1e9:.1f} GB/s, others keep {before.foreign_cores:.2f} cores busy")
    if before.foreign_cores > MOST_FOREIGN_CORES and not (arguments.allow_load or arguments.realtime):
        sys.exit(
            "the machine is busy: wait, or give --allow-load (doubtful) or --realtime (pushes others aside)"
        )
    return limit, before


def time_round_trips(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure round trips, print the table and draw the plot; return what goes into the JSON file."""
    limit, before = probe(arguments)
    options = ["--cases", arguments.cases, "--divisor", str(QUICK_DIVISOR if arguments.quick else 1)]
    jobs = measure(arguments, options, arguments.repeats)
    samples = {name: [merge_workers(job["workers"]) for job in repeats] for name, repeats in jobs.items()}
    rows = summarize(samples)
    print(pushpull_table(rows, limit))
    if arguments.plot:
        from harness.drawing import draw  # noqa: PLC0415  matplotlib only for a plot

        draw(rows, limit, arguments.plot)
    summary = [asdict(row) for row in rows]
    return {"memcpy_bytes_per_s": limit, "before": asdict(before), "summary": summary, "jobs": jobs}


def measure_memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure peak memory and print the table; return what goes into the JSON file."""
    jobs = measure(arguments, ["--memory", str(MEMORY_STEPS)], 1)
    name = MEMORY_MODEL.name
    print(
        memory_table(
            {variant: [worker[name] for worker in job["workers"]] for variant, [job] in jobs.items()}
        )
    )
    return {"model": MEMORY_MODEL.model, "jobs": jobs}


def main() -> None:
    """Measure, print and write."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    arguments = parse_arguments()
    if arguments.realtime:
        push_others_aside()
    what = "memory" if arguments.memory else "pushpull"
    date = time.strftime("%Y-%m-%dT%H%M%S")
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    try:
        measured = measure_memory(arguments) if arguments.memory else time_round_trips(arguments)
    except JobError as error:
        sys.exit(f"pushpull: {error}")
    path = arguments.json or HERE / "results" / f"{what}-{date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"date": date, "command": command, **describe(), **measured}) + "\n")
    report(f"written: {path}")


if __name__ == "__main__":
    main()
