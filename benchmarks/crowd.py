"""What the scheduler does about thousands of workers: processor time and memory, phase by phase.

A real scheduler process, and the sessions of all workers and one server in this one, over TCP. Prints a
table and writes JSON. See README.md beside this file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.clusters import SERVICE, start_ready, write_job_file
from harness.crowd import Crowd
from harness.jobs import HOST, Job, JobError, Program, allow_descriptors
from harness.procfs import cpu_seconds, resident_bytes
from harness.results import Results, begin, load, make_parser, report
from harness.table import align, met, quartiles

from kvstore_mpi import node
from kvstore_mpi.wire import messages as m

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

WHAT = "crowd"
WORKERS = (2, 32, 1_000, 10_000)
HEARTBEAT_S = 1.0
LIVE_S = 20.0
DEADLINE_S = 300.0
SPARE_DESCRIPTORS = 200
HEAD = (
    "workers",
    "phase",
    "seconds",
    "scheduler s",
    "range",
    "us a worker",
    "cores",
    "KB a worker",
    "target",
)
START_TARGET_S = 10.0
HEARTBEATS_TARGET_CORES = 1.0
"""Most of the scheduler's time for a start, and of its cores for as many heartbeats a second as workers."""


def measure(workers: int) -> dict[str, Any]:
    """Run one job; return what each phase cost the scheduler."""
    with tempfile.TemporaryDirectory(prefix="crowd-") as name, Job(Path(name)) as job:
        settings = {
            "KVMPI_ROLE": "scheduler",
            "KVMPI_INTERFACE": HOST,
            "KVMPI_TRANSPORT": "tcp",
            "KVMPI_NUM_CLIENTS": str(workers),
            "KVMPI_NUM_WORKERS": str(workers),
            "KVMPI_NUM_SERVERS": "1",
            "KVMPI_HEARTBEAT": str(HEARTBEAT_S),
            "KVMPI_CONNECT_TIMEOUT": str(DEADLINE_S),
            "KVMPI_JOB_FILE": write_job_file(Path(name) / "job.json"),
        }
        addresses = start_ready(job, Program("scheduler", (sys.executable, *SERVICE), settings))
        crowd = Crowd(node.Job.read(settings["KVMPI_JOB_FILE"]), workers, HEARTBEAT_S)
        pid = job.pid("scheduler")
        before = resident_bytes(pid)
        phases = {}
        for phase, act in phases_of(crowd, addresses.split(","), workers).items():
            began, spent = time.monotonic(), cpu_seconds(pid)
            act()
            cost = {"seconds": time.monotonic() - began, "scheduler_s": cpu_seconds(pid) - spent}
            phases[phase] = {**cost, "bytes": resident_bytes(pid) - before}
        crowd.say(m.Leave(), first=-1)
        usage = job.wait(DEADLINE_S)
        crowd.close()
    return {"workers": workers, **asdict(usage), "phases": phases}


def phases_of(crowd: Crowd, addresses: Sequence[str], workers: int) -> dict[str, Callable[[], None]]:
    """Return what the crowd does, in order; the last worker stays."""
    here = m.Join(["tcp://10.0.0.1:40000"], "a-host-of-many", 4711)

    def join() -> None:
        crowd.connect(addresses, DEADLINE_S)
        crowd.say(here)
        crowd.hear(m.Peers, workers + 1, DEADLINE_S)

    def meet() -> None:
        crowd.say(m.BarrierArrive(1), first=1)
        crowd.hear(m.BarrierRelease, workers, DEADLINE_S)

    def leave() -> None:
        crowd.say(m.Leave(), first=1, last=-1)
        crowd.hear(m.PeerGone, workers - 1, DEADLINE_S)

    return {"join": join, "barrier": meet, "heartbeats": partial(crowd.live, LIVE_S), "leave": leave}


def measure_all(arguments: argparse.Namespace, sizes: Sequence[int]) -> Results:
    """Run one job for each number of workers and repeat."""
    allow_descriptors(max(sizes) + SPARE_DESCRIPTORS)
    results = begin(WHAT, arguments)
    for repeat in range(arguments.repeats):
        for workers in sizes:
            results.add({"repeat": repeat, **measure(workers)})
            report(f"repeat {repeat + 1}/{arguments.repeats}: {workers} workers")
    return results


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return medians over the runs of each number of workers."""
    rows = []
    for workers in sorted({run["workers"] for run in runs}):
        same = [run["phases"] for run in runs if run["workers"] == workers]
        rows += [_row(workers, phase, [phases[phase] for phases in same]) for phase in same[0]]
    return align([HEAD, *rows])


def _row(workers: int, phase: str, costs: Sequence[dict[str, float]]) -> tuple[str, ...]:
    spent = quartiles([cost["scheduler_s"] for cost in costs])
    wall = quartiles([cost["seconds"] for cost in costs]).median
    cores = spent.median / wall
    held = quartiles([cost["bytes"] for cost in costs]).median
    per_second = LIVE_S / HEARTBEAT_S if phase == "heartbeats" else 1
    verdict = ""
    if phase == "join":
        verdict = f"<= {START_TARGET_S:g} s {met(START_TARGET_S, spent.median)}"
    elif phase == "heartbeats":
        verdict = f"<= {HEARTBEATS_TARGET_CORES:g} core {met(HEARTBEATS_TARGET_CORES, cores)}"
    return (
        str(workers),
        phase,
        f"{wall:.2f}",
        f"{spent.median:.3f}",
        spent.text(),
        f"{1e6 * spent.median / workers / per_second:.0f}",
        f"{cores:.2f}",
        f"{held / workers / 1e3:.1f}",
        verdict,
    )


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3", plot=False)
    default = ",".join(map(str, WORKERS))
    parser.add_argument("--workers", default=default, help=f"numbers of workers (default: {default})")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or 3
    sizes = [int(word) for word in arguments.workers.split(",")]
    if min(sizes) <= 1:
        parser.error("--workers: at least 2, of which one stays to the end")
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments, sizes)
    except JobError as error:
        sys.exit(f"{WHAT}: {error}")
    results.show(table(results.runs))
    results.close()


if __name__ == "__main__":
    main()
