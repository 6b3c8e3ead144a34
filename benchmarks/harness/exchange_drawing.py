"""Draws time per step and bytes per step over the interval; needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from .plot import finish

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .exchange_summary import Row


def draw(rows: Sequence[Row], model_bytes: int, path: Path, marks: Sequence[str]) -> None:
    """Write a plot of the rows."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    elastic = [row for row in rows if row.mode.mode == "elastic"]
    kinds = dict.fromkeys(map(_kind, elastic))
    for color, (compress, overlaps) in enumerate(kinds):
        own = [
            row for row in elastic if (row.mode.compress, bool(row.mode.overlap)) == (compress, overlaps)
        ]
        intervals = [row.mode.interval for row in own]
        label = f"{compress or 'fp32'}{', overlap' if overlaps else ''}"
        times = [1e3 * row.step_s.median for row in own]
        spreads = [row.step_s for row in own]
        errors = [
            [1e3 * (spread.median - spread.low) for spread in spreads],
            [1e3 * (spread.high - spread.median) for spread in spreads],
        ]
        left.errorbar(intervals, times, yerr=errors, fmt="o-", color=f"C{color}", capsize=3, label=label)
        if not overlaps:
            sent = [row.payload_per_step / 1e6 for row in own]
            right.plot(intervals, sent, "o", color=f"C{color}", label=f"{label}, measured")
            ideal = [row.mode.ideal_share * model_bytes / 1e6 for row in own]
            right.plot(intervals, ideal, "--", color=f"C{color}", linewidth=1)
    for row in rows:
        if row.mode.mode != "elastic":
            style = {"color": "k", "linestyle": ":" if row.mode.mode == "none" else "-", "linewidth": 1}
            name = "compute alone" if row.mode.mode == "none" else row.mode.name
            left.axhline(1e3 * row.step_s.median, label=name, **style)
    left.set(xscale="log", yscale="log", xlabel="steps between exchanges", ylabel="time of a step (ms)")
    right.set(
        xscale="log",
        yscale="log",
        xlabel="steps between exchanges",
        ylabel="MB on a client's link per step",
    )
    for axes in (left, right):
        axes.set_xticks([1, 8, 64], ["1", "8", "64"])
        axes.grid(visible=True, which="both", alpha=0.25)
    figure.suptitle("two clients, two servers, 1 Gb/s links, 25.6 M parameters (dashes: what must travel)")
    finish(figure, (left, right), path, marks)


def _kind(row: Row) -> tuple[str | None, bool]:
    return row.mode.compress, bool(row.mode.overlap)
