"""Draws round trips over sizes; needs matplotlib, imported only when a plot is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from .plot import finish
from .pushpull_summary import BYTES_CROSSING, Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

LIMIT_LABEL = "every byte copied once by memcpy"
SPREAD_OF_MARKS = 0.6
"""Share of a case's width over which the marks of the variants are dealt."""


def draw(
    rows: Sequence[Row],
    limit_bytes_per_s: float,
    path: Path,
    marks: Sequence[str],
    *,
    two_hosts: bool = False,
) -> None:
    """Write a plot: single keys over their size, log-log, and beside it the key lists of models."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 5.5), sharey=True, width_ratios=(3, 1), layout="constrained"
    )
    _draw_single_keys(left, [row for row in rows if row.num_keys == 1], limit_bytes_per_s)
    _draw_models(right, [row for row in rows if row.num_keys > 1], limit_bytes_per_s)
    left.set(yscale="log", xlabel="bytes of one key", ylabel="round trip of pushpull (ms)")
    right.set_xlabel("all keys of a model")
    for axes in (left, right):
        axes.grid(visible=True, which="both", alpha=0.25)
    where = "two hosts, each with a worker and a server" if two_hosts else "2 workers, 1 server, one host"
    figure.suptitle(f"{where}: median and quartiles")
    finish(figure, (left, right), path, marks)


def _variants(rows: Sequence[Row]) -> list[str]:
    """Return the names of the variants in the order in which they come."""
    return list(dict.fromkeys(row.variant for row in rows))


def _draw_single_keys(axes: Axes, rows: Sequence[Row], limit_bytes_per_s: float) -> None:
    """Draw a line for each variant, and the limit."""
    if not rows:
        return  # an empty axis cannot be logarithmic
    axes.set_xscale("log")
    for color, variant in enumerate(_variants(rows)):
        own = [row for row in rows if row.variant == variant]
        _mark(axes, [row.num_bytes for row in own], own, f"C{color}", "o-")
    sizes = sorted({row.num_bytes for row in rows})
    limits = [_limit_ms(size, limit_bytes_per_s) for size in sizes]
    axes.plot(sizes, limits, "k--", linewidth=1, label=LIMIT_LABEL)
    axes.set_xlim(sizes[0] / 2, sizes[-1] * 2)


def _draw_models(axes: Axes, rows: Sequence[Row], limit_bytes_per_s: float) -> None:
    """Draw a mark for each variant beside each other, and the limit."""
    cases = list(dict.fromkeys(row.case for row in rows))
    variants = _variants(rows)
    for color, variant in enumerate(variants):
        own = [row for row in rows if row.variant == variant]
        shift = SPREAD_OF_MARKS * ((color + 0.5) / len(variants) - 0.5)
        _mark(axes, [cases.index(row.case) + shift for row in own], own, f"C{color}", "o")
    for row in rows:
        place, half = cases.index(row.case), SPREAD_OF_MARKS / 2
        axes.hlines(
            _limit_ms(row.num_bytes, limit_bytes_per_s), place - half, place + half, "k", "--", lw=1
        )
    axes.set_xticks(range(len(cases)), cases)


def _limit_ms(num_bytes: int, limit_bytes_per_s: float) -> float:
    """Return the time in which memory could be copied once for every crossing."""
    return 1e3 * BYTES_CROSSING * num_bytes / limit_bytes_per_s


def _mark(axes: Axes, places: Sequence[float], rows: Sequence[Row], color: str, style: str) -> None:
    """Draw the medians of some rows of one variant, with their quartiles."""
    spreads = [row.round_trip_ms for row in rows]
    errors = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    medians = [spread.median for spread in spreads]
    axes.errorbar(places, medians, yerr=errors, fmt=style, color=color, capsize=3, label=rows[0].variant)
