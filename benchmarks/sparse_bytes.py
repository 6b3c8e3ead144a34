"""Counts what crosses a host's link in a step, for rows and dense keys, beside Parallax's formulas.

Hosts are network namespaces with one worker and one server, or with several workers. Prints a table, and
writes JSON. Needs root. See README.md beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.clusters import start_ours, start_stock
from harness.jobs import Job, JobError
from harness.netns import Network, NetworkError
from harness.p3_cli import prepare
from harness.results import BENCHMARKS, Results, by_names, load, make_parser, report
from harness.sparse_bytes_cases import CASES, DENSE_ELEMENTS, VARIANTS, Case, Variant
from harness.sparse_bytes_summary import rows_of, table
from harness.sparse_clusters import start_clients, start_one_client

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

WORKER = BENCHMARKS / "sparse_bytes_worker.py"
WHAT = "sparse-bytes"
WHOLE = {
    "KVMPI_SLICE_ELEMENTS": str(DENSE_ELEMENTS),
    "KVMPI_TRANSPORT": "tcp",
    "MXNET_KVSTORE_BIGARRAY_BOUND": "100000000",
}
"""No dense key is cut, and stock does not cut tables: one key is one variable of the paper."""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3, or 1 when quick", quick="2 hosts, once", plot=False)
    names = [variant.name for variant in VARIANTS]
    add = parser.add_argument
    add("--hosts", help="comma-separated (default: 2,4,8)")
    add("--variants", default=",".join(names), help=f"comma-separated, of {','.join(names)} (default: all)")
    add("--deadline", type=float, default=300.0, help="seconds until one job is killed")
    arguments = parser.parse_args(argv)
    arguments.variants = [
        VARIANTS[names.index(name)] for name in by_names(parser, arguments.variants, names)
    ]
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.hosts = list(map(int, (arguments.hosts or ("2" if arguments.quick else "2,4,8")).split(",")))
    return arguments


def measure(network: Network, variant: Variant, case: Case, deadline_s: float) -> dict[str, Any]:
    """Run one job: keys of another case would have servers of their own, which then have less of these.

    Raises:
        JobError: A process failed, a sum was wrong, nothing crossed a link, or the deadline passed.
    """
    with tempfile.TemporaryDirectory(prefix="sparse-bytes-") as name, Job(Path(name)) as job:
        way, number = "ours" if variant.ours else variant.name, str(CASES.index(case))
        command = (sys.executable, str(WORKER), "--way", way, "--case", number, "--results", name)
        if variant.ranks > 1:
            lookups = "together" if variant.together else "each"
            settings = {**WHOLE, "KVMPI_LOOKUPS": lookups}
            start_clients(job, network, command, settings, ranks=variant.ranks)
        elif not variant.by_servers:
            start_one_client(job, network, command, WHOLE)
        else:
            (start_ours if variant.ours else start_stock)(job, network, command, WHOLE)
        usage = job.wait(deadline_s)
        # Ranks of ours are numbered through the hosts; one of each tells what its host's link has carried.
        ranks = range(0, network.hosts * variant.ranks, variant.ranks)
        told = [json.loads((Path(name) / f"worker{rank}.json").read_text()) for rank in ranks]
    if min(told) <= 0:
        raise JobError(f"{variant.name}: nothing crossed a link in {case.name}")
    return {"variant": variant.name, "hosts": network.hosts, "bytes": {case.name: told}, **asdict(usage)}


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure everything in turn, as often as is asked for."""
    results = prepare(WHAT, arguments)
    for hosts in arguments.hosts:
        with Network(hosts) as network:
            jobs = [(variant, case) for variant in arguments.variants for case in variant.cases]
            for variant, case in jobs * arguments.repeats:
                what = f"{hosts} hosts, {variant.name}, {case.name}"
                try:
                    results.add(measure(network, variant, case, arguments.deadline))
                except JobError as error:
                    results.fail(f"{what}: {error}")
                else:
                    report(f"{what}: {results.runs[-1]['wall_s']:.0f} s")
    return results


def main() -> None:
    """Measure or load, print and write."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    results.show(table(rows_of(results.runs)))
    results.close()


if __name__ == "__main__":
    main()
