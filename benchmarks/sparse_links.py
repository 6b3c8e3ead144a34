"""Shows how much of a host's link is used from the beginning of a step to its end, of a model with tables.

Ways of ``sparse_step.py``, in turn: where the link idles is what a better order could gain. Needs root. See
README.md beside this file.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from harness.netns import LINK, Network, NetworkError
from harness.p3_cli import prepare
from harness.results import Results, by_names, load, make_parser
from harness.sampler import Sampler
from harness.sparse_models import MODELS
from harness.sparse_step_cell import measure
from harness.sparse_step_summary import ALLREDUCE, HYBRID, SERVERS, STOCK
from harness.table import align
from harness.utilisation import IDLE, over_steps

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

WHAT = "sparse-links"
HOST = 0
INTERVAL_S = 0.0005
PARTS = 40
WAYS = (STOCK, ALLREDUCE, SERVERS, HYBRID)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3, or 1 when quick", quick="once, few steps")
    models = [model.name for model in MODELS]
    add = parser.add_argument
    add("--hosts", type=int, default=2, help="each with a worker and a server (default: 2)")
    add("--mbit", type=float, default=500.0, help="rate of a link (default: 500)")
    add("--model", default="ctr", choices=models, help="default: ctr")
    add("--variants", default=",".join(WAYS), help=f"comma-separated, of {','.join(WAYS)}")
    add("--deadline", type=float, default=240.0, help="seconds until one job is killed")
    arguments = parser.parse_args(argv)
    arguments.variants = by_names(parser, arguments.variants, WAYS)
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.model = MODELS[models.index(arguments.model)]
    return arguments


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure all variants in turn."""
    results = prepare(WHAT, arguments)
    results.facts["steps"] = steps = (2, 5) if arguments.quick else (4, 40)
    rate = 1e6 * arguments.mbit / 8
    with Network(arguments.hosts) as network:

        def run(variant: str) -> dict[str, Any]:
            with Sampler(network, HOST, LINK, INTERVAL_S) as sampler:
                how = {"steps": steps, "deadline_s": arguments.deadline, "keeps_marks": True}
                found = measure(network, arguments.model, variant, arguments.mbit, **how)
            sent, received = over_steps(sampler.samples, found.pop("marks"), PARTS)
            shares = {
                name: [round(each / rate, 3) for each in of_parts]
                for name, of_parts in (("sent", sent), ("received", received))
            }
            return {**found, **shares}

        for variant in arguments.variants * arguments.repeats:
            results.attempt(variant, partial(run, variant))
    return results


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return a line for each run."""
    head = (
        "model",
        "hosts",
        "Mbit/s",
        "by",
        "step ms",
        "sent, of the rate",
        "received",
        "idle, of the step",
    )
    lines = [head]
    for run in runs:
        both = [fmean(pair) for pair in zip(run["sent"], run["received"])]
        idle = sum(each < IDLE for each in both) / len(both)
        where = run["model"], str(run["hosts"]), f"{run['mbit']:g}", run["variant"]
        shares = f"{fmean(run['sent']):.2f}", f"{fmean(run['received']):.2f}", f"{idle:.2f}"
        lines.append((*where, f"{1e3 * run['median_s']:.1f}", *shares))
    return align(lines)


def draw(runs: Sequence[dict[str, Any]], path: Path, marks: Sequence[str]) -> None:
    """Draw one run of each variant, a panel each: the one whose step is the middle one."""
    from harness.plot import finish, plt  # noqa: PLC0415  matplotlib only for a plot

    by_variant: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_variant.setdefault(run["variant"], []).append(run)
    figure, panels = plt.subplots(
        len(by_variant),
        1,
        figsize=(9, 1.7 * len(by_variant) + 1),
        sharex=True,
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    panels = panels[:, 0]
    for axes, (variant, several) in zip(panels, by_variant.items()):
        run = sorted(several, key=lambda each: each["median_s"])[len(several) // 2]
        width = 1e3 * run["median_s"] / PARTS
        begins = [width * part for part in range(PARTS)]
        for name, sign in (("sent", 1), ("received", -1)):
            heights = [sign * share for share in run[name]]
            axes.bar(begins, heights, width, align="edge", label=name, color="C0" if sign > 0 else "C1")
        axes.axvline(1e3 * run["median_s"], color="k", linewidth=1)
        axes.set_title(f"{variant}, {1e3 * run['median_s']:.0f} ms", fontsize="medium", loc="left")
        axes.set_yticks([-1, 0, 1], ["1", "0", "1"])
    first = runs[0]
    panels[-1].set_xlabel(
        f"ms of a step of {first['model']}, {first['hosts']} hosts, {first['mbit']:g} Mbit/s"
    )
    figure.supylabel("share of the link of a host", fontsize="medium")
    finish(figure, panels, path, marks)


def main() -> None:
    """Measure or load, print, draw and write."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    results.show(table(results.runs))
    if arguments.plot and results.runs:
        draw(results.runs, arguments.plot, results.marks)
    results.close()


if __name__ == "__main__":
    main()
