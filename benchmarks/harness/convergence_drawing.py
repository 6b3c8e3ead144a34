"""Draws accuracy against time, and time against the servers' links; needs matplotlib."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from .convergence_modes import FAMILIES
from .convergence_study import GOAL, SAMPLES, Outcome, Scenario
from .convergence_summary import NEVER, times_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

COLORS = {family.name: f"C{index % 10}" for index, family in enumerate(FAMILIES)}
LEAST_ACCURACY = 0.8
LINE_STYLES = {"dist": "--", "pure": ":"}
"""By the first word of a mode, so that modes which share a color differ."""


def _style(mode: str) -> dict[str, str]:
    return {"color": COLORS[mode], "linestyle": LINE_STYLES.get(mode.partition("-")[0], "-"), "label": mode}


def draw_curves(panels: Sequence[tuple[Scenario, Sequence[Outcome]]], path: Path) -> None:
    """Draw the center's mean accuracy over time, a panel for each scenario."""
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    _, axes = plt.subplots(
        lines, columns, figsize=(5.5 * columns, 3.8 * lines + 0.6), squeeze=False, layout="constrained"
    )
    for panel, (scenario, outcomes) in zip(axes.flat, panels):
        times = [scenario.horizon * number / SAMPLES for number in range(1, SAMPLES + 1)]
        for outcome in outcomes:
            panel.plot(times, outcome.curve, linewidth=1.3, **_style(outcome.mode))
        panel.axhline(GOAL, color="gray", linewidth=0.6)
        panel.set(
            title=f"{scenario.name}: transfer {scenario.transfer:g}, momentum {scenario.momentum:g}",
            xlabel="time (steps of computation)",
            ylim=(LEAST_ACCURACY, 1.0),
            xlim=(0.0, scenario.horizon / 2),
        )
    for line in axes:
        line[0].set_ylabel("test accuracy of the center")
    _finish(axes.flat, path)


def draw_times(panels: Sequence[tuple[Scenario, Sequence[Outcome]]], path: Path) -> None:
    """Draw the median time to the goal over the time of a transfer."""
    _, axes = plt.subplots(figsize=(7.5, 5.0), layout="constrained")
    points: dict[str, list[tuple[float, float]]] = {family.name: [] for family in FAMILIES}
    for scenario, outcomes in panels:
        for outcome in outcomes:
            points[outcome.mode].append((scenario.transfer, median(times_of(outcome))))
    for mode, own in points.items():
        reached = [(transfer, time) for transfer, time in own if time < NEVER]
        if reached:
            axes.plot(*zip(*reached), marker="o", linewidth=1.3, **_style(mode))
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="time to send the model through the servers' links (steps of computation)",
        ylabel=f"median time to {GOAL:.0%} (steps of computation)",
    )
    axes.grid(visible=True, which="both", alpha=0.25)
    _finish([axes], path)


def _finish(panels: Sequence[Axes], path: Path) -> None:
    figure = panels[0].figure
    marks = {label: mark for axes in panels for mark, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(marks.values(), marks.keys(), loc="outside lower center", ncols=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    plt.close(figure)
