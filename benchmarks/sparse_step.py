"""Measures steps of models with tables over slow links: by allreduce, by servers, by both, beside stock.

Hosts are network namespaces with a rate limit on their links, each with one worker and one server; nothing
is computed, gradients really travel. Prints a table and writes JSON. Needs root. See README.md beside this
file.
"""

from __future__ import annotations

import json
import os
import select
import sys
import tempfile
from dataclasses import astuple
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from harness.jobs import Job, JobError
from harness.netns import Network, NetworkError
from harness.p3_cli import prepare
from harness.p3_clusters import start_ours, start_stock
from harness.results import BENCHMARKS, Results, by_names, load, make_parser, report
from harness.sparse_clusters import start_one_client
from harness.sparse_models import MODELS, USUAL, Model
from harness.sparse_step_summary import ALLREDUCE, HYBRID, SERVERS, STOCK, goals, rows_of, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

WORKER = BENCHMARKS / "sparse_step_worker.py"
WHAT = "sparse-step"
VARIANTS = (STOCK, ALLREDUCE, SERVERS, HYBRID)
STEPS = {False: (4, 20), True: (2, 5)}
UNLIMITED_BITS_PER_S = 20e9
"""While tables are created."""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_parser(
        WHAT,
        __doc__,
        repeats="3, or 1 when quick",
        quick="2 hosts, 200 Mbit/s, once, few steps",
        plot=False,
    )
    models = [model.name for model in MODELS]
    add = parser.add_argument
    add("--hosts", help="comma-separated (default: 2,4,8)")
    add("--mbit", help="rates of a link, comma-separated (default: 100,200,500)")
    add("--models", default=",".join(USUAL), help=f"comma-separated, of {','.join(models)}")
    add("--variants", default=",".join(VARIANTS), help=f"comma-separated, of {','.join(VARIANTS)}")
    add("--deadline", type=float, default=240.0, help="seconds until one job is killed")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    arguments.models = [MODELS[models.index(name)] for name in by_names(parser, arguments.models, models)]
    arguments.variants = by_names(parser, arguments.variants, VARIANTS)
    arguments.repeats = arguments.repeats or (1 if quick else 3)
    arguments.hosts = list(map(int, (arguments.hosts or ("2" if quick else "2,4,8")).split(",")))
    arguments.mbit = list(map(float, (arguments.mbit or ("200" if quick else "100,200,500")).split(",")))
    return arguments


def start(job: Job, network: Network, variant: str) -> None:
    """Start the processes of a variant."""
    store = "dist_sync" if variant == STOCK else "dist_sync_mpi"
    worker = (sys.executable, str(WORKER), "--kv-store", store, "--results", str(job.log_dir))
    settings = {"KVMPI_TRANSPORT": "tcp"}
    if variant == STOCK:
        start_stock(job, network, worker, {})
    elif variant == SERVERS:
        start_ours(job, network, worker, settings)
    elif variant == ALLREDUCE:
        start_one_client(job, network, worker, settings)
    else:
        settings.update(KVMPI_DENSE="workers", KVMPI_LEADERS="all")
        start_one_client(job, network, worker, settings, servers=range(network.hosts))


def measure(
    network: Network, model: Model, variant: str, mbit: float, *, steps: tuple[int, int], deadline_s: float
) -> dict[str, Any]:
    """Run one job.

    Raises:
        JobError: A process failed, a weight was wrong, nothing crossed a link, or the deadline passed.
    """
    tables = [astuple(table) for table in model.tables]
    plan = {"tables": tables, "dense": model.dense, "warmup": steps[0], "steps": steps[1]}
    network.limit(UNLIMITED_BITS_PER_S)
    with tempfile.TemporaryDirectory(prefix="sparse-step-") as name, Job(Path(name)) as job:
        (job.log_dir / "plan.json").write_text(json.dumps(plan))
        for pipe in ("created", "go"):
            os.mkfifo(job.log_dir / pipe)
        start(job, network, variant)
        _limit_when_ready(job, network, mbit, deadline_s)
        job.wait(deadline_s)
        workers = [json.loads(path.read_text()) for path in sorted(job.log_dir.glob("worker*.json"))]
    if min(worker["link_bytes"] for worker in workers) <= 0:
        raise JobError(f"{variant}: nothing crossed a link")
    where = {"model": model.name, "hosts": network.hosts, "mbit": mbit, "variant": variant}
    return {**where, **_merged(workers)}


def _limit_when_ready(job: Job, network: Network, mbit: float, deadline_s: float) -> None:
    """Limit the links once all workers have created their keys, and let them go on."""
    with os.fdopen(os.open(job.log_dir / "created", os.O_RDONLY | os.O_NONBLOCK)) as pipe:
        if not select.select([pipe], [], [], deadline_s)[0]:
            job.wait(0.0)  # tells what has failed
    network.limit(1e6 * mbit)
    (job.log_dir / "go").write_text("go")


def _merged(workers: Sequence[Any]) -> dict[str, Any]:
    """Join what the workers of one job wrote; only the first looked at the machine."""
    steps = [[end - begin for begin, end in pairwise(worker["marks"])] for worker in workers]
    [load] = [worker["load"] for worker in workers if worker["load"]]
    spent = {name: load[1][name] - load[0][name] for name in load[0]}
    core_s = spent["at_s"] * (os.cpu_count() or 1)
    return {
        "step_s": fmean(map(fmean, steps)),
        "median_s": median(fmean(each) for each in zip(*steps)),
        "num_bytes": fmean(worker["link_bytes"] for worker in workers),
        "cpu_s": spent["job_s"] / len(steps[0]),
        "busy": 1 - spent["idle_s"] / core_s,
        "own": spent["job_s"] / core_s,
    }


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure all variants in turn at every point; every second repeat backwards."""
    results = prepare(WHAT, arguments)
    results.facts["steps"] = STEPS[bool(arguments.quick)]
    for hosts in arguments.hosts:
        with Network(hosts) as network:
            for model, mbit in product(arguments.models, arguments.mbit):
                for repeat in range(arguments.repeats):
                    for variant in arguments.variants[:: -1 if repeat % 2 else 1]:
                        _measure_one(network, model, mbit, variant, arguments, results)
    return results


def _measure_one(  # noqa: PLR0917  where, what, and where to
    network: Network,
    model: Model,
    mbit: float,
    variant: str,
    arguments: argparse.Namespace,
    results: Results,
) -> None:
    """Measure a variant at a point, tell the user, and keep what failed instead of ending."""
    where = f"{model.name}, {network.hosts} hosts, {mbit:g} Mbit/s, {variant}"
    steps = results.facts["steps"]
    try:
        run = measure(network, model, variant, mbit, steps=steps, deadline_s=arguments.deadline)
    except JobError as error:
        results.fail(f"{where}: {error}")
    else:
        results.add(run)
        report(f"{where}: {1e3 * run['step_s']:.1f} ms, busy {run['busy']:.2f}")


def main() -> None:
    """Measure or load, print and write."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    rows = rows_of(results.runs)
    results.show(table(rows), *goals(rows))
    results.close()


if __name__ == "__main__":
    main()
