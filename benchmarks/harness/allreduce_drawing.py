"""Draws bus bandwidth over sizes; needs matplotlib, imported only when a plot is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from .plot import finish

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from .allreduce_summary import Row


def draw(rows: Sequence[Row], path: Path, marks: Sequence[str]) -> None:
    """Plot the bus bandwidth over the size, one area for each library and number of ranks."""
    kinds = list(dict.fromkeys((row.mpi, row.ranks) for row in rows))
    figure, axes = plt.subplots(
        1, len(kinds), figsize=(6 * len(kinds), 5), layout="constrained", squeeze=False
    )
    for kind, area in zip(kinds, axes[0]):
        _draw_area(area, [row for row in rows if (row.mpi, row.ranks) == kind])
        area.set(
            xscale="log", yscale="log", xlabel="bytes", title=f"{kind[1]} ranks on this host, {kind[0]}"
        )
        area.grid(visible=True, which="both", alpha=0.25)
    axes[0][0].set_ylabel("bus bandwidth (GB/s)")
    finish(figure, axes[0], path, marks)


def _draw_area(area: Axes, rows: Sequence[Row]) -> None:
    """Draw a line for each variant, and what all ranks copy together."""
    for variant in dict.fromkeys(row.variant for row in rows):
        line = [row for row in rows if row.variant == variant]
        area.plot(
            [row.num_bytes for row in line],
            [row.bus_bandwidth / 1e9 for row in line],
            "o-",
            label=variant,
        )
    limit = [row for row in rows if row.variant == rows[0].variant]
    area.plot(
        [row.num_bytes for row in limit],
        [row.bus_bandwidth / row.of_copy / 1e9 for row in limit],
        "k--",
        label="memcpy by all ranks",
    )
