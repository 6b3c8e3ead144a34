"""A step of a worker of several ranks, as planned and as it was, in one picture.

``python -m kvstore_mpi.tracing.step_picture`` draws the predicted step (``mpilaunch plan --timeline``)
above one step of the job (``mpilaunch --trace``), on one scale of time: what each device computes, and of
the job also when a rank waited for another. Needs matplotlib (the extra ``bench``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import UsageError
from kvstore_mpi.tracing.picture import Event, Picture, Row, read, save

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICES = 1
"""The process of a predicted step that has the devices (``planner.step_trace``)."""


def planned(trace: dict[str, Any]) -> Picture:
    """Return the picture of a predicted step: a row for each device."""
    events = [event for event in trace["traceEvents"] if event["pid"] == DEVICES]
    places = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    boxes = [{**event, "cat": "mark"} for event in events if event["ph"] == "X"]
    rows = [_row(name, [box for box in boxes if box["tid"] == tid]) for tid, name in places.items()]
    return Picture("planned", 0.0, max(box["ts"] + box["dur"] for box in boxes), rows)


def measured(trace: dict[str, Any], worker: str, first: int) -> Picture:
    """Return the picture of one step of a job: a row for each rank of a worker.

    Args:
        trace: What ``chrome.chrome_trace`` has made.
        worker: Name of the worker.
        first: Number of the step.

    Raises:
        UsageError: The trace does not have that worker, or not as many steps of it.
    """
    events = trace["traceEvents"]
    pids = {
        event["pid"]: event["args"]["name"].split(" ")[0]
        for event in events
        if event["name"] == "process_name" and event["args"]["name"].startswith(f"{worker}.")
    }
    if not pids:
        raise UsageError(f"the trace has no ranks of {worker!r}; choose another with --worker")
    whole = [event for event in events if event["ph"] == "X" and event["pid"] in pids]
    steps = [_steps(whole, pid)[first : first + 1] for pid in pids]
    if not all(steps):
        raise UsageError(f"{worker} has no step {first} on every rank; choose another with --first")
    since = min(step["ts"] for [step] in steps)
    until = max(step["ts"] + step["dur"] for [step] in steps)
    rows = [
        _row(name, [box for box in whole if _is_mark_of(box, pid, step)])
        for (pid, name), [step] in zip(pids.items(), steps)
    ]
    return Picture("measured", since, until, rows)


def _steps(events: Sequence[Event], pid: int) -> list[Event]:
    return [event for event in events if event["pid"] == pid and event["cat"] == "iteration"]


def _is_mark_of(event: Event, pid: int, step: Event) -> bool:
    if event["pid"] != pid or event["cat"] != "mark" or not event["dur"]:
        return False
    return bool(step["ts"] <= event["ts"] < step["ts"] + step["dur"])


def _row(title: str, boxes: list[Event]) -> Row:
    return Row(title, boxes, [0] * len(boxes))


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser("python -m kvstore_mpi.tracing.step_picture", description=__doc__)
    parser.add_argument("planned", type=Path, help="what mpilaunch plan --timeline has written")
    parser.add_argument("trace", type=Path, metavar="trace.json", help="of the job")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the picture, e.g. x.png")
    parser.add_argument("--worker", default="worker0", help="whose step (%(default)s)")
    parser.add_argument("--first", type=int, default=10, metavar="N", help="which one (%(default)s)")
    options = parser.parse_args(argv)
    return save(
        lambda: [
            planned(read(options.planned)),
            measured(read(options.trace), options.worker, options.first),
        ],
        options.out,
    )


if __name__ == "__main__":
    sys.exit(main())
