"""Draws the share of memcpy's bandwidth over the bytes, a panel for each operation; needs matplotlib."""

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
        1, len(operations), figsize=(11, 4.5), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, operation in zip(panels[0], operations):
        own = sorted((row for row in rows if row.operation == operation), key=lambda row: row.num_bytes)
        for color, variant in enumerate(own[0].seconds):
            shares = [row.share(variant) for row in own]
            axes.plot([row.num_bytes / 1e6 for row in own], shares, "o-", color=f"C{color}", label=variant)
        if operation in targets:
            axes.axhline(targets[operation], color="k", linestyle="--", linewidth=1, label="target")
        axes.set(xscale="log", xlabel="MB read and written at least", title=operation)
        axes.grid(visible=True, which="both", alpha=0.25)
    panels[0][0].set_ylabel("share of memcpy's bandwidth")
    figure.suptitle("float32, one thread")
    finish(figure, panels[0], path, marks)
