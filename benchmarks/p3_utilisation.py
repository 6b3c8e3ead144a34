"""Measures what crosses one host's link in every 10 ms: table, JSON and the P3 paper's Figures 8 and 9.

Ours first come first served, and with priorities, in turn, at one rate. Needs root. See README.md beside
this file.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from harness.models import Granularity, Model
from harness.netns import LINK, Network, NetworkError
from harness.p3_cell import Point, set_point
from harness.p3_cli import Recorder, completed, make_p3_parser, models_of, prepare
from harness.p3_summary import MOST_BUSY, traffic_of, utilisation_table
from harness.p3_variants import FIFO, P3, VARIANTS, Variant
from harness.results import Results, by_names, load
from harness.sampler import Sampler
from harness.utilisation import bins_between

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

BIN_S = 0.01
HOST = 0
WHAT = "p3-utilisation"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_p3_parser(WHAT, __doc__, "resnet50,vgg19")
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--variants", default=f"{FIFO.name},{P3.name}", help="comma-separated stores")
    parser.add_argument("--ratio", type=float, default=1.2, help="time of the network over compute")
    arguments = completed(parser, parser.parse_args(argv))
    chosen = by_names(parser, arguments.variants, names)
    arguments.variants = [VARIANTS[names.index(name)] for name in chosen]
    return arguments


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure every model with every store."""
    results = prepare(WHAT, arguments)
    with Network(arguments.hosts) as network:
        recorder = Recorder(network, arguments, results)
        for model in models_of(arguments):
            point = set_point(network, model, arguments.ratio, arguments.compute)
            for _ in range(arguments.repeats):
                for variant in arguments.variants:
                    measure_one(network, point, model, variant, recorder)
    return results


def measure_one(network: Network, point: Point, model: Model, variant: Variant, recorder: Recorder) -> None:
    """Run one job with a sampler at one host, and cut the measured part out of its samples."""
    with Sampler(network, HOST, LINK) as sampler:
        run = recorder.run(model, variant, Granularity.of(model), model.name)
    if run is not None:
        bins = bins_between(sampler.samples, run.begin_s, run.end_s, BIN_S)
        recorder.keep(point, run, bins=asdict(bins))


def main() -> None:
    """Measure or load, print, and draw."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    traffic = traffic_of(results.runs)
    results.show(utilisation_table(traffic))
    counting = [each for each in traffic if each.run.busy <= MOST_BUSY]
    if arguments.plot and counting:
        from harness.p3_drawing import draw_utilisation  # noqa: PLC0415  matplotlib only for a plot

        draw_utilisation(counting, arguments.plot, results.marks)
    results.close()


if __name__ == "__main__":
    main()
