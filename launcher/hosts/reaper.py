"""Removes what is left of a job: run as a process that outlives the launcher, even its SIGKILL.

It waits for the end of its standard input, whose other end only the launcher holds. Then it kills every
process whose environment names the job's private directory, and removes that directory and the files in
/dev/shm that ranks have noted there, or have left before they could. Run as a plain file, without the
package: the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

KILL_SECONDS = 10.0
"""How long killed processes may take to disappear before the rest is removed all the same."""


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  MPICH's place, not ours to choose
SEGMENTS = "mpich_shm_*"
"""MPICH's name of what the ranks of a host share, from MPI_Init until MPI_Finalize."""

EXEC_SECONDS = 0.1
"""How long an environment may be empty before it is believed; an exec takes less than a millisecond."""


def processes_of(mark: bytes) -> Iterator[int]:
    """Yield the processes whose environment contains ``mark``; those of other users cannot be read."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and mark in environment_of(entry):
            yield int(entry.name)


def environment_of(process: Path) -> bytes:
    """Return the environment of a process; empty if it has ended or is not ours.

    A process that begins a program (exec) has none for a moment, when whoever started it already goes on:
    to believe that would leave it behind. Zombies and the kernel's threads have none, and no program.

    Args:
        process: Its directory in ``/proc``.
    """
    deadline = time.monotonic() + EXEC_SECONDS
    try:
        while True:
            environment = (process / "environ").read_bytes()
            if environment or time.monotonic() > deadline:
                return environment
            (process / "exe").readlink()
            os.sched_yield()
    except OSError:
        return b""


def kill(pid: int, deadline: float) -> None:
    """Kill one process and wait until it is gone, so that it is not found again."""
    try:
        descriptor = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    if descriptor is not None:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(descriptor)


def kill_all(mark: bytes, seconds: float = KILL_SECONDS) -> None:
    """Kill the processes of a job, and those that they start meanwhile."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = list(processes_of(mark))
        if not found:
            return
        for pid in found:
            kill(pid, deadline)


def remove(directory: Path, began: float, shared_memory: Path = SHARED_MEMORY) -> None:
    """Remove the job's directory and the shared memory that its ranks have left.

    They note what they have after MPI_Init; of one that is killed within it there is no note.

    Args:
        directory: The job's.
        began: When the job began, in seconds since the epoch; its ranks are gone.
        shared_memory: Where MPICH has its segments.
    """
    for note in directory.glob("records/*.shm"):
        for path in note.read_text(encoding="utf-8").splitlines():
            Path(path).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    # A job that begins just now maps its segment moments after making it: by the second look it has.
    for segment in unmapped(unmapped(segments(shared_memory, began))):
        segment.unlink(missing_ok=True)


def segments(shared_memory: Path, began: float) -> list[Path]:
    """Return the segments of MPICH that this user has made since then."""
    found = []
    for path in shared_memory.glob(SEGMENTS):
        with contextlib.suppress(OSError):  # gone meanwhile
            status = path.stat()
            if status.st_uid == os.getuid() and status.st_ctime >= began:
                found.append(path)
    return found


def unmapped(paths: list[Path]) -> list[Path]:
    """Return those of the files that no process has mapped."""
    left = list(paths)
    for maps in Path("/proc").glob("[0-9]*/maps") if paths else ():
        with contextlib.suppress(OSError):  # ended, or another user's
            text = maps.read_text(encoding="utf-8", errors="replace")
            left = [path for path in left if f" {path}\n" not in text]
    return left


def main() -> None:
    """Wait for the launcher's end, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    directory, began = Path(sys.argv[1]), time.time()
    sys.stdin.buffer.read()
    kill_all(os.fsencode(directory))
    remove(directory, began)


if __name__ == "__main__":
    main()
