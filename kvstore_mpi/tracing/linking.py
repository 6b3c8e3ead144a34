"""Finds each run of slices again in all processes that it passed through. Pure.

A worker knows when it sent a run and a server when it received one; that they are the same is told by the
worker, the server, the key and the sequence that both have noted. Both may have cut the elements into runs
differently, so that elements decide, not runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.tracing.events import Done, InFlight, Mark, Part, Ready, Run, Span
from kvstore_mpi.tracing.timeline import (
    Answer,
    Operation,
    Round,
    Timeline,
    Wait,
    Wire,
    Work,
    by_model_rank,
    clocks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROLES = (Role.WORKER, Role.SERVER, Role.SCHEDULER)


def link(parts: Sequence[Part]) -> list[Timeline]:
    """Return what each process did, in one clock: workers, servers, scheduler, each by index."""
    known = clocks([part.header for part in parts])
    offsets = {boot: offset.offset_ns if offset else 0 for boot, offset in known.items()}
    slack = 2 * max((offset.error_ns for offset in known.values() if offset), default=0)
    timelines: list[Timeline] = []
    for job_parts in by_model_rank(parts).values():
        job = _Job(slack)
        for part in job_parts:
            job.read(part, offsets[part.header.boot_id])
        job.link()
        timelines += job.timelines.values()
    return sorted(timelines, key=_place)


def _place(timeline: Timeline) -> tuple[int, int, int]:
    role, index = timeline.node
    return _ROLES.index(role), index, timeline.header.model_rank or 0


class _Way(NamedTuple):
    """What the steps of a run have in common, whichever process has marked them."""

    worker: NodeId
    server: NodeId
    key_id: int
    sequence: int


class _Moment(NamedTuple):
    """A step of the elements ``[lo, hi)``."""

    lo: int
    hi: int
    at: int


class _Moments:
    """All moments of one kind of step, found by way and elements."""

    def __init__(self) -> None:
        self._by_way: dict[_Way, list[_Moment]] = {}

    def add(self, way: _Way, moment: _Moment) -> None:
        self._by_way.setdefault(way, []).append(moment)

    def sort(self) -> None:
        for moments in self._by_way.values():
            moments.sort()

    def __iter__(self) -> Iterator[tuple[_Way, Run, int]]:
        for way, moments in self._by_way.items():
            for lo, hi, at in moments:
                yield way, Run(way.key_id, lo, hi, way.sequence), at

    def of(self, way: _Way, run: Run) -> list[int]:
        """Return when elements of a run came to this step; a run may be empty, as a key may be."""
        moments = self._by_way.get(way, [])
        first = bisect_left(moments, (run.lo,))
        while first and moments[first - 1].hi > run.lo:
            first -= 1
        last = first
        while last < len(moments) and (moments[last].lo < run.hi or moments[last].lo == run.lo):
            last += 1
        return [moment.at for moment in moments[first:last]]


class _Updates:
    """When each server has updated what. Updates of one server always cut a key in the same way."""

    def __init__(self) -> None:
        self._times: dict[tuple[NodeId, int], dict[int, list[int]]] = {}
        self._starts: dict[tuple[NodeId, int], list[int]] = {}

    def add(self, server: NodeId, run: Run, at: int) -> None:
        self._times.setdefault((server, run.key_id), {}).setdefault(run.lo, []).append(at)

    def sort(self) -> None:
        for place, times in self._times.items():
            self._starts[place] = sorted(times)
            for each in times.values():
                each.sort()

    def first_after(self, server: NodeId, run: Run, received: int) -> int | None:
        """Return when all of a run that had arrived was updated, or ``None`` if it never was."""
        starts = self._starts.get((server, run.key_id), [])
        first = max(0, bisect_right(starts, run.lo) - 1)
        ends = []
        for start in starts[first : max(first + 1, bisect_left(starts, run.hi))]:
            times = self._times[server, run.key_id][start]
            place = bisect_left(times, received)
            if place == len(times):
                return None
            ends.append(times[place])
        return max(ends, default=None)


class _Job:
    """The steps of all processes, while their timelines are put together."""

    def __init__(self, slack: int) -> None:
        """``slack`` is by how much times of different hosts may be out of order."""
        self.timelines: dict[NodeId, Timeline] = {}
        self._slack = slack
        self._steps = {step: _Moments() for step in ("queued", "sent", "received", "answered", "written")}
        self._updates = _Updates()

    def read(self, part: Part, offset: int) -> None:
        """Take in what one process has recorded."""
        timeline = self.timelines[part.header.node] = Timeline(part.header)
        ready: dict[int, Ready] = {}
        for event in part.events:
            if isinstance(event, Mark):
                self._read_mark(timeline, event, offset)
            elif isinstance(event, Ready):
                ready[event.number] = event
            elif isinstance(event, Done) and event.number in ready:
                timeline.operations.append(_operation(ready.pop(event.number), event, offset))
            elif isinstance(event, InFlight):
                timeline.counts.append(InFlight(event.at + offset, event.peer, event.num_bytes))
            elif isinstance(event, Span):
                span = Span(event.since + offset, event.until + offset, event.name, event.thread)
                timeline.spans.append(span)

    def _read_mark(self, timeline: Timeline, mark: Mark, offset: int) -> None:
        node, at = timeline.node, mark.at + offset
        for run in (Run(*entry[:4]) for entry in mark.entries):
            if mark.step in self._steps and mark.peer is not None:
                worker, server = (node, mark.peer) if node.role is Role.WORKER else (mark.peer, node)
                way = _Way(worker, server, run.key_id, run.sequence)
                self._steps[mark.step].add(way, _Moment(run.lo, run.hi, at))
            elif mark.step == "updated":
                self._updates.add(node, run, at)
            if mark.since:
                timeline.work.append(Work(mark.since + offset, at, run, mark.step))

    def link(self) -> None:
        """Find again in each process what the others have marked; then put all in order of time."""
        self._updates.sort()
        for moments in self._steps.values():
            moments.sort()
        for step, find in (
            ("queued", self._find_waits),
            ("sent", self._find_wires),
            ("received", self._find_rounds),
            ("written", self._find_answers),
        ):
            for way, run, at in self._steps[step]:
                find(way, run, at)
        for timeline in self.timelines.values():
            _sort(timeline)

    def _find_waits(self, way: _Way, run: Run, at: int) -> None:
        until = max(self._steps["sent"].of(way, run), default=at)
        if until > at:
            self.timelines[way.worker].waits.append(Wait(at, until, run, way.server))

    def _find_wires(self, way: _Way, run: Run, at: int) -> None:
        received = self._steps["received"].of(way, run)
        if received:
            queued = max((time for time in self._steps["queued"].of(way, run) if time <= at), default=None)
            wire = Wire(at, max(at, *received), run, way.server, queued)
            self.timelines[way.worker].wires.append(wire)

    def _find_rounds(self, way: _Way, run: Run, at: int) -> None:
        updated = self._updates.first_after(way.server, run, at)
        if updated is not None:
            self.timelines[way.server].rounds.append(Round(at, updated, run, way.worker))

    def _find_answers(self, way: _Way, run: Run, at: int) -> None:
        answered = [time for time in self._steps["answered"].of(way, run) if time <= at + self._slack]
        if answered:  # the last one: values may be asked for again
            since = min(at, max(answered))
            self.timelines[way.worker].answers.append(Answer(since, at, run, way.server))


def _operation(begun: Ready, ended: Done, offset: int) -> Operation:
    return Operation(
        begun.at + offset,
        ended.at + offset,
        begun.kind,
        begun.store,
        begun.key,
        begun.priority,
        begun.sequence,
    )


def _sort(timeline: Timeline) -> None:
    for records in (
        timeline.operations,
        timeline.spans,
        timeline.waits,
        timeline.wires,
        timeline.rounds,
        timeline.answers,
        timeline.work,
    ):
        records.sort(key=lambda record: (record.since, record.until))
    timeline.counts.sort(key=lambda count: count.at)
