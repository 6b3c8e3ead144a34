"""The lines of the table of bytes, beside what Parallax's formulas say. It runs nothing."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from .sparse_bytes_cases import CASES, VARIANTS, formula
from .table import align, each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEAD = ("hosts", "case", "by", "formula MB", "busiest MB", "each run", "of formula", "mean of hosts", "")
MARGIN = 0.03


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        hosts: Hosts with a server each, where there are servers.
        case: What was sent.
        variant: How.
        formula: Bytes of the busiest host in a step, by the formula.
        runs: Bytes that its link carried, in each run.
        mean: Bytes of a host, the mean of all hosts and runs.
    """

    hosts: int
    case: str
    variant: str
    formula: float
    runs: tuple[float, ...]
    mean: float

    @property
    def ratio(self) -> float:
        """What was measured over what the formula says."""
        return median(self.runs) / self.formula


def rows_of(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a line for each number of hosts, case and variant."""
    found: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for run in runs:
        for name, hosts in run["bytes"].items():
            found.setdefault((run["hosts"], name, run["variant"]), []).append((max(hosts), fmean(hosts)))
    ways = {variant.name: variant for variant in VARIANTS}
    cases = {case.name: case for case in CASES}
    order = list(cases)
    return [
        Row(
            *(hosts, case, way, formula(cases[case], ways[way], hosts)),
            tuple(most for most, _ in figures),
            fmean(mean for _, mean in figures),
        )
        for (hosts, case, way), figures in sorted(
            found.items(), key=lambda item: (item[0][0], order.index(item[0][1]))
        )
    ]


def table(rows: Sequence[Row]) -> str:
    """Return the lines as text."""
    return align([HEAD, *map(_cells, rows)])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.hosts),
        row.case,
        row.variant,
        f"{row.formula / 1e6:.3f}",
        f"{median(row.runs) / 1e6:.3f}",
        each(row.runs, 3, 1e-6),
        f"{row.ratio:.3f}",
        f"{row.mean / row.formula:.3f}",
        verdict(row),
    )


def verdict(row: Row) -> str:
    """Say whether one of ours is as near to the formula as is asked for; the peers are there to compare."""
    if row.variant in {variant.name for variant in VARIANTS if not variant.ours}:
        return ""
    return f"within {MARGIN:.0%}" if abs(row.ratio - 1) <= MARGIN else f"{row.ratio - 1:+.1%} MISSED"
