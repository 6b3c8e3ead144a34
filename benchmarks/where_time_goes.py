"""Shows where the time of a round trip goes: processor time, switches and system calls of each thread.

Two workers and one server over TCP on this machine, ours and MXNet's own parameter server in turn. See
README.md beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cases import CASES, VARIANTS, Variant
from harness.jobs import JobError, plan, run
from harness.results import Results, begin, by_names, load, make_parser, report
from harness.thread_summary import job_table, of_cases, thread_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
WHAT = "where-time-goes"
OVER_TCP = {variant.name: variant for variant in VARIANTS if variant.name in ("stock", "2x1-tcp")}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3")
    cases = [case.name for case in CASES]
    add = parser.add_argument
    add("--variants", default=",".join(OVER_TCP), help=f"comma-separated, of {','.join(OVER_TCP)}")
    add("--cases", default="4KB,200KB,4MB,resnet50", help=f"comma-separated, of {','.join(cases)}")
    add("--beside", type=Path, metavar="TREE", help="also measure ours of another checkout, by its .venv")
    add("--no-trace", action="store_true", help="do not count system calls, which needs strace")
    add("--deadline", type=float, default=300.0, help="seconds until one job is killed")
    arguments = parser.parse_args(argv)
    by_names(parser, arguments.cases, cases)
    chosen = by_names(parser, arguments.variants, list(OVER_TCP))
    arguments.variants = [OVER_TCP[name] for name in chosen]
    if arguments.beside:
        ours = [variant for variant in OVER_TCP.values() if not variant.is_stock]
        arguments.variants += [variant.of_tree(arguments.beside.resolve()) for variant in ours]
    arguments.repeats = arguments.repeats or 3
    return arguments


def run_variant(variant: Variant, arguments: argparse.Namespace, *, trace: bool) -> dict[str, Any]:
    """Run one job; return what it cost, and what its workers wrote."""
    with tempfile.TemporaryDirectory(prefix=f"{WHAT}-") as name:
        directory = Path(name)
        worker = [variant.python, str(HERE / "where_time_goes_worker.py"), "--kv-store", variant.kv_store]
        worker += ["--results", name, "--cases", arguments.cases, *(["--trace"] if trace else [])]
        usage = run(plan(variant, worker, directory), directory, arguments.deadline)
        written = [json.loads(path.read_text()) for path in sorted(directory.glob("worker*.json"))]
    return {"variant": variant.name, "traced": trace, **asdict(usage), **of_cases(written)}


def measure(arguments: argparse.Namespace) -> Results:
    """Run all variants in turn, every second time backwards; then once more under strace."""
    results = begin(WHAT, arguments)
    turns = [(repeat, False) for repeat in range(arguments.repeats)]
    for repeat, trace in turns + ([] if arguments.no_trace else [(0, True)]):
        for variant in arguments.variants[:: -1 if repeat % 2 else 1]:
            found = run_variant(variant, arguments, trace=trace)
            results.add({"repeat": repeat, **found})
            report(f"{variant.name}, {'traced' if trace else repeat}: {found['wall_s']:.1f} s")
    return results


def main() -> None:
    """Measure or load, print, write and draw."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure(arguments)
    except JobError as error:
        sys.exit(f"{WHAT}: {error}")
    results.show(job_table(results.runs), "", thread_table(results.runs))
    if arguments.plot:
        from harness.thread_drawing import draw  # noqa: PLC0415  matplotlib only for a plot

        draw(results.runs, arguments.plot, results.marks)
    results.close()


if __name__ == "__main__":
    main()
