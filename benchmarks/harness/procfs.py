"""Reads what Linux says about processes: their memory, their marks, and the CPU time of the machine.

It must not know how a job was started: its processes are those that inherited the job's mark.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mpilaunch.hosts.reaper import environment_of

if TYPE_CHECKING:
    from collections.abc import Iterable

JOB_MARK = "KVSTORE_BENCHMARK_JOB"
"""Environment variable that all processes of one measured job inherit, with a value of its own."""

SERVER_ROLES = frozenset({"DMLC_ROLE=server", "KVMPI_ROLE=server"})


def _status_bytes(pid: int, field: str) -> int:
    """Return one memory field of ``/proc/<pid>/status`` in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    if match is None:
        raise LookupError(f"process {pid} has no {field}: it has ended")
    return int(match[1]) * 1024


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 if it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def resident_bytes(pid: int) -> int:
    """Return what a process holds in memory now; pages shared with others count fully."""
    return _status_bytes(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Return the most that a process has held since ``start_new_peak``."""
    return _status_bytes(pid, "VmHWM")


def shared_bytes(pid: int) -> int:
    """Return how much of what a process holds now is memory that it shares with others."""
    return _status_bytes(pid, "RssShmem")


def anonymous_bytes(pid: int) -> int:
    """Return how much of what a process holds now is neither of a file nor shared."""
    return _status_bytes(pid, "RssAnon")


def num_descriptors(pid: int) -> int:
    """Return how many files and sockets a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def start_new_peak(pid: int) -> None:
    """Forget the peak so far of a process of this user."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _environment(pid: int) -> frozenset[str]:
    """Return the environment that a process was started with; empty if it is gone or not ours to read."""
    return frozenset(environment_of(Path(f"/proc/{pid}")).decode(errors="replace").split("\0"))


def _marked(mark: str) -> dict[int, frozenset[str]]:
    """Return pid -> environment of every other process that has this job mark."""
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()} - {os.getpid()}
    environments = {pid: _environment(pid) for pid in pids}
    return {pid: entries for pid, entries in environments.items() if f"{JOB_MARK}={mark}" in entries}


def marked_pids(mark: str) -> list[int]:
    """Return the processes that have this job mark."""
    return sorted(_marked(mark))


def processes_of_job() -> dict[str, int]:
    """Return the scheduler, the servers and the ranks of the job that this process belongs to, by name."""
    everyone = {**_marked(os.environ[JOB_MARK]), os.getpid(): _environment(os.getpid())}
    named = {}
    # A rank's guard, which has its environment, is its parent.
    guards = {_parent(pid) for pid in everyone}
    for pid, entries in everyone.items():
        told = dict(entry.partition("=")[::2] for entry in entries)
        role = told.get("KVMPI_ROLE", "")
        if role == "worker" and "PMI_RANK" in told and pid not in guards:  # its mpiexec has the role, too
            named[f"worker{told.get('KVMPI_CLIENT', '0')}.{told['PMI_RANK']}"] = pid
        elif role in ("scheduler", "server"):
            named[role + told.get("KVMPI_INDEX", "" if role == "scheduler" else "0")] = pid
    return dict(sorted(named.items()))


def role_pids() -> dict[int, str]:
    """Return all processes of the job that this process belongs to, with their roles."""
    everyone = {**_marked(os.environ[JOB_MARK]), os.getpid(): _environment(os.getpid())}
    return {pid: _role(pid, entries) for pid, entries in sorted(everyone.items())}


def _role(pid: int, entries: frozenset[str]) -> str:
    told = dict(entry.partition("=")[::2] for entry in entries)
    role = told.get("KVMPI_ROLE") or told.get("DMLC_ROLE") or "launcher"
    # What starts the ranks of a client has their role, too.
    starts_ranks = role == "worker" and "python" not in Path(f"/proc/{pid}/comm").read_text()
    return "launcher" if starts_ranks else role


def server_pids() -> list[int]:
    """Return the processes that serve the job that this process belongs to."""
    return sorted(pid for pid, entries in _marked(os.environ[JOB_MARK]).items() if entries & SERVER_ROLES)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process so far."""
    return sum(ran for ran, _ in _thread_times(pid)) / 1e9


def began_at(pid: int) -> float:
    """Return when a process began, on the machine's monotonic clock, to 10 ms."""
    # Its name, in brackets before these fields, may have spaces; proc(5) numbers them from 1.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[22 - 3]) / os.sysconf("SC_CLK_TCK")
    return since_boot + time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)


def busy_seconds() -> float:
    """Return the CPU time that all cores together have not been idle since boot, stolen time included."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """What the machine and one job have done until a moment; the difference of two is what counts.

    Attributes:
        at_s: That moment, on the machine's monotonic clock.
        idle_s: Seconds that the cores have been idle since boot, all cores together.
        job_s: CPU seconds of the job's threads, with what the kernel did for them meanwhile.
        queued_s: Seconds that these threads could have run but had no core.
    """

    at_s: float
    idle_s: float
    job_s: float
    queued_s: float

    @classmethod
    def now(cls, pids: Iterable[int]) -> Load:
        """Read it; threads that have ended no longer count."""
        tasks = [times for pid in pids for times in _thread_times(pid)]
        job_ns, queued_ns = (sum(column) for column in zip(*tasks))
        return cls(time.monotonic(), idle_seconds(), job_ns / 1e9, queued_ns / 1e9)


def idle_seconds() -> float:
    """Return the time that all cores together have been idle since boot."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def job_pids() -> list[int]:
    """Return all processes of the job that this process belongs to."""
    return [os.getpid(), *marked_pids(os.environ[JOB_MARK])]


def _thread_times(pid: int) -> list[tuple[int, int]]:
    """Return for each thread of a process the nanoseconds that it ran, and that it waited for a core."""
    times = []
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # it has just ended
            ran, queued, _ = path.read_text().split()
            times.append((int(ran), int(queued)))
    return times
