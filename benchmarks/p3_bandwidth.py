"""Measures training over slow links beside stock MXNet: table, JSON and the P3 paper's Figure 7.

Hosts are network namespaces with a rate limit on their links, each with one worker and one server; compute
is replayed as waits, gradients really travel. Needs root. See README.md beside this file.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from harness.p3_summary import Row, goals, summarize, table
from harness.p3_variants import P3, STOCK, USUAL, VARIANTS, Variant

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

RATIOS = "0.3,0.5,0.8,1.0,1.2,2.0"
QUICK_RATIOS = "0.5,1.2"
QUICK_VARIANTS = f"{STOCK.name},stock-p3-wm10,ours-fifo,{P3.name}"
WHAT = "p3-bandwidth"


@dataclass
class Measured:
    """All runs at one point."""

    point: Point
    runs: list[Run] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """Return the rows of the table."""
        return summarize(self.point, self.runs)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_parser(__doc__, ",".join(SCALES), IMAGES / f"{WHAT}.png")
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--ratios", help=f"time of the network over compute (default: {RATIOS})")
    parser.add_argument("--variants", help=f"comma-separated, of {','.join(names)}")
    parser.add_argument("--slice-elements", type=int, help="our slices, 0 for auto (default: 12,500)")
    parser.add_argument("--window-bytes", type=int, default=0, help="our window, 0 for its own rule")
    parser.add_argument(
        "--load", type=Path, nargs="+", metavar="JSON", help="show earlier results instead of measuring"
    )
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    chosen = arguments.variants or (
        QUICK_VARIANTS if quick else ",".join(variant.name for variant in USUAL)
    )
    arguments.variants = [
        VARIANTS[names.index(name)].with_window(arguments.window_bytes)
        for name in by_names(parser, chosen, names)
    ]
    arguments.models = by_names(parser, arguments.models, list(SCALES))
    ratios = arguments.ratios or (QUICK_RATIOS if quick else RATIOS)
    arguments.ratios = [float(ratio) for ratio in ratios.split(",")]
    return arguments


def measure_all(arguments: argparse.Namespace) -> tuple[list[Measured], list[str]]:
    """Measure every model at every rate; return that, and what failed."""
    from harness.zoo import load  # noqa: PLC0415  needs mxnet, which takes seconds

    result = ResultFile(WHAT, arguments, prepare(arguments))
    measured: list[Measured] = []
    with Network(arguments.hosts) as network:
        recorder = Recorder(network, length_of(arguments))
        for model in map(load, arguments.models):
            for ratio in arguments.ratios:
                measured.append(Measured(set_point(network, model, ratio, arguments.compute)))
                measure_point(measured[-1], model, recorder, arguments)
                result.write({"points": [asdict(each) for each in measured], "failures": recorder.failures})
    report(f"written: {result.path}")
    return measured, recorder.failures


def measure_point(
    measured: Measured, model: Model, recorder: Recorder, arguments: argparse.Namespace
) -> None:
    """Run all stores in turn; every second repeat backwards, so that none always follows the same other."""
    granularity = _granularity(model, arguments)
    variants: list[Variant] = arguments.variants
    point = measured.point
    for repeat in range(repeats_of(arguments)):
        where = f"{point.model} {point.hosts} hosts ratio {point.ratio:g} repeat {repeat + 1}"
        for variant in variants[:: -1 if repeat % 2 else 1]:
            measured.runs += recorder.run(model, variant, granularity, where)


def _granularity(model: Model, arguments: argparse.Namespace) -> Granularity:
    """Return where tensors are cut."""
    usual = Granularity.of(model)
    if arguments.slice_elements is None:
        return usual
    return replace(usual, slice_elements=arguments.slice_elements)


def load_results(paths: Sequence[Path]) -> list[Measured]:
    """Read what earlier commands have written."""
    return [_measured(entry) for path in paths for entry in json.loads(path.read_text())["points"]]


def _measured(entry: dict[str, Any]) -> Measured:
    return Measured(Point(**entry["point"]), [Run(**run) for run in entry["runs"]])


def main() -> None:
    """Measure or load, print, and draw."""
    arguments = parse_arguments()
    failures: list[str] = []
    try:
        if arguments.load:
            measured = load_results(arguments.load)
        else:
            measured, failures = measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    rows = [row for each in measured for row in each.rows()]
    print(table(rows), *goals(rows), sep="\n")
    if arguments.plot:
        from harness.p3_drawing import draw_bandwidth  # noqa: PLC0415  matplotlib only for a plot

        draw_bandwidth(rows, arguments.plot)
    if failures:
        sys.exit(f"{len(failures)} runs failed; the file of results says how")


if __name__ == "__main__":
    main()
