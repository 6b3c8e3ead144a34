"""What the scheduler does about thousands of workers: processor time and memory, phase by phase.

A real scheduler process, and the sessions of all workers and one server in this one, over TCP; for small
numbers also a process for each. Prints a table and writes JSON. See README.md beside this file.
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
from harness.table import align, met, quartiles, ratios_of
from harness.told import Listener

from kvstore_mpi import node
from kvstore_mpi.wire import messages as m

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

WHAT = "crowd"
WORKERS = (2, 32, 1_000, 10_000)
PROCESSES = "2,8,32"
"""Numbers of workers that are also measured as processes of their own, beside a crowd of as many."""

WORKER = Path(__file__).with_name("crowd_worker.py")
LOOK_S = 0.02
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
    "messages/s",
    "us each",
    "cores",
    "KB a worker",
    "target",
)
START_TARGET_S = 10.0
HEARTBEATS_TARGET_CORES = 1.0
"""Most of the scheduler's time for a start, and of its cores for as many heartbeats a second as workers."""


def measure(workers: int, heartbeat: float) -> dict[str, Any]:
    """Run one job with a crowd; return what each phase cost the scheduler."""
    with tempfile.TemporaryDirectory(prefix="crowd-") as name, Job(Path(name)) as job:
        settings = settings_of(Path(name), workers, heartbeat)
        listener = Listener(Path(name))
        addresses = start_scheduler(job, settings, name)
        crowd = Crowd(node.Job.read(settings["KVMPI_JOB_FILE"]), workers, heartbeat)
        phases = costs(job.pid("scheduler"), listener, phases_of(crowd, addresses.split(","), workers))
        crowd.say(m.Leave(), first=-1)
        usage = job.wait(DEADLINE_S)
        crowd.close()
    job_of = {"workers": workers, "processes": False, "heartbeat": heartbeat}
    return {**job_of, **asdict(usage), "phases": phases}


def measure_processes(workers: int, heartbeat: float) -> dict[str, Any]:
    """Run one job with a process for each worker, and one for the server; return the same of it."""
    with tempfile.TemporaryDirectory(prefix="crowd-") as name, Job(Path(name)) as job:
        folder = Path(name)
        settings = settings_of(folder, workers, heartbeat)
        listener = Listener(folder)
        settings["KVMPI_SCHEDULER"] = start_scheduler(job, settings, name)

        def join() -> None:
            server = {**settings, "KVMPI_ROLE": "server", "KVMPI_INDEX": "0"}
            job.start(Program("server", (sys.executable, *SERVICE), server))
            command = (sys.executable, str(WORKER), name)
            for client in range(workers):
                own = {**settings, "KVMPI_ROLE": "worker", "KVMPI_CLIENT": str(client)}
                job.start(Program(f"worker{client}", command, own))
            wait_for_all(folder, "joined", workers)

        def meet() -> None:
            (folder / "meet").touch()
            wait_for_all(folder, "met", workers)

        acts = {"join": join, "barrier": meet, "heartbeats": partial(time.sleep, LIVE_S)}
        phases = costs(job.pid("scheduler"), listener, acts)
        (folder / "leave").touch()
        usage = job.wait(DEADLINE_S)
    job_of = {"workers": workers, "processes": True, "heartbeat": heartbeat}
    return {**job_of, **asdict(usage), "phases": phases}


def settings_of(folder: Path, workers: int, heartbeat: float) -> dict[str, str]:
    """Return what all processes of a job are told."""
    return {
        "KVMPI_INTERFACE": HOST,
        "KVMPI_TRANSPORT": "tcp",
        "KVMPI_NUM_CLIENTS": str(workers),
        "KVMPI_NUM_WORKERS": str(workers),
        "KVMPI_NUM_SERVERS": "1",
        "KVMPI_HEARTBEAT": str(heartbeat),
        "KVMPI_CONNECT_TIMEOUT": str(DEADLINE_S),
        "KVMPI_JOB_FILE": write_job_file(folder / "job.json"),
    }


def start_scheduler(job: Job, settings: dict[str, str], told_in: str) -> str:
    """Start it; return its addresses when it listens. It tells of itself in a folder."""
    own = {**settings, "KVMPI_ROLE": "scheduler", "KVMPI_RECORD_DIR": told_in}
    return start_ready(job, Program("scheduler", (sys.executable, *SERVICE), own))


def costs(
    pid: int, listener: Listener, acts: Mapping[str, Callable[[], None]]
) -> dict[str, dict[str, float]]:
    """Do all in order; return what each has cost a process, and by how much it has grown until then."""
    before, phases = resident_bytes(pid), {}
    for phase, act in acts.items():
        began, spent = time.monotonic(), cpu_seconds(pid)
        act()
        cost = {"seconds": time.monotonic() - began, "scheduler_s": cpu_seconds(pid) - spent}
        heard = listener.rate("messages_received", began)
        phases[phase] = {**cost, "bytes": resident_bytes(pid) - before, "messages_a_second": heard}
    return phases


def wait_for_all(folder: Path, what: str, workers: int) -> None:
    """Wait until every worker has left a file.

    Raises:
        JobError: One has not.
    """
    deadline = time.monotonic() + DEADLINE_S
    while len(list(folder.glob(f"{what}[0-9]*"))) < workers:
        if time.monotonic() > deadline:
            raise JobError(f"not all of {workers} workers have {what} within {DEADLINE_S:g} s")
        time.sleep(LOOK_S)


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


def measure_all(arguments: argparse.Namespace, sizes: Sequence[int], processes: Sequence[int]) -> Results:
    """Run one job for each number of workers and repeat; with processes after the same number without."""
    allow_descriptors(max(sizes) + SPARE_DESCRIPTORS)
    results = begin(WHAT, arguments)
    for repeat in range(arguments.repeats):
        for workers in sorted({*sizes, *processes}):
            results.add({"repeat": repeat, **measure(workers, arguments.heartbeat)})
            if workers in processes:
                results.add({"repeat": repeat, **measure_processes(workers, arguments.heartbeat)})
            report(f"repeat {repeat + 1}/{arguments.repeats}: {workers} workers")
    return results


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return medians over the runs of each number of workers."""
    rows = []
    for workers, processes in sorted({(run["workers"], run.get("processes", False)) for run in runs}):
        same = [
            run["phases"]
            for run in runs
            if (run["workers"], run.get("processes", False)) == (workers, processes)
        ]
        name = f"{workers} processes" if processes else str(workers)
        rows += [_row(name, workers, phase, [phases[phase] for phases in same]) for phase in same[0]]
    return "\n".join([align([HEAD, *rows]), *predictions(runs)])


def predictions(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return how what a crowd costs tells what as many processes do: ratios of jobs of the same turn."""
    lines = []
    for workers in sorted({run["workers"] for run in runs if run.get("processes")}):
        same = sorted((run for run in runs if run["workers"] == workers), key=lambda run: run["repeat"])
        crowds = [run["phases"] for run in same if not run.get("processes")]
        real = [run["phases"] for run in same if run.get("processes")]
        for phase in real[0]:
            ratio = ratios_of(*([each[phase]["scheduler_s"] for each in of] for of in (real, crowds)))
            if ratio:
                text = f"{ratio.median:.2f} ({ratio.text(2)})"
                lines.append(f"{phase}, {workers} processes over a crowd of as many: {text}")
    return lines


def _row(name: str, workers: int, phase: str, found: Sequence[dict[str, float]]) -> tuple[str, ...]:
    spent = quartiles([cost["scheduler_s"] for cost in found])
    wall = quartiles([cost["seconds"] for cost in found]).median
    cores = spent.median / wall
    held = quartiles([cost["bytes"] for cost in found]).median
    lives = phase == "heartbeats"
    heard = quartiles([cost.get("messages_a_second", 0.0) for cost in found]).median if lives else 0
    verdict = ""
    if phase == "join":
        verdict = f"<= {START_TARGET_S:g} s {met(START_TARGET_S, spent.median)}"
    elif lives:
        verdict = f"<= {HEARTBEATS_TARGET_CORES:g} core {met(HEARTBEATS_TARGET_CORES, cores)}"
    return (
        name,
        phase,
        f"{wall:.2f}",
        f"{spent.median:.3f}",
        spent.text(),
        f"{1e6 * spent.median / workers / (wall if lives else 1):.0f}",
        f"{heard:.0f}" if heard else "",
        f"{1e6 * cores / heard:.0f}" if heard else "",
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
    parser.add_argument(
        "--processes", default=PROCESSES, help=f"also as real processes (default: {PROCESSES})"
    )
    told = f"seconds between signs of life of one worker (default: {HEARTBEAT_S:g})"
    parser.add_argument("--heartbeat", type=float, default=HEARTBEAT_S, metavar="S", help=told)
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or 3
    sizes, processes = (
        [int(word) for word in text.split(",") if word] for text in (arguments.workers, arguments.processes)
    )
    if min([*sizes, *processes]) <= 1:
        parser.error("--workers, --processes: at least 2, of which one stays to the end")
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments, sizes, processes)
    except JobError as error:
        sys.exit(f"{WHAT}: {error}")
    results.show(table(results.runs))
    results.close()


if __name__ == "__main__":
    main()
