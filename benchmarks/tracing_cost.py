"""What one record of a trace costs the thread that makes it, in CPU time; ring empty at first, and full.

python benchmarks/tracing_cost.py
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import TYPE_CHECKING

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.tracing import annotation
from kvstore_mpi.tracing.recorder import CAPACITY, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 20_000
REPEATS = 25
SERVER = NodeId(Role.SERVER, 0)


def annotated() -> None:
    """Mark nothing."""
    with annotation.annotate("forward"):
        pass


def nanoseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call, without that of the loop around it."""

    def loop(body: Callable[[], object]) -> int:
        begun = time.thread_time_ns()
        for _ in range(CALLS):
            body()
        return time.thread_time_ns() - begun

    return statistics.median(loop(call) - loop(lambda: None) for _ in range(REPEATS)) / CALLS


def main() -> None:
    """Print the costs."""
    recorder = Recorder(NodeId(Role.WORKER), "")
    sizes = itertools.count()
    entries = [(3, 0, 50_000, 7, True)]
    print(f"annotate, no trace       {nanoseconds(annotated):6.0f} ns")
    for state in ("empty", "full"):
        print(f"ring at first {state}:")
        calls: dict[str, Callable[[], object]] = {
            "mark": lambda: recorder.mark("sent", SERVER, entries),
            "in_flight": lambda: recorder.in_flight(SERVER, next(sizes)),
            "span": lambda: recorder.span("forward", 0),
            "operation, both ends": lambda: recorder.operation("pushpull", 0, "w", -3, lambda _: None)(
                None
            ),
        }
        for name, call in calls.items():
            print(f"  {name:22} {nanoseconds(call):6.0f} ns")
        for _ in range(CAPACITY):
            recorder.mark("sent", SERVER, [(3, 0, 50_000, 7)])


if __name__ == "__main__":
    main()
