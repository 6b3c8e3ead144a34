"""What the threads of a job do: time, switches and system calls of each, from the kernel and strace.

This file must not know what the job is for.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ATTACHED_S = 10.0
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)
_CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(\(| resumed)")


@dataclass(frozen=True)
class Task:
    """What one thread has done.

    Attributes:
        role: Of its process.
        pid: Of its process.
        tid: Of the thread; the first thread of a process has its number.
        comm: What the kernel calls it.
        cpu_s: Seconds on a processor.
        waits: Switches that it asked for: it had nothing to do.
        forced: Switches that it did not ask for.
    """

    role: str
    pid: int
    tid: int
    comm: str
    cpu_s: float
    waits: int
    forced: int


@dataclass(frozen=True)
class Tasks:
    """All threads of some processes at a moment."""

    by_tid: Mapping[int, Task]

    @classmethod
    def now(cls, pids: Mapping[int, str]) -> Tasks:
        """Read them; ``pids`` says the role of each process."""
        found = {}
        for pid, role in pids.items():
            for path in Path(f"/proc/{pid}/task").glob("*"):
                with suppress(OSError):  # it has just ended
                    task = _read(path, role, pid)
                    found[task.tid] = task
        return cls(found)

    def since(self, before: Tasks) -> list[Task]:
        """Return what each thread has done since then."""
        changes = []
        for tid, now in self.by_tid.items():
            was = before.by_tid.get(tid)
            if was is None:
                changes.append(now)
                continue
            did = (now.cpu_s - was.cpu_s, now.waits - was.waits, now.forced - was.forced)
            changes.append(Task(now.role, now.pid, tid, now.comm, *did))
        return changes


def _read(path: Path, role: str, pid: int) -> Task:
    waits, forced = map(int, _SWITCHES.findall((path / "status").read_text()))
    ran_ns = int((path / "schedstat").read_text().split()[0])
    comm = (path / "comm").read_text().strip()
    return Task(role, pid, int(path.name), comm, ran_ns / 1e9, waits, forced)


@contextmanager
def counted_calls(pids: Mapping[int, str], directory: Path | None) -> Iterator[dict[str, Counter[str]]]:
    """Count the system calls of each thread, if there is a directory for what strace writes.

    The dictionary, thread -> name -> count, is filled at the end.
    """
    counts: dict[str, Counter[str]] = {}
    if directory is None or not pids:
        yield counts
        return
    log = directory / "strace.log"
    attach = [word for pid in pids for word in ("-p", str(pid))]
    command = ["strace", "-f", "-qq", "-s", "0", "-o", str(log), *attach]
    tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_tracer(pids)
        yield counts
    finally:
        tracer.terminate()
        tracer.wait()
    for line in log.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if match and match[3] == "(":
            counts.setdefault(match[1], Counter())[match[2]] += 1
    log.unlink()


def _await_tracer(pids: Mapping[int, str]) -> None:
    """Wait until somebody traces every thread of all processes."""
    deadline = time.monotonic() + ATTACHED_S
    while time.monotonic() < deadline:
        texts = [path.read_text() for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/status")]
        if not any("TracerPid:\t0\n" in text for text in texts):
            return
        time.sleep(0.01)
    raise TimeoutError("strace has not attached to all threads")
