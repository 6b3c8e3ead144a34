"""Measures training over slow links beside stock MXNet: table, JSON and the P3 paper's Figure 7.

Hosts are network namespaces with a rate limit on their links, each with one worker and one server; compute
is replayed as waits, gradients really travel. Needs root. See README.md beside this file.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.models import SCALES, Granularity, Model
from harness.netns import Network, NetworkError
from harness.p3_cell import Point, set_point
from harness.p3_cli import Recorder, completed, make_p3_parser, models_of, prepare
from harness.p3_summary import by_point, goals, summarize, table
from harness.p3_variants import P3, STOCK, USUAL, VARIANTS, Variant
from harness.results import Results, by_names, load

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

RATIOS = "0.3,0.5,0.8,1.0,1.2,2.0"
QUICK_RATIOS = "0.5,1.2"
QUICK_VARIANTS = f"{STOCK.name},stock-p3-wm10,ours-fifo,{P3.name}"
WHAT = "p3-bandwidth"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_p3_parser(WHAT, __doc__, ",".join(SCALES))
    names = [variant.name for variant in VARIANTS]
    add = parser.add_argument
    add("--ratios", help=f"time of the network over compute (default: {RATIOS})")
    add("--variants", help=f"comma-separated, of {','.join(names)}")
    add("--slice-elements", type=int, help="our slices (default: 50,000, divided by 4 as models are)")
    add("--window-bytes", type=int, default=0, help="our window, 0 for its own rule")
    add("--beside", type=Path, metavar="TREE", help="also measure ours of another checkout, by its .venv")
    arguments = completed(parser, parser.parse_args(argv))
    quick = arguments.quick
    chosen = arguments.variants or (
        QUICK_VARIANTS if quick else ",".join(variant.name for variant in USUAL)
    )
    arguments.variants = [
        VARIANTS[names.index(name)].with_window(arguments.window_bytes)
        for name in by_names(parser, chosen, names)
    ]
    if arguments.beside:
        ours = [variant for variant in arguments.variants if not variant.is_stock]
        arguments.variants += [variant.of_tree(arguments.beside.resolve()) for variant in ours]
    ratios = arguments.ratios or (QUICK_RATIOS if quick else RATIOS)
    arguments.ratios = [float(ratio) for ratio in ratios.split(",")]
    return arguments


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure every model at every rate."""
    results = prepare(WHAT, arguments)
    with Network(arguments.hosts) as network:
        recorder = Recorder(network, arguments, results)
        for model in models_of(arguments):
            for ratio in arguments.ratios:
                point = set_point(network, model, ratio, arguments.compute)
                measure_point(point, model, recorder, arguments)
    return results


def measure_point(point: Point, model: Model, recorder: Recorder, arguments: argparse.Namespace) -> None:
    """Run all stores in turn; every second repeat backwards, so that none always follows the same other."""
    granularity = _granularity(model, arguments)
    variants: list[Variant] = arguments.variants
    for repeat in range(arguments.repeats):
        where = f"{point.model} {point.hosts} hosts ratio {point.ratio:g} repeat {repeat + 1}"
        for variant in variants[:: -1 if repeat % 2 else 1]:
            recorder.keep(point, recorder.run(model, variant, granularity, where))


def _granularity(model: Model, arguments: argparse.Namespace) -> Granularity:
    """Return where tensors are cut."""
    usual = Granularity.of(model)
    if arguments.slice_elements is None:
        return usual
    return replace(usual, slice_elements=arguments.slice_elements)


def main() -> None:
    """Measure or load, print, and draw."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    rows = [row for point, runs in by_point(results.runs).items() for row in summarize(point, runs)]
    results.show(table(rows), *goals(rows))
    if arguments.plot:
        from harness.p3_drawing import draw_bandwidth  # noqa: PLC0415  matplotlib only for a plot

        draw_bandwidth(rows, arguments.plot, results.marks)
    results.close()


if __name__ == "__main__":
    main()
