"""Measures the round trip of pushpull beside MXNet's own parameter server: table, JSON and plot.

Two workers and one server on this machine, or a worker and a server on each of two hosts that are network
namespaces; the same worker script for all, fresh processes for every repeat, variants in turn.

README.md tells more.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cases import (
    CASES,
    MEMORY_MODEL,
    NUM_WORKERS,
    RATIO_TARGETS,
    SOCKETS,
    STOCK,
    TWO_HOSTS_TARGETS,
    VARIANTS,
    Variant,
)
from harness.clusters import start_ours, start_sockets, start_stock
from harness.jobs import Job, JobError, Usage, plan, run
from harness.machine import memcpy_bytes_per_s
from harness.netns import Network, NetworkError
from harness.pushpull_summary import Worker, memory_table, pushpull_table, samples_of, summarize
from harness.results import Results, begin, by_names, load, make_parser, report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
WHAT = "pushpull"
QUICK_CASES = ",".join(case.name for case in CASES if case.name != "vgg19")
QUICK_DIVISOR = 4
MEMORY_STEPS = 4


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    quick = "fewer variants, cases, repeats and iterations"
    parser = make_parser(WHAT, __doc__, repeats="5, 2 when quick, 1 of memory", quick=quick)
    names = [variant.name for variant in VARIANTS]
    cases = [case.name for case in CASES]
    add = parser.add_argument
    add("--variants", help=f"comma-separated, of {','.join(names)} (default: all, or two when quick)")
    add("--cases", help=f"comma-separated, of {','.join(cases)}")
    add("--memory", action="store_true", help="measure peak memory instead of time")
    add("--two-calls", action="store_true", help="also measure ours by push and then pull, sync and async")
    add("--two-hosts", action="store_true", help="on two hosts, whose links are not limited; needs root")
    add("--on", choices=("host", "gpu"), default="host", help="where arrays lie")
    add("--beside", type=Path, metavar="TREE", help="also measure ours of another checkout, by its .venv")
    add("--deadline", type=float, default=300.0, help="seconds until one job is killed")
    arguments = parser.parse_args(argv)
    fewer = arguments.quick or arguments.memory
    few = f"{STOCK.name},2x1,2x1-tcp,{SOCKETS.name}" if arguments.two_hosts else f"{STOCK.name},2x1"
    within_one = ",".join(name for name in names if name != SOCKETS.name)
    chosen = arguments.variants or (few if fewer or arguments.two_hosts else within_one)
    arguments.variants = [VARIANTS[names.index(name)] for name in by_names(parser, chosen, names)]
    within = [variant.name for variant in arguments.variants if not variant.can_span_hosts]
    if arguments.two_hosts and within:
        parser.error(f"not on two hosts: {', '.join(within)}")
    if SOCKETS in arguments.variants and not arguments.two_hosts:
        parser.error(f"only on two hosts: {SOCKETS.name}")
    if arguments.two_hosts and arguments.memory:
        parser.error("--memory is measured on one host: leave out --two-hosts")
    if arguments.beside:
        ours = [variant for variant in arguments.variants if variant.is_ours]
        arguments.variants += [variant.of_tree(arguments.beside.resolve()) for variant in ours]
    if arguments.on == "gpu" and (arguments.two_hosts or arguments.memory):
        parser.error("--on gpu measures round trips on one host: leave out --two-hosts and --memory")
    if arguments.two_calls:
        arguments.variants = beside_two_calls(arguments.variants)
    arguments.cases = arguments.cases or (QUICK_CASES if fewer else ",".join(cases))
    by_names(parser, arguments.cases, cases)
    usual = 1 if arguments.memory else 2 if arguments.quick else 5
    arguments.repeats = arguments.repeats or usual
    for python in {variant.python for variant in arguments.variants if variant.is_ours}:
        launcher = Path(python).parent / "mpilaunch"
        if not launcher.exists():
            parser.error(
                f"{launcher} is missing: install the package there, or give --variants {STOCK.name}"
            )
    return arguments


def beside_two_calls(variants: Sequence[Variant]) -> list[Variant]:
    """Return variants with, for each of ours, both modes by one call and by two."""
    chosen: list[Variant] = []
    for variant in variants:
        kinds = [variant.in_mode(mode) for mode in ("sync", "async")] if variant.is_ours else [variant]
        chosen += [each for kind in kinds for each in (kind, kind.in_two_calls)]
    return chosen


def run_variant(
    variant: Variant, options: Sequence[str], arguments: argparse.Namespace, network: Network | None
) -> tuple[list[Worker], Usage]:
    """Run one job, in a network if there is one; return what its workers wrote, by rank, and its cost."""
    with tempfile.TemporaryDirectory(prefix="pushpull-") as name:
        directory = Path(name)
        worker = [variant.python, str(HERE / "sockets_worker.py"), "--results", name, *options]
        if not variant.is_bare:
            worker[1:2] = [str(HERE / "pushpull_worker.py"), "--kv-store", variant.kv_store]
            worker += ["--calls", variant.calls, "--on", arguments.on]
        if network:
            usage = run_on_hosts(variant, worker, directory, arguments.deadline, network)
        else:
            usage = run(plan(variant, worker, directory), directory, arguments.deadline)
        return [json.loads(path.read_text()) for path in sorted(directory.glob("worker*.json"))], usage


def run_on_hosts(
    variant: Variant, worker: Sequence[str], log_dir: Path, deadline_s: float, network: Network
) -> Usage:
    """Run one job with a worker and a server on each host, and the scheduler between them, if any."""
    with Job(log_dir) as job:
        if variant.is_bare:
            start_sockets(job, network, worker)
        elif variant.is_stock:
            start_stock(job, network, worker, {})
        else:
            start_ours(job, network, worker, {"KVMPI_TRANSPORT": variant.transport})
        return job.wait(deadline_s)


def measure(arguments: argparse.Namespace) -> Results:
    """Run all variants in turn.

    Every second repeat goes through the variants backwards, so that none always follows the same other.
    """
    results = begin(WHAT, arguments)
    options = ["--cases", arguments.cases, "--divisor", str(QUICK_DIVISOR if arguments.quick else 1)]
    if arguments.memory:
        options = ["--memory", str(MEMORY_STEPS)]
        results.facts["memory_model"] = MEMORY_MODEL.model
    else:
        results.facts["memcpy_bytes_per_s"] = memcpy_bytes_per_s()
        results.facts.update(two_hosts=arguments.two_hosts, on=arguments.on)
    with Network(NUM_WORKERS) if arguments.two_hosts else nullcontext() as network:
        for repeat in range(arguments.repeats):
            for variant in arguments.variants[:: -1 if repeat % 2 else 1]:
                workers, usage = run_variant(variant, options, arguments, network)
                results.add(
                    {"variant": variant.name, "repeat": repeat, **asdict(usage), "workers": workers}
                )
                report(f"repeat {repeat + 1}/{arguments.repeats} {variant.name}: {usage.wall_s:.1f} s")
    return results


def show_memory(results: Results) -> None:
    """Print the table of peak memory."""
    measured: dict[str, list[Any]] = {}
    for each in results.runs:
        measured.setdefault(each["variant"], []).append([w[MEMORY_MODEL.name] for w in each["workers"]])
    results.show(memory_table(measured))


def show_round_trips(results: Results, plot: Path | None) -> None:
    """Print the table of round trips and draw the plot."""
    limit = results.facts["memcpy_bytes_per_s"]
    rows = summarize(samples_of(results.runs))
    targets = TWO_HOSTS_TARGETS if results.facts.get("two_hosts") else RATIO_TARGETS
    results.show(pushpull_table(rows, limit, targets))
    if plot:
        from harness.pushpull_drawing import draw  # noqa: PLC0415  matplotlib only for a plot

        draw(rows, limit, plot, results.marks, two_hosts=bool(results.facts.get("two_hosts")))


def main() -> None:
    """Measure or load, print, write and draw."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure(arguments)
    except (JobError, NetworkError) as error:
        sys.exit(f"{WHAT}: {error}")
    if "memory_model" in results.facts:
        show_memory(results)
    else:
        show_round_trips(results, arguments.plot)
    results.close()


if __name__ == "__main__":
    main()
