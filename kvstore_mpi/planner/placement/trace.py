"""The step of a placement as a trace. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.planner.step_trace import Box, step_trace

if TYPE_CHECKING:
    from kvstore_mpi.planner.placement.simulate import Timeline


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the JSON object that viewers read: one process with the devices, one with the links."""
    runs = [
        Box(run.device, f"{run.task.operation} {run.task.phase}", run.task.phase, run.since, run.until)
        for run in timeline.runs
    ]
    hops = [
        Box(
            " -> ".join(hop.link),
            f"{hop.task.operation} {hop.task.phase}",
            "transfer",
            hop.since,
            hop.until,
        )
        for hop in timeline.transfers
    ]
    return step_trace(runs, hops)
