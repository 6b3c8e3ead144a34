"""How a process tells the launcher about itself: by its I/O thread, on a named pipe of the job.

The pipe lies in the job's private directory, from which the launcher reads on every host. It is never
waited for: a line for which there is no room is left out, since a newer one follows.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.host_name import host_name
from kvstore_mpi.metrics.status import Status, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.metrics.counters import Counters
    from kvstore_mpi.metrics.status import Wait

STATUS_PIPE = "status"
"""Name of the pipe."""

MOST_THREADS = 24


class Seen(NamedTuple):
    """What one role has to tell: its numbers, what it waits for, and what has ended it, if anything has."""

    counters: Counters
    waits: list[Wait]
    error: str = ""


class Teller:
    """Tells the status of this process; called by its I/O thread about once a second."""

    def __init__(self, directory: str, name: str, incarnation: int, look: Callable[[float], Seen]) -> None:
        """Tell nothing yet.

        Args:
            directory: Where the launcher has made the pipe.
            name: Of this process, as in the launcher's output.
            incarnation: How often it has been restarted.
            look: Gathers what there is to tell; is given the time.
        """
        self._pipe = -1
        with contextlib.suppress(OSError):  # started by somebody else than mpilaunch, which has no pipe
            self._pipe = os.open(Path(directory) / STATUS_PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._name, self._incarnation = name, incarnation
        self._host, self._pid = host_name(), os.getpid()
        self._look = look

    def __call__(self, now: float) -> None:
        """Tell how things are now."""
        if self._pipe < 0:
            return
        seen = self._look(now)
        counters = {**seen.counters, **process_counters()}
        threads = {f"{each.ident or 0:x}": each.name for each in threading.enumerate()[:MOST_THREADS]}
        status = Status(
            self._name, self._incarnation, self._host, self._pid, counters, seen.waits, seen.error, threads
        )
        try:
            os.write(self._pipe, encode(status))
        except BlockingIOError:
            pass  # the launcher is busy
        except OSError:  # it is gone
            os.close(self._pipe)
            self._pipe = -1


def process_counters() -> Counters:
    """Return what the system counts for this process."""
    return {"memory_bytes": _resident_bytes(), "cpu_seconds": time.process_time()}


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:  # not Linux: the most that it has ever been
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
