"""Draws the share of memcpy's bandwidth, a panel for each operation; needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt

from .plot import finish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def draw(rows: Sequence[Any], targets: Mapping[str, float], path: Path, marks: Sequence[str]) -> None:
    """Write a plot of the rows, which are those of ``row_merge``."""
    operations = list(dict.fromkeys(row.operation for row in rows))
    figure, panels = plt.subplots(
        1, len(operations), figsize=(12, 5.5), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, operation in zip(panels[0], operations):
        own = sorted((row for row in rows if row.operation == operation), key=lambda row: row.size)
        for color, variant in enumerate(own[0].seconds):
            shares = [row.share(variant) for row in own]
            axes.plot(range(len(own)), shares, "o-", color=f"C{color}", label=variant)
        if operation in targets:
            axes.axhline(targets[operation], color="k", linestyle="--", linewidth=1, label="target")
        names = [f"{row.size[0] / 1e3:g}k x {row.size[1]}" for row in own]
        axes.set_xticks(range(len(own)), names, rotation=60)
        axes.set(xlabel="rows x width", title=operation)
        axes.grid(visible=True, alpha=0.25)
    panels[0][0].set_ylabel("share of memcpy's bandwidth")
    figure.suptitle("float32, one thread")
    finish(figure, panels[0], path, marks)
