"""Timelines as a trace in the Chrome trace event format, which Perfetto opens. Pure.

Each process is a process of the trace. Things of one kind that overlap lie in lanes, each a thread of the
trace. Arrows (flow events) lead from a run on the wire to its round on the server and on to the answer.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.tracing.events import Span
from kvstore_mpi.tracing.iterations import boundaries
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvstore_mpi.records import Key, NodeId
    from kvstore_mpi.tracing.events import Header
    from kvstore_mpi.tracing.intervals import Interval

Event = dict[str, Any]
_Station = Wire | Round | Answer
Record = Operation | Span | Wait | Wire | Round | Answer | Work


class Box(NamedTuple):
    """A span to draw; ``record`` is what it shows, and where arrows begin and end."""

    since: int
    until: int
    name: str
    args: dict[str, Any]
    record: Record | None = None


class Track(NamedTuple):
    """Boxes of one category; unless they nest, those that overlap get lanes of their own."""

    name: str
    category: str
    boxes: list[Box]
    nests: bool = False


def chrome_trace(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Return the trace of a job as the JSON object that viewers read.

    Args:
        timelines: What each process did, in the order in which they are to be shown.
    """
    jobs = by_model_rank(timelines)
    tracks = {model_rank: _Tracks(job) for model_rank, job in jobs.items()}
    pids = {id(timeline): pid for pid, timeline in enumerate(timelines, 1)}
    drawn = [(pids[id(each)], each, tracks[each.header.model_rank].of(each)) for each in timelines]
    times = [box.since for _, _, each in drawn for track in each for box in track.boxes]
    times += [count.at for timeline in timelines for count in timeline.counts]
    canvas = _Canvas(min(times, default=0))
    for pid, timeline, each in drawn:
        canvas.draw_process(pid, timeline, each)
    for job in jobs.values():
        canvas.draw_arrows({timeline.node: (pids[id(timeline)], timeline) for timeline in job})
    known = clocks([timeline.header for timeline in timelines])
    errors = {
        timeline.header.host: offset.error_ns if (offset := known[timeline.header.boot_id]) else None
        for timeline in timelines
    }
    return {
        "traceEvents": canvas.in_order(),
        "displayTimeUnit": "ms",
        "otherData": {"clock_error_ns": errors},
    }


def _label(store: int, key: Key) -> str:
    """Return the name of a key, with that of its store where there are several."""
    return f"{store}:{key}" if store else str(key)


# --- what is drawn ---------------------------------------------------------------------------------


class _Tracks:
    """Chooses what to show of the timelines of one job, and what to call it."""

    def __init__(self, job: Sequence[Timeline]) -> None:
        self._names = {number: _label(store, key) for t in job for number, store, key in t.header.keys}

    def of(self, timeline: Timeline) -> list[Track]:
        """Return the tracks of one process, from top to bottom; only those with something on them."""
        starts = boundaries(timeline)
        tracks = [
            Track(
                "iterations",
                "iteration",
                [
                    Box(since, until, f"iteration {i}", {})
                    for i, (since, until) in enumerate(itertools.pairwise(starts))
                ],
            ),
            *self._marked(timeline.spans),
            Track("operations", "operation", [self._operation(each) for each in timeline.operations]),
            *self._work(timeline.work),
            *self._by_peer("queue to {}", "queue", timeline.waits, timeline.header),
            *self._by_peer("wire to {}", "wire", timeline.wires, timeline.header),
            *self._by_peer("rounds of {}", "round", timeline.rounds, timeline.header),
            *self._by_peer("answers of {}", "answer", timeline.answers, timeline.header),
        ]
        return [track for track in tracks if track.boxes]

    @staticmethod
    def _marked(spans: Sequence[Span]) -> Iterator[Track]:
        """Yield a track for each thread with marks; ``with`` blocks of a thread always nest."""
        for i, thread in enumerate(dict.fromkeys(span.thread for span in spans)):
            boxes = [Box(s.since, s.until, s.name, {}, s) for s in spans if s.thread == thread]
            yield Track(f"marks {i}" if i else "marks", "mark", boxes, nests=True)

    @staticmethod
    def _operation(each: Operation) -> Box:
        args = {"priority": each.priority, "sequence": each.sequence}
        return Box(each.since, each.until, f"{each.kind} {_label(each.store, each.key)}", args, each)

    def _work(self, work: Sequence[Work]) -> Iterator[Track]:
        for step, name in (("reduced", "reduce"), ("shared", "share"), ("updated", "update")):
            boxes = [self._box(each, {}) for each in work if each.step == step]
            yield Track(name, name, boxes)

    def _by_peer(
        self, name: str, category: str, records: Sequence[Wait | Wire | Round | Answer], header: Header
    ) -> Iterator[Track]:
        for peer in sorted({record.peer for record in records}):
            named = header.name_of(peer)
            boxes = [self._box(each, {"peer": named}) for each in records if each.peer == peer]
            yield Track(name.format(named), category, boxes)

    def _box(self, each: Wait | Wire | Round | Answer | Work, args: dict[str, Any]) -> Box:
        key_id, lo, hi, sequence = each.run
        name = self._names.get(key_id, f"key {key_id}")
        args = {**args, "key": name, "lo": lo, "hi": hi, "sequence": sequence}
        if isinstance(each, Wire) and each.queued is not None:
            args["queued_us"] = (each.since - each.queued) / 1000
        return Box(each.since, each.until, f"{name} [{lo}, {hi})", args, each)


def lanes(intervals: Sequence[Interval]) -> list[int]:
    """Deal intervals to lanes in which they do not overlap, each to the first that is free.

    Args:
        intervals: Sorted by their starts.

    Returns:
        The lane of each.
    """
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    dealt = []
    for since, until in intervals:
        while busy and busy[0][0] <= since:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (until, lane))
        dealt.append(lane)
    return dealt


# --- drawing ---------------------------------------------------------------------------------------


class _Canvas:
    """Collects events; times are microseconds from the beginning of the trace."""

    def __init__(self, origin: int) -> None:
        self._origin = origin
        self._names: list[Event] = []
        self._events: list[Event] = []
        self._tids: dict[int, int] = {}  # id of a record -> thread that it is drawn on
        self._arrows = 0

    def in_order(self) -> list[Event]:
        """Return all events: names first, then by time; a box comes before those that it contains."""
        return self._names + sorted(
            self._events,
            key=lambda event: (event["ts"], event["pid"], event["tid"], -event.get("dur", 0), event["ph"]),
        )

    def draw_process(self, pid: int, timeline: Timeline, tracks: Sequence[Track]) -> None:
        """Draw one process."""
        header = timeline.header
        self._name("process_name", pid, 0, name=f"{header.name} ({header.host}, pid {header.pid})")
        self._name("process_sort_index", pid, 0, sort_index=pid)
        tid = 0
        for track in tracks:
            dealt = [0] * len(track.boxes) if track.nests else lanes([box[:2] for box in track.boxes])
            for lane in range(max(dealt) + 1):
                tid += 1
                self._name("thread_name", pid, tid, name=f"{track.name} {lane}" if lane else track.name)
                self._name("thread_sort_index", pid, tid, sort_index=tid)
            first = tid - max(dealt)
            for box, lane in zip(track.boxes, dealt):
                self._box(track.category, box, pid, first + lane)
        for count in timeline.counts:
            name, args = f"in flight to {header.name_of(count.peer)}", {"bytes": count.num_bytes}
            self._add("C", name, at=count.at, cat="window", pid=pid, tid=0, args=args)

    def _box(self, category: str, box: Box, pid: int, tid: int) -> None:
        if box.record is not None:
            self._tids[id(box.record)] = tid
        dur = (box.until - box.since) / 1000
        self._add("X", box.name, at=box.since, cat=category, pid=pid, tid=tid, dur=dur, args=box.args)

    def _name(self, what: str, pid: int, tid: int, **args: Any) -> None:
        self._names.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})

    def _add(self, ph: str, name: str, *, at: int, **more: Any) -> None:
        self._events.append({"ph": ph, "name": name, "ts": (at - self._origin) / 1000, **more})

    def draw_arrows(self, job: Mapping[NodeId, tuple[int, Timeline]]) -> None:
        """Draw the way of each run: wire, round, answer."""
        rounds = {
            (each.peer, node, each.run): each
            for node, (_, timeline) in job.items()
            for each in timeline.rounds
        }
        for node, (pid, timeline) in job.items():
            answer_to = _answers(timeline)
            for wire in timeline.wires:
                place = rounds.get((node, wire.peer, wire.run))
                answer = answer_to(wire)
                steps: list[tuple[int, _Station]] = [(pid, wire)]
                steps += [(job[wire.peer][0], place)] if place else []
                steps += [(pid, answer)] if answer else []
                if len(steps) > 1:
                    self._arrow(steps)

    def _arrow(self, steps: Sequence[tuple[int, _Station]]) -> None:
        self._arrows += 1
        phases = "s" + "t" * (len(steps) - 2) + "f"
        for phase, (pid, record) in zip(phases, steps):
            ends = {"bp": "e"} if phase == "f" else {}  # it leads into the box around it, not to the next
            tid = self._tids[id(record)]
            self._add(phase, "run", at=record.since, cat="way", pid=pid, tid=tid, id=self._arrows, **ends)


def _answers(timeline: Timeline) -> Callable[[Wire], Answer | None]:
    """Return a function that finds the answer to a run: the first that brings its first element."""
    known: dict[tuple[NodeId, int, int], list[tuple[int, int, Answer]]] = {}
    for answer in timeline.answers:
        place = (answer.peer, answer.run.key_id, answer.run.sequence)
        known.setdefault(place, []).append((answer.run.lo, -answer.since, answer))
    for each in known.values():
        each.sort(key=lambda found: found[:2])

    def find(wire: Wire) -> Answer | None:
        candidates = known.get((wire.peer, wire.run.key_id, wire.run.sequence), [])
        place = bisect_right(candidates, (wire.run.lo, math.inf)) - 1
        if place < 0:
            return None
        answer = candidates[place][2]
        return answer if wire.run.lo < max(answer.run.hi, answer.run.lo + 1) else None

    return find
