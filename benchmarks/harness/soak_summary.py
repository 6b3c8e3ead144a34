"""From looks at the processes of a long job to a table: what grows, and by how much a step. Pure."""

from __future__ import annotations

from itertools import combinations, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from .table import align

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Look = Mapping[str, Any]

HEAD = ("mode", "process", "steps", "begin MB", "end MB", "KB / 1,000 steps", "descriptors", "ms a step")
SETTLING = 0.25
"""Part of the steps, at the beginning, that does not count: caches and pools are still being filled."""

MOST_LOOKS = 100


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return how much y grows with x: the median over all pairs, which single jumps do not move."""
    rises = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] != a[0]]
    return median(rises) if rises else 0.0


def settled(looks: Sequence[Look]) -> list[Look]:
    """Return the looks that count, at most ``MOST_LOOKS`` of them."""
    after = [look for look in looks if look["step"] >= SETTLING * looks[-1]["step"]]
    return after[:: -(-len(after) // MOST_LOOKS)]


def growth(looks: Sequence[Look], process: str) -> float:
    """Return by how many bytes a step the memory of a process grows."""
    return slope([(look["step"], look["memory"][process]) for look in settled(looks)])


def step_times(looks: Sequence[Look]) -> list[float]:
    """Return the seconds of a step between each two looks."""
    return [(b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in pairwise(looks)]


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each process of each job."""
    rows = [row for run in runs for row in _rows(run)]
    return align([HEAD, *rows])


def _rows(run: Mapping[str, Any]) -> list[tuple[str, ...]]:
    looks = settled(run["looks"])
    first, last = looks[0], run["looks"][-1]
    times = step_times(looks)
    part = max(1, len(times) // 4)
    paces = f"{1e3 * median(times[:part]):.2f} -> {1e3 * median(times[-part:]):.2f}"
    return [
        (
            run["mode"],
            name,
            f"{last['step']:,}",
            f"{first['memory'][name] / 1e6:.1f}",
            f"{last['memory'][name] / 1e6:.1f}",
            f"{growth(run['looks'], name):+.2f}",
            f"{first['descriptors'][name]} -> {last['descriptors'][name]}",
            paces,
        )
        for name in first["memory"]
    ]
