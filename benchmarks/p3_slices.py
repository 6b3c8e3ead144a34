"""Measures training over slow links against the slice size: table, JSON and the P3 paper's Figure 12.

Ours with priorities, for every slice size of a sweep, at one rate or several; the default is held to the
best. Needs root. See README.md beside this file.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.models import Granularity, Model
from harness.netns import Network, NetworkError
from harness.p3_cell import Point, set_point
from harness.p3_cli import Recorder, completed, make_p3_parser, models_of, prepare
from harness.p3_summary import Row, by_point, slices_table, summarize
from harness.p3_variants import P3
from harness.results import Results, load

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SIZES = "1250,2500,5000,12500,25000,50000,100000"
QUICK_SIZES = "2500,12500,50000"
WHAT = "p3-slices"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_p3_parser(WHAT, __doc__, "resnet50,vgg19,sockeye")
    add = parser.add_argument
    add("--sizes", help=f"elements of a slice (default: {SIZES}); the default of the store is always there")
    add("--ratios", default="1.2", help="time of the network over compute, comma-separated (default: 1.2)")
    arguments = completed(parser, parser.parse_args(argv))
    sizes = arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES)
    arguments.sizes = [*map(int, sizes.split(","))]
    arguments.ratios = [*map(float, arguments.ratios.split(","))]
    return arguments


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure every model at every rate with every size."""
    results = prepare(WHAT, arguments)
    with Network(arguments.hosts) as network:
        recorder = Recorder(network, arguments, results)
        for model in models_of(arguments):
            for ratio in arguments.ratios:
                point = set_point(network, model, ratio, arguments.compute)
                measure_point(point, model, recorder, arguments)
    return results


def measure_point(point: Point, model: Model, recorder: Recorder, arguments: argparse.Namespace) -> None:
    """Run all sizes in turn, every second repeat backwards."""
    usual = Granularity.of(model)
    sizes = sorted({*arguments.sizes, usual.slice_elements})
    for repeat in range(arguments.repeats):
        for size in sizes[:: -1 if repeat % 2 else 1]:
            where = f"{model.name} ratio {point.ratio:g} repeat {repeat + 1} slices of {size}"
            run = recorder.run(model, P3, replace(usual, slice_elements=size), where)
            recorder.keep(point, run, slice_elements=size, usual_elements=usual.slice_elements)


def rows_of(runs: Sequence[dict[str, Any]]) -> dict[Point, dict[int, Row]]:
    """Return for each point the row of every size that ran at all.

    In older files 0 is what the store had been left to choose, a constant that is among the others.
    """
    rows: dict[Point, dict[int, Row]] = {}
    for size in sorted({run["slice_elements"] for run in runs} - {0}):
        for point, own in by_point([run for run in runs if run["slice_elements"] == size]).items():
            [row] = summarize(point, own)
            rows.setdefault(point, {})[size] = row
    return rows


def main() -> None:
    """Measure or load, print, and draw."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    rows = rows_of(results.runs)
    usual = {Point(**run["point"]): run["usual_elements"] for run in results.runs}
    results.show(slices_table(rows, usual))
    if arguments.plot:
        from harness.p3_drawing import draw_slices  # noqa: PLC0415  matplotlib only for a plot

        draw_slices(rows, usual, arguments.plot, results.marks)
    results.close()


if __name__ == "__main__":
    main()
