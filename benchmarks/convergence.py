"""Compares modes of training by time to 95 % accuracy: table, JSON, plots as MXNET-MPI's figures 11 to 14.

A deterministic simulation: real gradients of a small network, the package's own update rules, and a stated
cost model in virtual time. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small

from typing import TYPE_CHECKING

from harness.convergence_modes import ALPHA, FAMILIES, INTERVALS, NUM_WORKERS
from harness.convergence_network import BATCH, NUM_PARAMS
from harness.convergence_study import (
    ALLREDUCE_SHARE,
    GOAL,
    SAMPLES,
    SCENARIOS,
    TUNING_SEEDS,
    Outcome,
    Scenario,
    evaluate,
    tune,
)
from harness.convergence_summary import table, verdicts
from harness.machine import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

BENCHMARKS = Path(__file__).resolve().parent
IMAGES = BENCHMARKS.parent / "docs" / "images"
QUICK = "cheap,server-bound"
REFERENCE = "mpi-sgd"
IN_CURVES = ("cheap-plain", "server-bound-plain", "cheap", "server-bound")
OVER_TRANSFER = ("cheap", "middle", "server-bound", "very-bound")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", help=f"comma-separated, of {','.join(names)} (default: all)")
    parser.add_argument("--modes", help="comma-separated (default: all)")
    parser.add_argument("--intervals", help=f"to choose from (default: {','.join(map(str, INTERVALS))})")
    parser.add_argument("--seeds", type=int, default=10, help="test seeds")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK}, three seeds, few rates to choose from"
    )
    parser.add_argument("--json", type=Path, help="where to write (default: results/convergence.json)")
    parser.add_argument("--plot", type=Path, nargs="?", const=IMAGES, help="draw PNGs into this folder")
    arguments = parser.parse_args(argv)
    chosen = (arguments.scenarios or (QUICK if arguments.quick else ",".join(names))).split(",")
    modes = arguments.modes.split(",") if arguments.modes else [family.name for family in FAMILIES]
    unknown = {*chosen, *modes} - {*names, *(family.name for family in FAMILIES)}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    arguments.intervals = (
        tuple(map(int, arguments.intervals.split(","))) if arguments.intervals else INTERVALS
    )
    arguments.scenarios = [scenario for scenario in SCENARIOS if scenario.name in chosen]
    arguments.families = [family for family in FAMILIES if family.name in modes]
    return arguments


def compare(scenario: Scenario, arguments: argparse.Namespace) -> list[Outcome]:
    """Tune and test every mode in one scenario."""
    outcomes = []
    seeds = range(3 if arguments.quick else arguments.seeds)
    for family in arguments.families:
        begin = time.process_time()
        settings = family.settings(scenario.momentum, arguments.intervals, quick=arguments.quick)
        setting = tune(family, scenario, settings)
        outcomes.append(evaluate(family, scenario, setting, seeds))
        spent = time.process_time() - begin
        print(
            f"{scenario.name} {family.name}: {spent:.0f} s of processor time", file=sys.stderr, flush=True
        )
    return outcomes


def write(
    panels: Sequence[tuple[Scenario, Sequence[Outcome]]], arguments: argparse.Namespace, path: Path
) -> None:
    """Write everything that was found, and what it was found with."""
    result = {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        **describe(),
        "workers": NUM_WORKERS,
        "batch_per_worker": BATCH,
        "parameters": NUM_PARAMS,
        "goal": GOAL,
        "samples": SAMPLES,
        "tuning_seeds": TUNING_SEEDS,
        "intervals": arguments.intervals,
        "alpha": ALPHA,
        "allreduce_share": ALLREDUCE_SHARE,
        "scenarios": [
            {"scenario": asdict(scenario), "outcomes": [asdict(outcome) for outcome in outcomes]}
            for scenario, outcomes in panels
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)


def main() -> None:
    """Simulate, print, write and draw."""
    arguments = parse_arguments()
    panels = []
    for scenario in arguments.scenarios:
        outcomes = compare(scenario, arguments)
        panels.append((scenario, outcomes))
        print(f"\n{scenario.name}: {scenario.describe()}\n{table(outcomes, REFERENCE)}")
        print("\n".join(verdicts({outcome.mode: outcome for outcome in outcomes})), flush=True)
    if arguments.json or not arguments.quick:
        write(panels, arguments, arguments.json or BENCHMARKS / "results" / "convergence.json")
    if arguments.plot:
        from harness.convergence_drawing import draw_curves, draw_times  # noqa: PLC0415  matplotlib

        by_name = {scenario.name: (scenario, outcomes) for scenario, outcomes in panels}
        curves = [by_name[name] for name in IN_CURVES if name in by_name] or panels
        draw_curves(curves, arguments.plot / "convergence.png")
        draw_times(
            [by_name[name] for name in OVER_TRANSFER if name in by_name],
            arguments.plot / "convergence-links.png",
        )


if __name__ == "__main__":
    main()
