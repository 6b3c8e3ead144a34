"""Reads what Linux says about processes: their memory, their marks, and the CPU time of the machine.

It must not know how a job was started: its processes are those that inherited the job's mark.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

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


def resident_bytes(pid: int) -> int:
    """Return what a process holds in memory now; pages shared with others count fully."""
    return _status_bytes(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Return the most that a process has held since ``start_new_peak``."""
    return _status_bytes(pid, "VmHWM")


def shared_bytes(pid: int) -> int:
    """Return how much of what a process holds now is memory that it shares with others."""
    return _status_bytes(pid, "RssShmem")


def start_new_peak(pid: int) -> None:
    """Forget the peak so far of a process of this user."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _environment(pid: int) -> frozenset[str]:
    """Return the environment that a process was started with; empty if it is gone or not ours to read."""
    try:
        return frozenset(Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0"))
    except OSError:
        return frozenset()


def _marked(mark: str) -> dict[int, frozenset[str]]:
    """Return pid -> environment of every other process that has this job mark."""
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()} - {os.getpid()}
    environments = {pid: _environment(pid) for pid in pids}
    return {pid: entries for pid, entries in environments.items() if f"{JOB_MARK}={mark}" in entries}


def marked_pids(mark: str) -> list[int]:
    """Return the processes that have this job mark."""
    return sorted(_marked(mark))


def server_pids() -> list[int]:
    """Return the processes that serve the job that this process belongs to."""
    return sorted(pid for pid, entries in _marked(os.environ[JOB_MARK]).items() if entries & SERVER_ROLES)


def busy_seconds() -> float:
    """Return the CPU time that all cores together have not been idle since boot, stolen time included."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
