"""The lines of the table of steps, and what is asked of them. It runs nothing."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from .table import align, each, met, ratios_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STOCK, ALLREDUCE, SERVERS, HYBRID = "stock", "allreduce", "servers", "hybrid"
HALVES = "bfloat16"
"""As hybrid, with rows that travel in half the bytes; asked for by name only, for no peer has the like."""
PAIRS, PAIRS_ONE, PAIRS_AUTO = "pairs", "pairs-one", "pairs-auto"
"""Clients of two hosts each, whose ranks sum over the same links, with all of them as leaders, one, or what
``mpilaunch`` takes; asked for by name only."""

PURE = (ALLREDUCE, SERVERS)
CPU_LIMIT = 0.85
"""Of all cores; above it a run has measured them and not the links."""

OF_STOCK = {"lm": 2.8}
OF_BOUND = 1.15
"""Times what its bytes take a step of pairs may take."""
OF_ONE_LEADER = 0.98
"""Least speed of all as leaders, as a share of one's."""
MARGIN = 1 / 1.02
"""Of the speed of what it is compared with a variant may lose so much, not more."""

HEAD = (
    "model",
    "hosts",
    "Mbit/s",
    "by",
    "step ms",
    "each run",
    "MB",
    "cpu ms",
    "busy",
    "x stock",
    "x best pure",
)


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        model: What was replayed.
        hosts: Hosts with a worker and a server each, where there are servers.
        mbit: Rate of each link.
        variant: How it was sent.
        seconds: Of a step, the median of the runs that count; ``None`` if none does.
        runs: Seconds of all runs.
        counted: The same, ``None`` where a run does not count.
        num_bytes: That a host sends and receives in a step.
        cpu_s: Processor time of the job in a step.
        busy: Share of the cores' time that was not idle.
        bound: Seconds that its bytes take, if that is known.
    """

    model: str
    hosts: int
    mbit: float
    variant: str
    seconds: float | None
    runs: tuple[float, ...]
    counted: tuple[float | None, ...]
    num_bytes: float
    cpu_s: float
    busy: float
    bound: float | None = None

    @property
    def point(self) -> tuple[str, int, float]:
        """Where variants are compared."""
        return self.model, self.hosts, self.mbit


def rows_of(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a line for each point and variant."""
    found: dict[tuple[str, int, float, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        found.setdefault((run["model"], run["hosts"], run["mbit"], run["variant"]), []).append(run)
    return [_row(*where, same) for where, same in sorted(found.items(), key=lambda item: item[0][:3])]


def _row(model: str, hosts: int, mbit: float, variant: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    each = tuple(run["median_s"] for run in runs)
    counted = tuple(run["median_s"] if run["busy"] <= CPU_LIMIT else None for run in runs)
    means = (fmean(run[name] for run in runs) for name in ("num_bytes", "cpu_s", "busy"))
    known = [seconds for seconds in counted if seconds is not None]
    seconds = median(known) if known else None
    bounds = [run["bound_s"] for run in runs if "bound_s" in run]
    bound = median(bounds) if bounds else None
    return Row(model, hosts, mbit, variant, seconds, each, counted, *means, bound)


def ratio(rows: Sequence[Row], row: Row, *peers: str) -> float | None:
    """Return how many times as fast a row is as the fastest of the peers at its point, run by run.

    A peer's run that the processors made slow is no measure. The row's own is: what it takes of them is its
    own price.
    """
    beside = [each for each in rows if each.point == row.point and each.variant in peers]
    found = [ratios_of(each.counted, row.runs) for each in beside]
    return min((each.median for each in found if each), default=None)


def unknown(rows: Sequence[Row], row: Row, *peers: str) -> list[str]:
    """Return the peers of which only the processors were measured at a row's point."""
    return [
        each.variant
        for each in rows
        if (each.point, each.seconds) == (row.point, None) and each.variant in peers
    ]


def table(rows: Sequence[Row]) -> str:
    """Return the lines as text."""
    return align([HEAD, *(_cells(rows, row) for row in rows)])


def _cells(rows: Sequence[Row], row: Row) -> tuple[str, ...]:
    of_stock = ratio(rows, row, STOCK)
    pure = PURE if row.variant in {HYBRID, HALVES} and not unknown(rows, row, *PURE) else ()
    of_pure = ratio(rows, row, *pure)
    return (
        row.model,
        str(row.hosts),
        f"{row.mbit:g}",
        row.variant,
        "CPU-bound" if row.seconds is None else f"{1e3 * row.seconds:.1f}",
        each(row.runs, 1, 1e3),
        f"{row.num_bytes / 1e6:.2f}",
        f"{1e3 * row.cpu_s:.0f}",
        f"{row.busy:.2f}",
        f"{of_stock:.2f}" if of_stock else "",
        f"{of_pure:.2f}" if of_pure else "",
    )


def goals(rows: Sequence[Row]) -> list[str]:
    """Compare with what is asked of hybrid, and of pairs."""
    lines = []
    for row in rows:
        where = f"{row.model}, {row.hosts} hosts, {row.mbit:g} Mbit/s"
        if row.bound and row.seconds:
            found = row.seconds / row.bound
            verdict = met(OF_BOUND, found)
            lines.append(f"{where}: pairs take {found:.2f} times their bound (<= {OF_BOUND:.2f} {verdict})")
        leaders = {PAIRS: "all as leaders", PAIRS_AUTO: "--leaders auto"}.get(row.variant)
        if leaders and (found := ratio(rows, row, PAIRS_ONE)):
            verdict = met(found, OF_ONE_LEADER)
            lines.append(f"{where}: {leaders} {found:.2f}x one (>= {OF_ONE_LEADER:.2f} {verdict})")
        if row.variant != HYBRID:
            continue
        asked = [("stock", ratio(rows, row, STOCK), OF_STOCK.get(row.model))]
        if row.model == "dense":
            asked.append(("allreduce", ratio(rows, row, ALLREDUCE), MARGIN))
        elif busy := unknown(rows, row, *PURE):
            by = ", ".join(busy)
            lines.append(f"{where}: not compared with pure routes, by {by} processors are the limit")
        else:
            asked.append(("the better pure route", ratio(rows, row, *PURE), MARGIN))
        lines += [
            f"{where}: {found:.2f}x {peer} (>= {least:.2f} {met(found, least)})"
            for peer, found, least in asked
            if found and least
        ]
    return lines
