"""What the ``p3_*.py`` commands share: their options, and jobs measured one by one."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .jobs import JobError
from .models import SCALES, Granularity, Model
from .netns import CONGESTION_CONTROL, Network, NetworkError, check_tools
from .p3_cell import Length, Point, Run, measure
from .results import Results, begin, by_names, make_parser, report

if TYPE_CHECKING:
    import argparse

    from .p3_variants import Variant

FULL = {"warmup": 4, "iterations": 6}
QUICK = {"warmup": 3, "iterations": 3}
"""TCP needs some iterations until its connections share the links evenly; they are dropped."""


def make_p3_parser(what: str, description: str, models: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all three commands have.

    Args:
        what: See ``make_parser``.
        description: For ``--help``.
        models: Default of ``--models``.
    """
    parser = make_parser(
        what, description, repeats="3, or 1 when quick", quick="fewer repeats and iterations"
    )
    add = parser.add_argument
    add("--models", default=models, help=f"comma-separated, of {','.join(SCALES)} (default: {models})")
    add("--hosts", type=int, choices=(2, 4, 8), default=4, help="hosts, each with a worker and a server")
    add("--compute", type=float, default=1.0, metavar="SECONDS", help="compute of one iteration")
    add("--deadline", type=float, default=180.0, help="seconds until one job is killed")
    add("--full-size", action="store_true", help="layers and slices as they are, not made smaller")
    return parser


def completed(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the names of models checked and the number of repeats filled in."""
    arguments.models = by_names(parser, arguments.models, list(SCALES))
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    return arguments


def models_of(arguments: argparse.Namespace) -> list[Model]:
    """Return the models, made smaller unless the user wants them as they are."""
    from .zoo import load  # noqa: PLC0415  needs mxnet, which takes seconds

    models = map(load, arguments.models)
    return [replace(model, scale=1) if arguments.full_size else model for model in models]


def prepare(what: str, arguments: argparse.Namespace) -> Results:
    """Make sure that hosts can be made and that measuring makes sense."""
    try:
        check_tools()
    except NetworkError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    results = begin(what, arguments)
    results.facts["congestion_control"] = CONGESTION_CONTROL
    return results


class Recorder:
    """Measures runs one by one, tells the user, and keeps what failed instead of ending."""

    def __init__(self, network: Network, arguments: argparse.Namespace, results: Results) -> None:
        """Measure in this network."""
        counts = QUICK if arguments.quick else FULL
        self._length = Length(arguments.compute, counts["warmup"], counts["iterations"], arguments.deadline)
        self._network = network
        self._results = results
        results.facts["length"] = asdict(self._length)

    def run(
        self,
        model: Model,
        variant: Variant,
        granularity: Granularity,
        where: str,
    ) -> Run | None:
        """Return the run, or nothing if it failed.

        Args:
            model: What to replay.
            variant: The store.
            granularity: Where tensors are cut.
            where: For messages.
        """
        begin_s = time.monotonic()
        try:
            run = measure(self._network, model, variant, granularity, self._length)
        except JobError as error:
            self._results.fail(f"{where} {variant.name}: {_brief(str(error))}")
            return None
        report(
            f"{where} {variant.name}: {run.iteration_s:.3f} s/iteration, busy {run.busy:.2f} "
            f"({time.monotonic() - begin_s:.0f} s)"
        )
        return run

    def keep(self, point: Point, run: Run | None, **more: Any) -> None:
        """Take a run into the results, unless it failed."""
        if run is not None:
            self._results.add({"point": asdict(point), **asdict(run), **more})


def _brief(error: str) -> str:
    """Return the first line of a job's error, and the last of the process that it begins with."""
    first, *rest = error.splitlines()
    own = [line for line in rest if line.startswith(f"{first.split()[0]}|")]
    return "\n".join([first, *own[-1:]])
