"""Virtual time in integers or fractions: events, resources that take their time, and lanes to look at.

This file must not know what is computed or sent.
"""

from __future__ import annotations

import heapq
import itertools
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Time = int | Fraction


class Span(NamedTuple):
    """Something that took its time."""

    lane: str
    label: str
    start: Time
    end: Time


class Clock:
    """The events to come, and who looks about when all events of a moment are over.

    Attributes:
        now: The time.
        spans: What has begun so far.
        at_end_of_moment: Called after the events of a moment, and again after those that follow from it at
            the same moment: decisions then know all that has happened.
    """

    def __init__(self) -> None:
        """Start at 0, with nothing to come."""
        self.now: Time = 0
        self.spans: list[Span] = []
        self.at_end_of_moment: list[Callable[[], None]] = []
        self._events: list[tuple[Time, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, time: Time, call: Callable[[], None]) -> None:
        """Make a call when it is ``time``; events of one moment come in the order of these calls."""
        heapq.heappush(self._events, (time, next(self._numbers), call))

    def run(self) -> None:
        """Run until nothing is to come."""
        while self._events:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] == self.now:
                heapq.heappop(self._events)[2]()
            for call in self.at_end_of_moment:
                call()


class Resource:
    """Does one thing after the other, or, if not ``serial``, all at once."""

    def __init__(self, clock: Clock, lane: str, *, serial: bool = True) -> None:
        """Be idle; what is done is noted in a lane of this name."""
        self._clock = clock
        self._lane = lane
        self._serial = serial
        self._free_at: Time = 0

    @property
    def idle(self) -> bool:
        """Whether what is begun now need not wait."""
        return self._free_at <= self._clock.now

    def do(self, label: str, duration: Time, then: Callable[[], None]) -> None:
        """Do something after what was given before; then make a call."""
        start = max(self._free_at, self._clock.now)
        end = start + duration
        if self._serial:
            self._free_at = end
        if duration:
            self._clock.spans.append(Span(self._lane, label, start, end))
        self._clock.at(end, then)


def render(spans: Iterable[Span], lanes: Iterable[str]) -> str:
    """Return lanes as text: a column for each unit of time, with the label where something begins.

    Things of one lane that overlap get a line each.

    Args:
        spans: They begin and end at whole units.
        lanes: Which lanes to show, from top to bottom.
    """
    spans = list(spans)
    names = list(lanes)
    end = max(int(span.end) for span in spans)
    head = max(map(len, ("time", *names)))
    lines = [_line("time", head, [str(unit) for unit in range(end)])]
    for name in names:
        rows = _rows(span for span in spans if span.lane == name)
        lines += [_line(name if row is rows[0] else "", head, _cells(row, end)) for row in rows]
    return "\n".join(lines)


def _rows(spans: Iterable[Span]) -> list[list[Span]]:
    """Spread spans over rows so that none overlap, each to the first row that has room."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start):
        row = next((row for row in rows if row[-1].end <= span.start), None)
        if row is None:
            row = []
            rows.append(row)
        row.append(span)
    return rows


def _cells(row: list[Span], end: int) -> list[str]:
    cells = ["."] * end
    for span in row:
        if span.start != int(span.start) or span.end != int(span.end):
            raise ValueError(f"{span} does not begin and end at whole units of time")
        first, last = int(span.start), int(span.end)
        cells[first:last] = [span.label, *["=="] * (last - first - 1)]
    return cells


def _line(name: str, head: int, cells: list[str]) -> str:
    return " ".join((name.ljust(head), *(cell.ljust(2) for cell in cells))).rstrip()
