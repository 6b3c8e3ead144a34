"""Draws what was measured over slow links; needs matplotlib, imported only when a plot is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from .p3_variants import VARIANTS
from .plot import finish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from .p3_cell import Point
    from .p3_summary import Row, Traffic

COLORS = {variant.name: f"C{index}" for index, variant in enumerate(VARIANTS)}
ITERATIONS_SHOWN = 3
SPEED = "speed, of that without communication"


def draw_bandwidth(rows: Sequence[Row], path: Path, marks: Sequence[str]) -> None:
    """Draw speed over the rate of the links: one panel for each model and number of hosts."""
    models = list(dict.fromkeys(row.point.model for row in rows))
    hosts = sorted({row.point.hosts for row in rows})
    size = (4 * len(models), 3.6 * len(hosts) + 0.6)
    figure, panels = plt.subplots(
        len(hosts), len(models), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for line, count in zip(panels, hosts):
        for axes, model in zip(line, models):
            own = [row for row in rows if (row.point.model, row.point.hosts) == (model, count)]
            _draw_panel(axes, own)
            axes.set(title=f"{model}, {count} hosts", xlabel="rate of every link (Mbit/s)")
        line[0].set_ylabel(SPEED)
    finish(figure, panels.flat, path, marks)


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the ideal, the best that is possible without priorities, and every store."""
    points = sorted({row.point for row in rows}, key=lambda point: point.bits_per_s)
    rates = [point.bits_per_s / 1e6 for point in points]
    axes.plot(rates, [each.compute_s / each.bound_s for each in points], "k-", label="ideal")
    axes.plot(
        rates,
        [each.compute_s / each.fifo_s for each in points],
        "k:",
        label="ideal, first come first served",
    )
    for variant in dict.fromkeys(row.variant for row in rows):
        own = sorted(
            (row for row in rows if row.variant == variant and row.iteration_s),
            key=lambda row: row.point.bits_per_s,
        )
        _draw_line(axes, variant, own)
    axes.set(xscale="log", ylim=(0, 1.05))
    axes.set_xticks(rates, [f"{rate:.0f}" for rate in rates])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.25)


def _draw_line(axes: Axes, variant: str, rows: Sequence[Row]) -> None:
    """Draw the medians of one store with their range, without points where the processors were measured."""
    speeds = [(row.point, row.iteration_s) for row in rows if row.iteration_s]
    middles = [point.compute_s / spread.median for point, spread in speeds]
    low = [middle - point.compute_s / spread.high for middle, (point, spread) in zip(middles, speeds)]
    high = [point.compute_s / spread.low - middle for middle, (point, spread) in zip(middles, speeds)]
    rates = [point.bits_per_s / 1e6 for point, _ in speeds]
    axes.errorbar(
        rates,
        middles,
        yerr=[low, high],
        fmt="o-",
        ms=4,
        capsize=3,
        color=COLORS.get(variant),
        label=variant,
    )


def draw_slices(
    panels_of: Mapping[Point, Mapping[int, Row]],
    usual: Mapping[Point, int],
    path: Path,
    marks: Sequence[str],
) -> None:
    """Draw the share of the ideal over the slice size, with the default marked.

    Args:
        panels_of: Point -> slice size -> row.
        usual: The default size at each point.
        path: The PNG.
        marks: What makes the figures doubtful.
    """
    figure, [panels] = plt.subplots(
        1,
        len(panels_of),
        figsize=(4.5 * len(panels_of), 4),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for axes, (point, rows) in zip(panels, panels_of.items()):
        fixed = [(size, row.score) for size, row in sorted(rows.items()) if row.score]
        axes.plot([size for size, _ in fixed], [score for _, score in fixed], "o-", label="our slices")
        axes.axvline(usual[point], color="C1", linestyle="--", label="default")
        axes.set(
            xscale="log",
            xlabel="elements of a slice",
            title=f"{point.model}, {point.hosts} hosts, ratio {point.ratio:g}",
        )
        axes.grid(visible=True, alpha=0.25)
    panels[0].set_ylabel("share of the ideal speed")
    finish(figure, panels, path, marks)


def draw_utilisation(traffic: Sequence[Traffic], path: Path, marks: Sequence[str]) -> None:
    """Draw what crossed one host's link in both directions over time, for each store's first run."""
    first = {(each.point.model, each.run.variant): each for each in reversed(traffic)}
    runs = [first[name] for name in dict.fromkeys((each.point.model, each.run.variant) for each in traffic)]
    size = (10, 2.2 * len(runs) + 0.6)
    figure, panels = plt.subplots(len(runs), 1, figsize=size, squeeze=False, layout="constrained")
    for axes, run in zip(panels.flat, runs):
        _draw_traffic(axes, run)
    panels[-1][0].set_xlabel("seconds")
    finish(figure, panels.flat, path, marks)


def _draw_traffic(axes: Axes, traffic: Traffic) -> None:
    """Draw both directions of a link over the first iterations."""
    bins = traffic.bins
    number = min(len(bins.sent), int(ITERATIONS_SHOWN * traffic.run.iteration_s / bins.width_s))
    times = [index * bins.width_s for index in range(number)]
    for name, counts in (("out", bins.sent), ("in", bins.received)):
        axes.plot(times, [8 * count / bins.width_s / 1e6 for count in counts[:number]], lw=0.8, label=name)
    axes.axhline(traffic.point.bits_per_s / 1e6, color="k", lw=0.8, ls=":", label="rate of the link")
    axes.set(title=f"{traffic.point.model}, {traffic.run.variant}", ylabel="Mbit/s", ylim=(0, None))
