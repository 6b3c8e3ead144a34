"""Measures what crosses one host's link in every 10 ms: table, JSON and the P3 paper's Figures 8 and 9.

Ours first come first served, and with priorities, one job each, at one rate. Needs root. See README.md
beside this file.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from harness.models import SCALES, Granularity, Model
from harness.netns import LINK, Network, NetworkError
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
from harness.p3_summary import MOST_BUSY, Traffic, utilisation_table
from harness.p3_variants import FIFO, P3, VARIANTS, Variant
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
    parser = make_parser(__doc__, "resnet50,vgg19", IMAGES / f"{WHAT}.png")
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--variants", default=f"{FIFO.name},{P3.name}", help="comma-separated stores")
    parser.add_argument("--ratio", type=float, default=1.2, help="time of the network over compute")
    arguments = parser.parse_args(argv)
    arguments.models = by_names(parser, arguments.models, list(SCALES))
    chosen = by_names(parser, arguments.variants, names)
    arguments.variants = [VARIANTS[names.index(name)] for name in chosen]
    return arguments


def measure_all(arguments: argparse.Namespace) -> tuple[list[Traffic], list[str]]:
    """Measure every model with every store; return that, and what failed."""
    from harness.zoo import load  # noqa: PLC0415  needs mxnet, which takes seconds

    result = ResultFile(WHAT, arguments, prepare(arguments))
    traffic: list[Traffic] = []
    with Network(arguments.hosts) as network:
        recorder = Recorder(network, length_of(arguments))
        for model in map(load, arguments.models):
            point = set_point(network, model, arguments.ratio, arguments.compute)
            for _ in range(repeats_of(arguments)):
                for variant in arguments.variants:
                    traffic += measure_one(network, point, model, variant, recorder)
            result.write({"jobs": [asdict(each) for each in traffic], "failures": recorder.failures})
    report(f"written: {result.path}")
    return traffic, recorder.failures


def measure_one(
    network: Network, point: Point, model: Model, variant: Variant, recorder: Recorder
) -> list[Traffic]:
    """Run one job with a sampler at one host; return its traffic, or nothing if it failed."""
    with Sampler(network, HOST, LINK) as sampler:
        runs = recorder.run(model, variant, Granularity.of(model), model.name)
    return [_traffic(point, run, sampler) for run in runs]


def _traffic(point: Point, run: Run, sampler: Sampler) -> Traffic:
    """Cut the measured part out of the samples."""
    return Traffic(point, run, bins_between(sampler.samples, run.begin_s, run.end_s, BIN_S))


def main() -> None:
    """Measure, print, and draw."""
    arguments = parse_arguments()
    try:
        traffic, failures = measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    print(utilisation_table(traffic))
    if arguments.plot:
        from harness.p3_drawing import draw_utilisation  # noqa: PLC0415  matplotlib only for a plot

        draw_utilisation([each for each in traffic if each.run.busy <= MOST_BUSY], arguments.plot)
    if failures:
        sys.exit(f"{len(failures)} runs failed; the file of results says how")


if __name__ == "__main__":
    main()
