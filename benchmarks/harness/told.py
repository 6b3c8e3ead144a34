"""What a process tells of itself once a second, read as the launcher would."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.metrics.status import decode
from kvstore_mpi.metrics.telling import STATUS_PIPE

if TYPE_CHECKING:
    from pathlib import Path

    from kvstore_mpi.metrics.counters import Counters


class Told(NamedTuple):
    """One line: when it was read, and the numbers in it."""

    at: float
    counters: Counters


class Listener:
    """Reads what one process tells, on a thread of its own that ends with that process."""

    def __init__(self, folder: Path) -> None:
        """Make the pipe in the folder that the process is given as ``KVMPI_RECORD_DIR``."""
        path = folder / STATUS_PIPE
        os.mkfifo(path)
        self.told: list[Told] = []
        threading.Thread(target=self._read, args=(path,), name="listener", daemon=True).start()

    def _read(self, path: Path) -> None:
        with path.open("rb") as pipe:
            for line in pipe:
                status = decode(line)
                if status is not None:
                    self.told.append(Told(time.monotonic(), status.counters))

    def rate(self, name: str, since: float) -> float:
        """Return by how much a number has grown in a second since a moment, or 0 if too little was told."""
        told = [each for each in self.told if each.at >= since]
        if len(told) <= 1:
            return 0.0
        return (told[-1].counters[name] - told[0].counters[name]) / (told[-1].at - told[0].at)
