"""What the ``p3_*.py`` commands share: options, the state of the machine, and files of results."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .jobs import JobError, Meter
from .machine import describe
from .models import SCALES, Granularity, Model
from .netns import CONGESTION_CONTROL, Network, NetworkError, check_tools
from .p3_cell import Length, Run, measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .p3_variants import Variant

BENCHMARKS = Path(__file__).resolve().parent.parent
IMAGES = BENCHMARKS.parent / "docs" / "images"
MOST_FOREIGN_CORES = 0.25
PROBE_S = 2.0
FULL = {"warmup": 4, "iterations": 6}
QUICK = {"warmup": 3, "iterations": 3}
"""TCP needs some iterations until its connections share the links evenly; they are dropped."""


def make_parser(description: str, models: str, plot: Path) -> argparse.ArgumentParser:
    """Return a parser with the options that all commands have.

    Args:
        description: For ``--help``.
        models: Default of ``--models``.
        plot: Default place of the plot.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", default=models, help=f"comma-separated, of {','.join(SCALES)} (default: {models})")
    add("--hosts", type=int, choices=(2, 4, 8), default=4, help="hosts, each with a worker and a server")
    add("--repeats", type=int, help="jobs for each figure (default: 3, or 1 when quick)")
    add("--quick", action="store_true", help="fewer repeats and iterations")
    add("--compute", type=float, default=1.0, metavar="SECONDS", help="compute of one iteration")
    add("--json", type=Path, help="where to write (default: benchmarks/results/<what>-<date>.json)")
    add("--plot", type=Path, nargs="?", const=plot, help=f"draw a PNG (default place: {plot})")
    add("--realtime", action="store_true", help="run in the real-time class, as chrt --rr 1")
    add("--allow-load", action="store_true", help="measure though others use the processors")
    add("--deadline", type=float, default=180.0, help="seconds until one job is killed")
    return parser


def by_names(parser: argparse.ArgumentParser, names: str, known: Sequence[str]) -> list[str]:
    """Return the names in a comma-separated list; end with a message if one is unknown."""
    chosen = names.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return chosen


def length_of(arguments: argparse.Namespace) -> Length:
    """Return how long a job replays."""
    counts = QUICK if arguments.quick else FULL
    return Length(arguments.compute, counts["warmup"], counts["iterations"], arguments.deadline)


def repeats_of(arguments: argparse.Namespace) -> int:
    """Return how often everything is measured."""
    return int(arguments.repeats or (1 if arguments.quick else 3))


def prepare(arguments: argparse.Namespace) -> float:
    """Make sure that measuring makes sense; return how many cores others keep busy."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        check_tools()
    except NetworkError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    if arguments.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    meter = Meter()
    time.sleep(PROBE_S)
    foreign = meter.read().foreign_cores
    report(f"others keep {foreign:.2f} cores busy")
    if foreign > MOST_FOREIGN_CORES and not (arguments.allow_load or arguments.realtime):
        sys.exit(
            "the machine is busy: wait, or give --allow-load (doubtful) or --realtime (pushes others aside)"
        )
    return foreign


class Recorder:
    """Measures runs one by one, tells the user, and keeps what failed instead of ending."""

    def __init__(self, network: Network, length: Length) -> None:
        """Measure in this network."""
        self._network = network
        self._length = length
        self.failures: list[str] = []

    def run(
        self, model: Model, variant: Variant, granularity: Granularity, where: str, more_warmup: int = 0
    ) -> list[Run]:
        """Return the run, or nothing if it failed.

        Args:
            model: What to replay.
            variant: The store.
            granularity: Where tensors are cut.
            where: For messages.
            more_warmup: Iterations to drop beyond the usual.
        """
        length = replace(self._length, warmup=self._length.warmup + more_warmup)
        begin = time.monotonic()
        try:
            run = measure(self._network, model, variant, granularity, length)
        except JobError as error:
            self.failures.append(f"{where} {variant.name}: {error}")
            report(f"!! {where} {variant.name}: {_brief(str(error))}")
            return []
        report(
            f"{where} {variant.name}: {run.iteration_s:.3f} s/iteration, busy {run.busy:.2f} "
            f"({time.monotonic() - begin:.0f} s)"
        )
        return [run]


def _brief(error: str) -> str:
    """Return the first line of a job's error, and the last of the process that it begins with."""
    first, *rest = error.splitlines()
    own = [line for line in rest if line.startswith(f"{first.split()[0]}|")]
    return "\n".join([first, *own[-1:]])


def report(line: str) -> None:
    """Tell the user how far it is."""
    print(line, file=sys.stderr, flush=True)


class ResultFile:
    """The JSON file of one command; written anew after every point, so that nothing measured is lost."""

    def __init__(self, what: str, arguments: argparse.Namespace, foreign_cores: float) -> None:
        """Choose the place; nothing is written yet."""
        date = time.strftime("%Y-%m-%dT%H%M%S")
        self.path: Path = arguments.json or BENCHMARKS / "results" / f"{what}-{date}.json"
        self._head = {
            "date": date,
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            **describe(),
            "congestion_control": CONGESTION_CONTROL,
            "foreign_cores": foreign_cores,
            "length": asdict(length_of(arguments)),
        }

    def write(self, measured: Mapping[str, Any]) -> None:
        """Write all that has been measured so far."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**self._head, **measured}) + "\n")
