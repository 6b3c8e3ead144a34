"""A predicted step as a trace in the Chrome trace event format, which Perfetto opens. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvstore_mpi.planner.placement.simulate import Timeline

_MICRO = 1000


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the JSON object that viewers read: one process with the devices, one with the links."""
    rows = [
        (1, run.device, f"{run.task.operation} {run.task.phase}", run.task.phase, run.since, run.until)
        for run in timeline.runs
    ]
    rows += [
        (
            2,
            " -> ".join(hop.link),
            f"{hop.task.operation} {hop.task.phase}",
            "transfer",
            hop.since,
            hop.until,
        )
        for hop in timeline.transfers
    ]
    threads = {place: tid for tid, place in enumerate(sorted({row[:2] for row in rows}), 1)}
    names: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in ((1, "devices"), (2, "links"))
    ]
    names += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for (pid, name), tid in threads.items()
    ]
    boxes = [
        {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": pid,
            "tid": threads[pid, place],
            "ts": since / _MICRO,
            "dur": (until - since) / _MICRO,
        }
        for pid, place, name, category, since, until in sorted(rows, key=lambda row: (row[4], row[:2]))
    ]
    return {"traceEvents": [*names, *boxes], "displayTimeUnit": "ms"}
