"""What the launcher watches of a process: what it says, and its end."""

from __future__ import annotations

import os
from typing import NamedTuple

from mpilaunch.printer import LineBuffer


class Lines:
    """One pipe with lines, and whose lines they are."""

    def __init__(self, descriptor: int, name: str, *, is_error: bool, quiet: bool) -> None:
        """``quiet`` lines are logged and not shown."""
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.name = name
        self.is_error = is_error
        self.quiet = quiet
        self.buffer = LineBuffer()


class Watched(NamedTuple):
    """A rank's process; the leader of its group, maybe a guard; and what tells of the leader's end."""

    pid: int
    leader: int
    descriptor: int | None
