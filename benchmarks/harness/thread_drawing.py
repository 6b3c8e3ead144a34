"""Draws the processor time of a round trip by role and thread; needs matplotlib, which only plots do."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from .plot import finish
from .thread_summary import PROCESSES, rows_of, variants_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from .thread_summary import Run


def draw(runs: Sequence[Run], path: Path, marks: Sequence[str]) -> None:
    """Write a picture: a panel for each case, a bar for each variant, stacked by thread."""
    cases = list(runs[0]["cases"])
    figure, panels = plt.subplots(1, len(cases), figsize=(3 * len(cases), 5), layout="constrained")
    every = [panels] if len(cases) == 1 else list(panels)
    for axes, case in zip(every, cases):
        _draw_case(axes, [run for run in runs if not run["traced"]], case)
    every[0].set_ylabel("processor time of a round trip, all processes (ms)")
    finish(figure, every, path, marks)


def _draw_case(axes: Axes, runs: Sequence[Run], case: str) -> None:
    """Stack the threads of all processes of each variant."""
    variants = variants_of(runs)
    bottoms = [0.0] * len(variants)
    rows = {
        variant: [rows_of(run, case) for run in runs if run["variant"] == variant] for variant in variants
    }
    places = sorted({place for own in rows.values() for each in own for place in each})
    for color, (role, thread) in enumerate(places):
        heights = [
            PROCESSES[role]
            * median(each[role, thread].cpu_us if (role, thread) in each else 0.0 for each in rows[variant])
            / 1e3
            for variant in variants
        ]
        axes.bar(variants, heights, bottom=bottoms, color=f"C{color % 10}", label=f"{role}, {thread}")
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
    axes.set_title(case)
    axes.tick_params(axis="x", rotation=45)
