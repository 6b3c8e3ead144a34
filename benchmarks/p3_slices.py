"""Measures training over slow links against the slice size: table, JSON and the P3 paper's Figure 12.

Ours with priorities, at one rate, for every slice size of a sweep and with the size left to the store
(``auto``). Needs root. See README.md beside this file.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from harness.models import SCALES, Granularity, Model
from harness.netns import Network, NetworkError
from harness.p3_cell import Point, Run, set_point
from harness.p3_cli import (
    IMAGES,
    Recorder,
    ResultFile,
    by_names,
    length_of,
    make_parser,
    prepare,
    repeats_of,
    report,
)
from harness.p3_summary import Row, slices_table, summarize
from harness.p3_variants import P3

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

AUTO = 0
AUTO_WARMUP = 20
"""In so many more iterations the store makes its choice, before the measured ones."""

SIZES = "1250,2500,5000,12500,25000,50000,100000"
QUICK_SIZES = "2500,12500,50000"
WHAT = "p3-slices"

Runs = dict[int, list[Run]]
"""Slice size -> its runs; size 0 is auto."""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_parser(__doc__, "resnet50,vgg19", IMAGES / f"{WHAT}.png")
    parser.add_argument("--sizes", help=f"elements of a slice (default: {SIZES}); auto is always there")
    parser.add_argument("--ratio", type=float, default=1.2, help="time of the network over compute")
    arguments = parser.parse_args(argv)
    arguments.models = by_names(parser, arguments.models, list(SCALES))
    sizes = arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES)
    arguments.sizes = [*map(int, sizes.split(",")), AUTO]
    return arguments


def measure_all(arguments: argparse.Namespace) -> tuple[dict[Point, dict[int, Row]], list[str]]:
    """Measure every model with every size; return the rows, and what failed."""
    from harness.zoo import load  # noqa: PLC0415  needs mxnet, which takes seconds

    result = ResultFile(WHAT, arguments, prepare(arguments))
    points: dict[Point, Runs] = {}
    with Network(arguments.hosts) as network:
        recorder = Recorder(network, length_of(arguments))
        for model in map(load, arguments.models):
            point = set_point(network, model, arguments.ratio, arguments.compute)
            points[point] = measure_model(model, recorder, arguments)
            result.write(
                {"points": [_entry(*each) for each in points.items()], "failures": recorder.failures}
            )
    report(f"written: {result.path}")
    return {point: _rows(point, runs) for point, runs in points.items()}, recorder.failures


def measure_model(model: Model, recorder: Recorder, arguments: argparse.Namespace) -> Runs:
    """Run all sizes in turn, every second repeat backwards."""
    runs: Runs = {size: [] for size in arguments.sizes}
    for repeat in range(repeats_of(arguments)):
        for size in arguments.sizes[:: -1 if repeat % 2 else 1]:
            granularity = replace(Granularity.of(model), slice_elements=size)
            where = f"{model.name} repeat {repeat + 1} slices of {size or 'auto'}"
            more_warmup = 0 if size else AUTO_WARMUP
            runs[size] += recorder.run(model, P3, granularity, where, more_warmup)
    return runs


def _rows(point: Point, runs: Runs) -> dict[int, Row]:
    """Return the row of every size that ran at all."""
    return {size: row for size, own in runs.items() for row in summarize(point, own)}


def _entry(point: Point, runs: Runs) -> dict[str, object]:
    """Return what the JSON file says about one model."""
    return {
        "point": asdict(point),
        "sizes": {size: [asdict(run) for run in own] for size, own in runs.items()},
    }


def main() -> None:
    """Measure, print, and draw."""
    arguments = parse_arguments()
    try:
        rows, failures = measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    print(slices_table(rows))
    if arguments.plot:
        from harness.p3_drawing import draw_slices  # noqa: PLC0415  matplotlib only for a plot

        draw_slices(rows, arguments.plot)
    if failures:
        sys.exit(f"{len(failures)} runs failed; the file of results says how")


if __name__ == "__main__":
    main()
