"""Aligned text, spreads and verdicts, for the tables of all benchmarks; it measures and reads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Spread:
    """A middle with the range around it."""

    low: float
    median: float
    high: float

    def text(self, digits: int = 3, scale: float = 1.0) -> str:
        """Return the range as a cell of a table."""
        return f"{scale * self.low:.{digits}f} - {scale * self.high:.{digits}f}"


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median between the least and the greatest value."""
    return Spread(min(values), median(values), max(values))


def ratios_of(over: Sequence[float | None], under: Sequence[float | None]) -> Spread | None:
    """Return how two variants compare: the median and the range of the ratios of jobs of the same turn.

    Fresh jobs differ more than variants do, and so do the hours of a machine; a ratio of two medians takes
    them from different jobs. What does not count is ``None``; so is the result where no pair counts.
    """
    ratios = [a / b for a, b in zip(over, under) if a is not None and b]
    return spread_of(ratios) if ratios else None


def quartiles(values: Sequence[float]) -> Spread:
    """Return the median between the first and the third quartile."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Spread(low, middle, high)


def each(values: Sequence[float], digits: int = 3, scale: float = 1.0) -> str:
    """Return every value as one cell: the runs in the order in which they were made."""
    return " ".join(f"{scale * value:.{digits}f}" for value in values)


def met(value: float, target: float) -> str:
    """Say whether a value reaches its target."""
    return "met" if value >= target else "MISSED"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines with columns of equal width, the first row underlined."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def marked(text: str, marks: Sequence[str]) -> str:
    """Return a table with what makes its figures doubtful above it, so that no copy of it goes without."""
    return "\n".join([*(f"!! {mark}" for mark in marks), text])
