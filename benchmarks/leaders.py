"""Measures one client over limited links, with one leader and with all ranks as leaders: table, JSON, plot.

Hosts are network namespaces, each with a rank of the client or with a server; nothing is computed, so that
a step is what communication takes. Needs root, and MPICH. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import goodput
from harness.jobs import JobError
from harness.leaders_bound import Shape, least_seconds
from harness.leaders_cell import Length, Run, Traffic, measure
from harness.leaders_summary import Point, table, traffic_table
from harness.machine import describe
from harness.models import SCALES, Granularity
from harness.netns import CONGESTION_CONTROL, Network, NetworkError
from harness.p3_cli import BENCHMARKS, IMAGES, by_names, prepare, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.models import Model

WHAT = "leaders"
LEADERS = ("one", "all")
NETWORKS = ("two", "one")
WARMUP = 1


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--ranks", default="2,4", help="ranks of the client, comma-separated (default: 2,4)")
    add("--servers", default="2,4", help="servers, comma-separated (default: 2,4)")
    add(
        "--networks",
        default="two,one",
        help="two: MPI has links of its own; one: it has not (default: both)",
    )
    add("--mbit", type=float, default=50.0, help="rate of the links to the servers, Mbit/s (default: 50)")
    add("--model", default="resnet50", help=f"one of {','.join(SCALES)} (default: resnet50)")
    add("--repeats", type=int, default=3, help="jobs for each figure (default: 3)")
    add("--steps", type=int, default=3, help="measured steps of a job (default: 3)")
    add("--json", type=Path, help="where to write (default: benchmarks/results/leaders-<date>.json)")
    plot = IMAGES / f"{WHAT}.png"
    add("--plot", type=Path, nargs="?", const=plot, help=f"draw a PNG (default place: {plot})")
    add("--load", type=Path, nargs="+", metavar="JSON", help="show earlier results instead of measuring")
    add("--realtime", action="store_true", help="run in the real-time class, as chrt --rr 1")
    add("--allow-load", action="store_true", help="measure though others use the processors")
    add("--deadline", type=float, default=180.0, help="seconds until one job is killed")
    arguments = parser.parse_args(argv)
    by_names(parser, arguments.model, list(SCALES))
    by_names(parser, arguments.networks, NETWORKS)
    return arguments


@dataclass
class Measurement:
    """What was measured, and what failed."""

    points: list[Point] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def measure_all(arguments: argparse.Namespace) -> Measurement:
    """Measure all shapes of jobs; write after each of them."""
    from harness.zoo import load  # noqa: PLC0415  needs mxnet, which takes seconds

    foreign = prepare(arguments)
    date = time.strftime("%Y-%m-%dT%H%M%S")
    path = arguments.json or BENCHMARKS / "results" / f"{WHAT}-{date}.json"
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    head = {"date": date, "command": command, **describe(), "congestion_control": CONGESTION_CONTROL}
    model = load(arguments.model)
    measurement = Measurement()
    for ranks in map(int, arguments.ranks.split(",")):
        for servers in map(int, arguments.servers.split(",")):
            with Network(ranks + servers, second=True) as network:
                network.limit(arguments.mbit * 1e6)
                for name in arguments.networks.split(","):
                    measure_point(network, model, (ranks, servers, name == "one"), arguments, measurement)
            points = [point.to_json() for point in measurement.points]
            failures = measurement.failures
            content = {**head, "foreign_cores": foreign, "points": points, "failures": failures}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content) + "\n")
    report(f"written: {path}")
    return measurement


def measure_point(
    network: Network,
    model: Model,
    place: tuple[int, int, bool],
    arguments: argparse.Namespace,
    measurement: Measurement,
) -> None:
    """Run jobs of both kinds in turn; every second repeat backwards."""
    ranks, servers, shared_link = place
    num_bytes = 4 * sum(model.elements())
    link = goodput.measure(network)
    shapes = [Shape(ranks, servers, leaders, shared_link) for leaders in LEADERS]
    bounds = tuple(least_seconds(shape, num_bytes, link.bytes_per_s) for shape in shapes)
    point = Point(model.name, num_bytes, arguments.mbit * 1e6, link.bytes_per_s, *place, bounds)
    measurement.points.append(point)
    length = Length(WARMUP, arguments.steps, arguments.deadline)
    for repeat in range(arguments.repeats):
        for shape in shapes[:: -1 if repeat % 2 else 1]:
            where = f"{ranks} ranks {servers} servers {'one' if shared_link else 'two'} {shape.leaders}"
            try:
                run = measure(network, shape, model, Granularity.of(model), length)
            except JobError as error:
                measurement.failures.append(f"{where}: {error}")
                report(f"!! {where}: {str(error).splitlines()[0]}")
                continue
            point.runs.append(run)
            report(f"{where}: {run.step_s:.3f} s a step, busy {run.busy:.2f}")


def load_results(paths: Sequence[Path]) -> list[Point]:
    """Read what earlier commands have written."""
    return [_point(entry) for path in paths for entry in json.loads(path.read_text())["points"]]


def _point(entry: dict[str, Any]) -> Point:
    runs = [_run(run) for run in entry.pop("runs")]
    return Point(**{**entry, "bounds_s": tuple(entry["bounds_s"])}, runs=runs)


def _run(entry: dict[str, Any]) -> Run:
    shape, traffic = Shape(**entry["shape"]), tuple(Traffic(**each) for each in entry["traffic"])
    return Run(**{**entry, "shape": shape, "traffic": traffic})


def main() -> None:
    """Measure or load, print, and draw."""
    arguments = parse_arguments()
    try:
        measurement = (
            Measurement(load_results(arguments.load)) if arguments.load else measure_all(arguments)
        )
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    print(table(measurement.points), traffic_table(measurement.points), sep="\n\n")
    if arguments.plot:
        from harness.leaders_drawing import draw  # noqa: PLC0415  matplotlib only for a plot

        draw(measurement.points, arguments.plot)
    if measurement.failures:
        sys.exit(f"{len(measurement.failures)} runs failed; the file of results says how")


if __name__ == "__main__":
    main()
