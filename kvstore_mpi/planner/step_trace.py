"""A predicted step as a trace in the Chrome trace event format, which Perfetto opens. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Box(NamedTuple):
    """Something that takes time.

    Attributes:
        place: The device or link.
        name: What it is.
        category: Of what kind.
        since: When it begins, in nanoseconds from the beginning of the step.
        until: When it ends.
    """

    place: str
    name: str
    category: str
    since: int
    until: int


def step_trace(devices: Sequence[Box], links: Sequence[Box]) -> dict[str, Any]:
    """Return the JSON object that viewers read: one process with the devices, one with the links."""
    rows = [(1, box) for box in devices] + [(2, box) for box in links]
    places = dict.fromkeys(sorted((pid, box.place) for pid, box in rows))
    threads = {place: tid for tid, place in enumerate(places, 1)}
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
            "name": box.name,
            "cat": box.category,
            "pid": pid,
            "tid": threads[pid, box.place],
            "ts": box.since / 1000,
            "dur": (box.until - box.since) / 1000,
        }
        for pid, box in sorted(rows, key=lambda row: (row[1].since, row[0], row[1].place))
    ]
    return {"traceEvents": [*names, *boxes], "displayTimeUnit": "ms"}
