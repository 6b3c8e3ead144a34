"""Virtual time: processes as generators, links that serve one transfer after the other, and gates.

A process yields how long to sleep, or a gate to wait at. What happens at one time happens in the order in
which it was asked for, so that a run depends on nothing but its processes. This file must not know what
they do.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from itertools import count


class Gate:
    """Holds processes until somebody lets them go on."""

    def __init__(self) -> None:
        """Start with nobody waiting."""
        self.waiting: list[Process] = []


Process = Generator[float | Gate, None, None]


class Link:
    """Carries one transfer at a time, first come, first served."""

    def __init__(self) -> None:
        """Start idle."""
        self._free_at = 0.0

    def delay(self, now: float, duration: float) -> float:
        """Queue a transfer that takes ``duration``; return how long from now until it has arrived."""
        self._free_at = max(self._free_at, now) + duration
        return self._free_at - now


class VirtualTime:
    """Runs processes in the order of their times."""

    def __init__(self) -> None:
        """Start at time 0."""
        self.now = 0.0
        self._queue: list[tuple[float, int, Process]] = []
        self._order = count()

    def start(self, process: Process) -> None:
        """Let a process run from now on."""
        heapq.heappush(self._queue, (self.now, next(self._order), process))

    def open(self, gate: Gate) -> None:
        """Let all go on that wait at a gate, in the order in which they came."""
        for process in gate.waiting:
            self.start(process)
        gate.waiting.clear()

    def run(self, until: float) -> None:
        """Let everything happen up to and including a time."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, process = heapq.heappop(self._queue)
            wait = next(process, None)
            if isinstance(wait, Gate):
                wait.waiting.append(process)
            elif wait is not None:
                heapq.heappush(self._queue, (self.now + wait, next(self._order), process))
        self.now = until
