"""Measures how well and how fast nets are placed on devices, and pipelines are cut into stages.

Nets of MXNet's model zoo and three others, forward and backward, on 2, 3, 4 and 8 cards with a link of
25 GB/s between any two: the predicted speed-up over one card, the bound, the gap, and processor seconds,
for the solver (CP-SAT by pieces), the search without it, HEFT and m-ETF. With --instances, published graphs
as well. Nothing runs on a card: speed-ups are predictions of the simulator. Prints tables and writes JSON.
See README.md beside this file.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.jobs import Meter
from harness.placement_nets import NETS
from harness.results import begin, by_names, load, make_parser, report
from harness.table import align, each

from kvstore_mpi.planner.cluster import uniform
from kvstore_mpi.planner.placement.baselines import earliest_first, heft
from kvstore_mpi.planner.placement.formats import from_dnn_partitioning, from_pipedream
from kvstore_mpi.planner.placement.in_turn import best_in_turn
from kvstore_mpi.planner.placement.max_load import best_stages
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.placement.problem import NANO, Wishes, problem_of
from kvstore_mpi.planner.placement.stages import pipeline_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from harness.results import Results

    from kvstore_mpi.planner.placement.graph import Graph
    from kvstore_mpi.planner.placement.stages import Pipeline

WHAT = "dlplacer"
DEVICES = (2, 3, 4, 8)
LINK = (25e9, 10e-6)
"""One NVLink of the cards: bytes and seconds."""

HOST_LINK = 16e9
"""Bytes per second between a card and the host's memory, for profiles that have none."""

PROFILE_CARDS = 4
SINGLE_SAMPLE = "latency_"
"""How names of instances begin where one sample is computed at a time, and the sum of loads counts."""

TARGETS_S = {"inceptionv3": 10.0}
"""Processor seconds for a proof; all others have a minute."""

OTHER_TARGET_S = 60.0
CLOSE = 0.03
"""How much longer than the best what the search finds may take."""

HEAD = (
    "net",
    "ops",
    "devices",
    "speed-up",
    "bound",
    "gap",
    "cpu s",
    "each run",
    "search",
    "its gap",
    "cpu s",
)
HEAD = (*HEAD, "halves apart", "HEFT", "m-ETF", "target")
STAGES_HEAD = ("instance", "nodes", "devices", "largest load", "gap", "cpu s", "each run")


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return what an action gives, and the processor seconds that it took."""
    since = time.process_time()
    result = action()
    return result, time.process_time() - since


def measure_net(name: str, graph: Graph, devices: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Place one net by all methods."""
    cluster = uniform(devices, *LINK)
    effort = {"seconds": arguments.seconds, "workers": arguments.workers}
    best, best_s = timed(lambda: place(graph, cluster, method="cp", **effort))
    found, found_s = timed(lambda: place(graph, cluster, method="search", seconds=arguments.search_seconds))
    halves = place(graph, cluster, Wishes(split_backward=True), seconds=arguments.halves_seconds)
    problem = problem_of(graph, cluster, Wishes())
    return {
        "kind": "net",
        "name": name,
        "operations": len(graph.operations),
        "devices": devices,
        "single_s": best.single_seconds,
        "predicted_s": best.predicted_seconds,
        "bound_s": best.bound_seconds,
        "gap": best.gap,
        "cpu_s": best_s,
        "search_s": found.predicted_seconds,
        "search_gap": found.gap,
        "search_cpu_s": found_s,
        "halves_s": halves.predicted_seconds,
        "halves_bound_s": halves.bound_seconds,
        "heft_s": heft(problem).length / NANO,
        "metf_s": earliest_first(problem).length / NANO,
    }


def measure_stages(name: str, pipeline: Pipeline) -> dict[str, Any]:
    """Cut one pipeline into stages: for a stream of samples, or for a single one."""
    best = best_in_turn if name.startswith(SINGLE_SAMPLE) else best_stages
    found, seconds = timed(lambda: best(pipeline))
    return {
        "kind": "stages",
        "name": name,
        "nodes": len(pipeline.nodes),
        "devices": f"{pipeline.accelerators} + {pipeline.processors}",
        "load": found.load,
        "gap": found.gap,
        "cpu_s": seconds,
    }


def instances(folder: Path) -> list[tuple[str, Callable[[], Pipeline]]]:
    """Return the published pipelines below a folder: dnn-partitioning's, and PipeDream's on 4 cards."""
    published = [(path.stem, partial(_partitioning, path)) for path in sorted(folder.rglob("*.json"))]
    profiles = [
        (f"pipedream {path.stem}", partial(_pipedream, path))
        for path in sorted(folder.rglob("*.txt"))
        if not path.stem.startswith("LICENSE")
    ]
    return [*published, *profiles]


def _partitioning(path: Path) -> Pipeline:
    return from_dnn_partitioning(path.read_bytes())


def _pipedream(path: Path) -> Pipeline:
    return pipeline_of(from_pipedream(path.read_text(encoding="utf-8")), PROFILE_CARDS, HOST_LINK)


def measure_all(arguments: argparse.Namespace) -> Results:
    """Place every net on every number of devices, then cut the instances."""
    results = begin(WHAT, arguments)
    chosen = [(name, NETS[name]()) for name in arguments.nets]
    for number in range(arguments.repeats):
        for (name, graph), devices in product(chosen, arguments.devices):
            meter = Meter()
            run = measure_net(name, graph, devices, arguments)
            results.add({**run, "foreign_cores": meter.read().foreign_cores})
        for name, read in instances(arguments.instances) if arguments.instances else ():
            meter = Meter()
            run = measure_stages(name, read())
            results.add({**run, "foreign_cores": meter.read().foreign_cores})
        report(f"run {number + 1} of {arguments.repeats} is done")
    return results


def grouped(runs: Sequence[Mapping[str, Any]], kind: str) -> list[list[Mapping[str, Any]]]:
    """Return the runs of each case, in their order."""
    cases: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["kind"] == kind:
            cases.setdefault((run["name"], str(run["devices"])), []).append(run)
    return list(cases.values())


def net_cells(runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a line of the table of nets."""
    run = runs[0]
    seconds = [one["cpu_s"] for one in runs]
    alone = run["single_s"]
    limit = TARGETS_S.get(run["name"], OTHER_TARGET_S)
    proven = run["gap"] == 0 and median(seconds) <= limit
    close = run["search_s"] <= (1 + CLOSE) * run["predicted_s"]
    return (
        run["name"],
        str(run["operations"]),
        str(run["devices"]),
        f"{alone / run['predicted_s']:.4f}",
        f"{alone / run['bound_s']:.4f}",
        f"{100 * run['gap']:.2f} %",
        f"{median(seconds):.2f}",
        each(seconds, 2),
        f"{alone / run['search_s']:.4f}",
        f"{100 * run['search_gap']:.1f} %",
        f"{median(one['search_cpu_s'] for one in runs):.2f}",
        f"{alone / run['halves_s']:.3f}",
        f"{alone / run['heft_s']:.3f}",
        f"{alone / run['metf_s']:.3f}",
        "met" if proven and close else "MISSED: " + ("search" if proven else "proof"),
    )


def stages_cells(runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a line of the table of stages."""
    run = runs[0]
    seconds = [one["cpu_s"] for one in runs]
    load_ = f"{run['load']:.6g}"
    gap = f"{100 * run['gap']:.2f} %"
    return (
        run["name"],
        str(run["nodes"]),
        run["devices"],
        load_,
        gap,
        f"{median(seconds):.2f}",
        each(seconds, 2),
    )


def main() -> None:
    """Measure or load, print, write and draw."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3")
    parser.set_defaults(repeats=3)
    add = parser.add_argument
    add("--nets", default=",".join(NETS), help="comma-separated (default: all)")
    add("--devices", default=",".join(map(str, DEVICES)), help="numbers of cards")
    add("--seconds", type=float, default=60.0, help="effort of the solver for each placement")
    add("--search-seconds", type=float, default=20.0, help="effort of the search")
    add("--halves-seconds", type=float, default=4.0, help="effort with the backward pass in two halves")
    add("--workers", type=int, default=1, help="threads of the solver")
    add("--instances", type=Path, metavar="FOLDER", help="cut the published graphs below it as well")
    arguments = parser.parse_args()
    arguments.nets = by_names(parser, arguments.nets, list(NETS)) if arguments.nets else []
    arguments.devices = [int(number) for number in arguments.devices.split(",")]
    results = load(arguments.load) if arguments.load else measure_all(arguments)
    nets, stages = grouped(results.runs, "net"), grouped(results.runs, "stages")
    texts = [align([HEAD, *map(net_cells, nets)])] if nets else []
    texts += ["", align([STAGES_HEAD, *map(stages_cells, stages)])] if stages else []
    results.show(*texts)
    if arguments.plot:
        from harness.placement_drawing import draw  # noqa: PLC0415  needs matplotlib

        draw([one[0] for one in nets], arguments.plot, results.marks)
    results.close()


if __name__ == "__main__":
    main()
