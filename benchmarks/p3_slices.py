"""Measures training over slow links against the slice size: table, JSON and the P3 paper's Figure 12.

Ours with priorities, at one rate, for every slice size of a sweep and with the size left to the store
(``auto``). Needs root. See README.md beside this file.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.models import Granularity, Model
from harness.netns import Network, NetworkError
from harness.p3_cell import Point, set_point
from harness.p3_cli import Recorder, completed, make_p3_parser, prepare
from harness.p3_summary import Row, by_point, slices_table, summarize
from harness.p3_variants import P3
from harness.results import Results, load

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

AUTO = 0
AUTO_WARMUP = 20
"""Further iterations in which the store makes its choice, before the measured ones."""

SIZES = "1250,2500,5000,12500,25000,50000,100000"
QUICK_SIZES = "2500,12500,50000"
WHAT = "p3-slices"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_p3_parser(WHAT, __doc__, "resnet50,vgg19")
    parser.add_argument("--sizes", help=f"elements of a slice (default: {SIZES}); auto is always there")
    parser.add_argument("--ratio", type=float, default=1.2, help="time of the network over compute")
    arguments = completed(parser, parser.parse_args(argv))
    sizes = arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES)
    arguments.sizes = [*map(int, sizes.split(",")), AUTO]
    return arguments


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure every model with every size."""
    from harness.zoo import load as load_model  # noqa: PLC0415  needs mxnet, which takes seconds

    results = prepare(WHAT, arguments)
    with Network(arguments.hosts) as network:
        recorder = Recorder(network, arguments, results)
        for model in map(load_model, arguments.models):
            point = set_point(network, model, arguments.ratio, arguments.compute)
            measure_model(point, model, recorder, arguments)
    return results


def measure_model(point: Point, model: Model, recorder: Recorder, arguments: argparse.Namespace) -> None:
    """Run all sizes in turn, every second repeat backwards."""
    for repeat in range(arguments.repeats):
        for size in arguments.sizes[:: -1 if repeat % 2 else 1]:
            granularity = replace(Granularity.of(model), slice_elements=size)
            where = f"{model.name} repeat {repeat + 1} slices of {size or 'auto'}"
            more_warmup = 0 if size else AUTO_WARMUP
            run = recorder.run(model, P3, granularity, where, more_warmup)
            recorder.keep(point, run, slice_elements=size)


def rows_of(runs: Sequence[dict[str, Any]]) -> dict[Point, dict[int, Row]]:
    """Return for each point the row of every size that ran at all, ``auto`` last."""
    rows: dict[Point, dict[int, Row]] = {}
    for size in sorted({run["slice_elements"] for run in runs}, key=lambda size: (size == AUTO, size)):
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
    results.show(slices_table(rows))
    if arguments.plot:
        from harness.p3_drawing import draw_slices  # noqa: PLC0415  matplotlib only for a plot

        draw_slices(rows, arguments.plot, results.marks)
    results.close()


if __name__ == "__main__":
    main()
