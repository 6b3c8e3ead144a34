"""A running job as a table: the cells, from what its processes tell, and plain lines of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpilaunch.seeing.job_view import Row

TITLES = (
    *("process", "host", "state", "steps", "step/s", "MB/s out", "MB/s in", "pending", "hidden"),
    *("cpu", "memory MB", "waits for, or last error"),
)
NUMBERS = range(3, 11)
"""Columns that are flush right."""

LEAST_NEEDED = ("memory MB", "cpu", "hidden", "host", "steps", "pending", "MB/s in", "MB/s out")
"""Columns that a narrow terminal does without, in this order."""

LAST_CHARACTERS = 24
"""Of the last column, for which the others make room at least; it is cut or wrapped where it is longer."""

MB = 1e6


class Line(NamedTuple):
    """One process, as cells; ``bad`` ones are to be seen first."""

    cells: tuple[str, ...]
    bad: bool


def lines(rows: Sequence[Row]) -> list[Line]:
    """Return a line for each process."""
    return [Line(_cells(row), row.state.startswith("silent") or bool(row.error)) for row in rows]


def _cells(row: Row) -> tuple[str, ...]:
    rates, counters = row.rates, row.counters
    out = max(rates.get("bytes_sent", 0.0), rates.get("values_sent_bytes", 0.0))
    into = max(rates.get("bytes_received", 0.0), rates.get("values_received_bytes", 0.0))
    is_worker = "steps" in counters
    return (
        row.name,
        row.host,
        row.state,
        f"{counters.get('steps', counters.get('rounds', 0)):.0f}" if counters else "",
        _per_second(rates.get("steps", rates.get("rounds"))),
        f"{out / MB:.1f}" if rates else "",
        f"{into / MB:.1f}" if rates else "",
        _share(rates.get("pending_seconds")) if is_worker else "",
        _hidden(rates) if is_worker else "",
        _share(rates.get("cpu_seconds")),
        f"{counters['memory_bytes'] / MB:.0f}" if counters else "",
        _last(row),
    )


def _per_second(growth: float | None) -> str:
    return "" if growth is None else f"{growth:.1f}"


def _share(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0%}"


def _hidden(rates: dict[str, float]) -> str:
    """Return the share of the time under way that computing has hidden; known where computing is marked."""
    hidden, pending = rates.get("hidden_seconds"), rates.get("pending_seconds", 0.0)
    return "?" if hidden is None or pending <= 0 else f"{min(1.0, hidden / pending):.0%}"


def _last(row: Row) -> str:
    if row.error:
        return row.error
    waits = sorted(row.waits, key=lambda wait: -wait.seconds)
    return f"{waits[0].text} ({waits[0].seconds:.0f} s)" if waits and waits[0].seconds >= 1 else ""


def fitting(rows: Sequence[Row], width: int, between: int) -> list[int]:
    """Return the columns that have room side by side, the least needed left out first.

    Args:
        rows: The processes.
        width: Of the terminal, in characters.
        between: Characters between two columns.
    """
    cells = [TITLES, *(line.cells for line in lines(rows))]
    widths = [max(map(len, column)) for column in zip(*cells)]
    widths[-1] = min(widths[-1], LAST_CHARACTERS)
    columns = list(range(len(TITLES)))
    for title in LEAST_NEEDED:
        if sum(widths[column] + between for column in columns) <= width:
            break
        columns.remove(TITLES.index(title))
    return columns


def plain(rows: Sequence[Row], width: int = 0) -> str:
    """Return the table as text in columns, as wide as a terminal or, without a width, whole."""
    columns = fitting(rows, width, 2) if width else range(len(TITLES))
    every = [TITLES, *(line.cells for line in lines(rows))]
    cells = [[row[column] for column in columns] for row in every]
    widths = [max(map(len, column)) for column in zip(*cells)]
    text = [
        "  ".join(
            cell.rjust(size) if column in NUMBERS else cell.ljust(size)
            for column, cell, size in zip(columns, row, widths)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(line[:width] if width else line for line in text)
