"""Turns what threads of jobs did into tables: each job's cost, and each thread's, for one round trip.

Threads that do the same are one row: those of one name in one role, the mean over its processes. This file
must not measure, read or write anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .cases import NUM_WORKERS, STOCK
from .table import align, each, spread_of

Run = Mapping[str, Any]

PROCESSES = {"worker": NUM_WORKERS, "server": 1, "scheduler": 1, "launcher": 1}
MOST_CALLS_NAMED = 4
LEAST_CALLS = 0.05
LEAST_CPU_US = 2.0
"""Rows with less, in every run of their case, are left out."""

JOB_HEAD = ("case", "variant", "ms", "each repeat", "cpu ms", "each repeat", "x stock cpu", "range")
THREAD_HEAD = (
    "case",
    "variant",
    "role",
    "thread",
    "threads",
    "cpu us",
    "waits",
    "forced",
    "calls",
    "which",
)


def of_cases(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the first of the workers saw, with the names that all give to their threads."""
    names: dict[str, str] = {}
    for worker in written:
        names.update(worker["threads"])
        names[str(worker["pid"])] = "main"
    return {"cases": written[0]["cases"], "threads": names}


@dataclass
class Row:
    """Threads of one name in one role, in one process of that role and one round trip.

    Attributes:
        threads: How many there are.
        cpu_us: Time on a processor.
        waits: Switches because there was nothing to do.
        forced: Other switches.
    """

    threads: float = 0.0
    cpu_us: float = 0.0
    waits: float = 0.0
    forced: float = 0.0


def rows_of(run: Run, case: str) -> dict[tuple[str, str], Row]:
    """Return the rows of one run by role and name of the thread."""
    found = run["cases"][case]
    rows: dict[tuple[str, str], Row] = {}
    for task in found["tasks"]:
        share = 1 / PROCESSES.get(task["role"], 1)
        row = rows.setdefault((task["role"], _name(task, run["threads"])), Row())
        each_trip = share / found["round_trips"]
        row.threads += share
        row.cpu_us += 1e6 * task["cpu_s"] * each_trip
        row.waits += task["waits"] * each_trip
        row.forced += task["forced"] * each_trip
    return rows


def _name(task: Mapping[str, Any], names: Mapping[str, str]) -> str:
    if task["tid"] == task["pid"]:
        return "main"
    return names.get(str(task["tid"]), "library's")


def cpu_ms(run: Run, case: str, role: str = "") -> float:
    """Return the processor time of all processes, or of all of one role, in one round trip."""
    found = run["cases"][case]
    spent = sum(task["cpu_s"] for task in found["tasks"] if role in ("", task["role"]))
    return float(1e3 * spent / found["round_trips"])


def calls_of(traced: Run, case: str) -> dict[tuple[str, str], Counter[str]]:
    """Return the system calls for one round trip, of a run under strace, by role and name of the thread."""
    found = traced["cases"][case]
    counts: dict[tuple[str, str], Counter[str]] = {}
    for task in found["tasks"]:
        share = 1 / PROCESSES.get(task["role"], 1) / found["round_trips"]
        total = counts.setdefault((task["role"], _name(task, traced["threads"])), Counter())
        for name, count in found["calls"].get(str(task["tid"]), {}).items():
            total[name] += count * share  # type: ignore[assignment]  a mean
    return counts


def _runs(runs: Sequence[Run], variant: str) -> list[Run]:
    return [run for run in runs if run["variant"] == variant and not run["traced"]]


def variants_of(runs: Sequence[Run]) -> list[str]:
    """Return the names of the variants in the order in which they come."""
    return list(dict.fromkeys(run["variant"] for run in runs))


def job_table(runs: Sequence[Run]) -> str:
    """Return time and processor time of a round trip, each case of each variant, beside stock's."""
    lines: list[tuple[str, ...]] = [JOB_HEAD]
    for case in runs[0]["cases"]:
        for variant in variants_of(runs):
            own = _runs(runs, variant)
            took = [1e3 * run["cases"][case]["seconds"] / run["cases"][case]["round_trips"] for run in own]
            spent = [cpu_ms(run, case) for run in own]
            pairs = zip(own, _runs(runs, STOCK.name))
            over = [cpu_ms(mine, case) / cpu_ms(stock, case) for mine, stock in pairs]
            ratio = spread_of(over) if over else None
            lines.append(
                (
                    case,
                    variant,
                    f"{median(took):.3f}",
                    each(took),
                    f"{median(spent):.3f}",
                    each(spent),
                    f"{ratio.median:.2f}" if ratio else "",
                    ratio.text(2) if ratio else "",
                )
            )
    return align(lines)


def thread_table(runs: Sequence[Run]) -> str:
    """Return what each thread does in one round trip: medians of the runs, and the traced one's calls."""
    lines: list[tuple[str, ...]] = [THREAD_HEAD]
    traced = {run["variant"]: run for run in runs if run["traced"]}
    for case in runs[0]["cases"]:
        for variant in variants_of(runs):
            every = [rows_of(run, case) for run in _runs(runs, variant)]
            calls = calls_of(traced[variant], case) if variant in traced else {}
            for place in sorted(every[0]):
                rows = [rows[place] for rows in every if place in rows]
                if max(row.cpu_us for row in rows) >= LEAST_CPU_US:
                    lines.append((case, variant, *place, *_cells(rows, calls.get(place))))
    return align(lines)


def _cells(rows: Sequence[Row], calls: Counter[str] | None) -> tuple[str, ...]:
    named = "" if calls is None else _named(calls)
    return (
        f"{median(row.threads for row in rows):.0f}",
        f"{median(row.cpu_us for row in rows):.0f}",
        f"{median(row.waits for row in rows):.1f}",
        f"{median(row.forced for row in rows):.1f}",
        "" if calls is None else f"{sum(calls.values()):.1f}",
        named,
    )


def _named(calls: Counter[str]) -> str:
    most = [(name, count) for name, count in calls.most_common(MOST_CALLS_NAMED) if count >= LEAST_CALLS]
    return ", ".join(f"{name} {count:.1f}" for name, count in most)
