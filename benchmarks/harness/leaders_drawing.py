"""Draws steps with one leader and with all; needs matplotlib, imported only when a plot is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from .leaders_summary import spread_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from .leaders_summary import Point

WIDTH = 0.38


def draw(points: Sequence[Point], path: Path) -> None:
    """Draw a panel for each network, with two bars for each number of ranks and servers."""
    networks = list(dict.fromkeys(point.mpi for point in points))
    figure, [panels] = plt.subplots(
        1, len(networks), figsize=(5 * len(networks), 3.8), squeeze=False, sharey=True, layout="constrained"
    )
    for axes, network in zip(panels, networks):
        _draw_panel(axes, [point for point in points if point.mpi == network])
        axes.set_title(f"MPI: {network}")
    panels[0].set_ylabel("seconds of a step")
    marks, labels = panels[0].get_legend_handles_labels()
    figure.legend(marks, labels, loc="outside lower center", ncols=len(labels))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_panel(axes: Axes, points: Sequence[Point]) -> None:
    """Draw medians with their range, and a line where arithmetic sets the limit."""
    for index, leaders in enumerate(("one", "all")):
        places = [place + (index - 0.5) * WIDTH for place in range(len(points))]
        spreads = [spread_of(point.times(leaders)) for point in points]
        known = [(place, spread) for place, spread in zip(places, spreads) if spread]
        middles = [spread.median for _, spread in known]
        errors = [
            [spread.median - spread.low for _, spread in known],
            [spread.high - spread.median for _, spread in known],
        ]
        axes.bar(
            [place for place, _ in known],
            middles,
            WIDTH,
            yerr=errors,
            capsize=3,
            label=f"leaders {leaders}",
        )
        ends = ([place - WIDTH / 2 for place in places], [place + WIDTH / 2 for place in places])
        bounds = [point.bounds_s[index] for point in points]
        axes.hlines(bounds, *ends, colors="k", linewidth=1.5, label="" if index else "bound by the links")
    axes.set_xticks(
        range(len(points)), [f"{point.ranks} hosts\n{point.servers} servers" for point in points]
    )
    axes.grid(visible=True, axis="y", alpha=0.25)
