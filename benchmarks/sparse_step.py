"""Measures steps of models with tables over slow links: by allreduce, by servers, by both, beside stock.

Hosts are network namespaces with a rate limit on their links, each with one worker and one server; nothing
is computed, gradients really travel. Prints a table and writes JSON. Needs root. See README.md beside this
file.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import TYPE_CHECKING

from harness.jobs import JobError
from harness.launched import launched
from harness.netns import Network, NetworkError
from harness.p3_cli import prepare
from harness.planner_points import CLUSTERS, name_of
from harness.results import Results, by_names, load, make_parser, report
from harness.sparse_models import MODELS, USUAL, Model
from harness.sparse_step_cell import measure
from harness.sparse_step_summary import (
    ALLREDUCE,
    HALVES,
    HYBRID,
    PAIRS,
    PAIRS_AUTO,
    PAIRS_ONE,
    SERVERS,
    STOCK,
    goals,
    rows_of,
    table,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from harness.launched import Launched

WHAT = "sparse-step"
VARIANTS = (STOCK, ALLREDUCE, SERVERS, HYBRID)
EVERY = (*VARIANTS, HALVES, PAIRS, PAIRS_ONE, PAIRS_AUTO)
STEPS = {False: "4,20", True: "2,5"}


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
    add("--variants", default=",".join(VARIANTS), help=f"comma-separated, of {','.join(EVERY)}")
    add("--steps", help="to warm up, and measured (default: 4,20, or 2,5 when quick)")
    add(
        "--launched",
        action="store_true",
        help=f"jobs of mpilaunch, on hosts that ssh reaches; what it measures of these is kept, too; for "
        f"{PAIRS_AUTO}",
    )
    add("--deadline", type=float, default=240.0, help="seconds until one job is killed")
    arguments = parser.parse_args(argv)
    if PAIRS_AUTO in arguments.variants.split(",") and not arguments.launched:
        parser.error(f"{PAIRS_AUTO} is what mpilaunch takes: give --launched as well")
    quick = arguments.quick
    arguments.models = [MODELS[models.index(name)] for name in by_names(parser, arguments.models, models)]
    arguments.variants = by_names(parser, arguments.variants, EVERY)
    arguments.repeats = arguments.repeats or (1 if quick else 3)
    arguments.steps = tuple(map(int, (arguments.steps or STEPS[quick]).split(",")))
    arguments.hosts = list(map(int, (arguments.hosts or ("2" if quick else "2,4,8")).split(",")))
    arguments.mbit = list(map(float, (arguments.mbit or ("200" if quick else "100,200,500")).split(",")))
    return arguments


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure all variants in turn at every point; every second repeat backwards."""
    results = prepare(WHAT, arguments)
    results.facts["steps"] = arguments.steps
    for hosts in arguments.hosts:
        if arguments.launched:
            with launched(hosts) as place:
                for mbit in arguments.mbit:
                    place.network.limit(1e6 * mbit)
                    cluster = place.measured_cluster()
                    report(cluster)
                    results.facts.setdefault(CLUSTERS, {})[name_of(hosts, mbit)] = cluster
                    _measure_points(place.network, [mbit], arguments, results, place)
        else:
            with Network(hosts) as network:
                _measure_points(network, arguments.mbit, arguments, results)
    return results


def _measure_points(
    network: Network,
    rates: Sequence[float],
    arguments: argparse.Namespace,
    results: Results,
    place: Launched | None = None,
) -> None:
    for model, mbit in product(arguments.models, rates):
        for repeat in range(arguments.repeats):
            for variant in arguments.variants[:: -1 if repeat % 2 else 1]:
                _measure_one(network, model, mbit, variant, arguments, results, place)


def _measure_one(  # noqa: PLR0917  where, what, and where to
    network: Network,
    model: Model,
    mbit: float,
    variant: str,
    arguments: argparse.Namespace,
    results: Results,
    place: Launched | None,
) -> None:
    """Measure a variant at a point, tell the user, and keep what failed instead of ending."""
    where = f"{model.name}, {network.hosts} hosts, {mbit:g} Mbit/s, {variant}"
    steps = results.facts["steps"]
    try:
        how = {"steps": steps, "deadline_s": arguments.deadline, "launched": place}
        run = measure(network, model, variant, mbit, **how)
    except JobError as error:
        results.fail(f"{where}: {error}")
    else:
        results.add(run)
        report(f"{where}: {1e3 * run['median_s']:.1f} ms, busy {run['busy']:.2f}")


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
