"""What the launcher knows of each process of a running job, from what they tell. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.metrics.status import Wait

if TYPE_CHECKING:
    from collections.abc import Collection

    from kvstore_mpi.metrics.status import Status

SILENT_SECONDS = 4.0
"""After this time without a word a process is called silent; they tell about once a second."""

WAITS_SECONDS = 2.0
"""What is waited for is told to people from then on."""

KEPT = 6
"""Statuses of which rates are made: one for each second, about."""

FAILED = "failed"
STARTS, JOINS = "starts", "joins"
"""States of a process that has told nothing yet: a rank that joins makes its store, and may wait for others
of its client."""

MOST_BEFORE = 5.0
"""Seconds before a deadline at which stacks are written, or half of a short one."""


class Row(msgspec.Struct, frozen=True):
    """One process, for people and for ``mpilaunch top``.

    Attributes:
        name: As in the launcher's output.
        host: Where it runs.
        pid: Its process number there; 0 before it has told.
        state: In a word or two.
        age: Seconds since it has told about itself; negative if it never has.
        rates: Growth per second of those counters that only grow.
        counters: As it has told them last.
        waits: What it waits for.
        error: Its last error.
        is_over: It has ended, well or not.
    """

    name: str
    host: str
    pid: int
    state: str
    age: float
    rates: dict[str, float]
    counters: dict[str, float]
    waits: list[Wait]
    error: str
    is_over: bool = False


@dataclass
class _Process:
    host: str
    heard: float
    ended: str = ""
    before: str = STARTS  # its state until it tells
    told: deque[tuple[float, Status]] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def last(self) -> Status | None:
        return self.told[-1][1] if self.told else None


def due(limit: float) -> float:
    """Return after how many seconds of a wait with a limit its reasons are to be looked for."""
    return max(limit / 2, limit - MOST_BEFORE)


class JobView:
    """All processes of one job."""

    def __init__(self, *, lease: float, watched: Collection[str] | None = None) -> None:
        """Know nobody.

        Args:
            lease: Seconds of silence after which a process counts as dead, if it is watched.
            watched: The processes that are, or ``None`` for all, as a scheduler watches them.
        """
        self._lease = lease
        self._watched = watched
        self._processes: dict[str, _Process] = {}

    def started(self, name: str, host: str, now: float) -> None:
        """A process is being started."""
        self._processes[name] = _Process(host, now)

    def joins(self, name: str) -> None:
        """A rank makes its first store."""
        if name in self._processes:
            self._processes[name].before = JOINS

    def ended(self, name: str, *, failed: bool) -> None:
        """A process has ended; ``failed``: with an exit code that is not 0, or by a signal."""
        if name in self._processes:
            self._processes[name].ended = FAILED if failed else "ended"

    def take(self, status: Status, now: float) -> None:
        """A process has told about itself."""
        name = f"{status.name}~{status.incarnation}" if status.incarnation else status.name
        process = self._processes.setdefault(name, _Process(status.host, now))
        process.heard, process.host = now, status.host
        process.told.append((now, status))

    def forget_silence(self, now: float) -> None:
        """Nobody could be heard until now."""
        for process in self._processes.values():
            process.heard = now

    def rows(self, now: float) -> list[Row]:
        """Return all processes that there are, and have been."""
        # A copy: the thread of an endpoint asks, too, while the launcher adds processes.
        return [self._row(name, each, now) for name, each in list(self._processes.items())]

    def _row(self, name: str, process: _Process, now: float) -> Row:
        status = process.last
        if status is None:
            state, is_over = process.ended or process.before, bool(process.ended)
            return Row(name, process.host, 0, state, -1.0, {}, {}, [], "", is_over)
        age = now - process.heard
        return Row(
            name,
            status.host,
            status.pid,
            process.ended or _state(status, age),
            age,
            _rates(list(process.told)),
            dict(status.counters),
            list(status.waits),
            status.error,
            bool(process.ended),
        )

    def why_due(self, now: float) -> str:
        """Return which deadline is about to run out, in words; nothing if none is."""
        for name, process in self._processes.items():
            status = process.last
            if status is None or process.ended:
                continue
            for wait in status.waits:
                if wait.limit and wait.seconds >= due(wait.limit):
                    return f"{name} has waited {wait.seconds:.0f} s of {wait.limit:g} s ({wait.text})"
            if now - process.heard >= due(self._lease):
                ends = self._watched is None or name in self._watched
                limit = f"of {self._lease:g} s" if ends else "and without servers nobody ends it for that"
                return f"{name} has not been heard of for {now - process.heard:.0f} s {limit}"
        return ""

    def next_due(self) -> float | None:
        """Return when a silence may be worth a look, if nobody tells anything before."""
        heard = [each.heard for each in self._processes.values() if each.told and not each.ended]
        return min(heard) + due(self._lease) if heard else None


def _state(status: Status, age: float) -> str:
    if age > SILENT_SECONDS:
        return f"silent {age:.0f} s"
    if status.error:
        return FAILED
    longest = max((wait.seconds for wait in status.waits), default=0.0)
    return "waits" if longest >= WAITS_SECONDS else "runs"


def _rates(told: list[tuple[float, Status]]) -> dict[str, float]:
    """Return by how much each number has grown in a second, over the statuses that are kept."""
    (since, first), (until, last) = told[0], told[-1]
    if until <= since or first.pid != last.pid:
        return {}
    return {
        name: (value - first.counters[name]) / (until - since)
        for name, value in last.counters.items()
        if name in first.counters
    }
