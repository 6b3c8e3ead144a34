"""Where the time of each iteration went: computing, hidden and exposed communication. Pure.

For one worker and one iteration ``[a, b)`` of length T (``iterations.py`` says where it begins), with

- C, when the training thread was computing: inside a mark of the user's,
- P, when communication was *pending*: some operation's gradient was ready and its value not yet there,

the iteration is divided into four shares that sum to 1::

    compute  = |C without P| / T     nothing was under way
    hidden   = |C and P| / T         communication under computing
    exposed  = |P without C| / T     the training thread waited while communication was pending
    other    = the rest              neither: loading data, Python, and what is not marked

Of the rest, what is marked as waiting (for another rank of the worker, say) is known by itself.

Without marks computing cannot be told from waiting, nor from loading data and whatever else the script
does. Then ``compute`` is the time with nothing pending and ``exposed`` that with something, both of them
upper bounds; |C| is not known, and so the ideal is the least that it can be.

The *ideal* is what P3 is about (Jayarajan et al., SysML 2019): overlapped perfectly, an iteration takes as
long as the longer of computing and communication, ``max(|C|, N)``. N is how long the busiest resource that
the worker's values need was busy in the iteration: the link out of one of its client's workers (a run
between sent and received), the link into it (between answered and written), a server (in updates), or the
worker's collectives. The fraction ``max(|C|, N) / T`` of the ideal is reached. A link counts as busy while
a run is on it, so a link that is used badly is not seen here; and the bound leaves out that the first layer
waits for its own weights, which matters when that layer is the largest.

Scheduling can only gain where communication does not fit under the backward pass anyway. Where N is at most
the time of the backward pass (or, if that is not marked, less than ``NEGLIGIBLE`` of the time has anything
pending) it cannot help: the job is *compute-bound*, or, if more than ``NOTICEABLE`` of the time is exposed
all the same, that is latency or waiting for the others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from kvstore_mpi.records import Role
from kvstore_mpi.tracing.intervals import Interval, Intervals, clip, difference, intersection, length, union
from kvstore_mpi.tracing.iterations import (
    boundaries,
    computing,
    computing_backward,
    training_spans,
    waiting_for_others,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.tracing.timeline import Timeline

NEGLIGIBLE, NOTICEABLE = 0.01, 0.05
COMPUTE_BOUND = "compute-bound: scheduling cannot help"
HARDLY_PENDING = "communication is hardly ever pending: scheduling cannot help"
LATENCY_BOUND = (
    "nothing is busy for long, but time is exposed: latency, or waiting for other workers; "
    "scheduling cannot help"
)
HINT = (
    "no marks: computing cannot be told from waiting, loading data or whatever else the script does, so "
    "compute and exposed are at most what is shown; "
    'mark it with kvstore_mpi.annotate("forward") and annotate("backward")'
)

Resources = dict[str, Intervals]
"""When each thing that a worker's values need was busy, by what people call it."""


@dataclass(frozen=True)
class Iteration:
    """One iteration of one worker. Times in nanoseconds; the four shares sum to 1.

    Attributes:
        time: Its length, T.
        compute: Share of computing with nothing pending.
        hidden: Share of communication under computing.
        exposed: Share of communication that the training thread waited for.
        other: Share of the rest.
        waited: Of the rest, the share that is marked as waiting.
        computing: |C|; 0 without marks, where it is not known.
        communication: N.
        resource: What was busy so long, or nothing if nothing was seen to be.
        backward: Time in which gradients were computed, if that is marked.
    """

    time: int
    compute: float
    hidden: float
    exposed: float
    other: float
    computing: int
    communication: int
    resource: str
    backward: int | None
    waited: float = 0.0

    @property
    def fraction(self) -> float | None:
        """The fraction of the ideal that was reached; ``None`` if nothing is known of the ideal."""
        ideal = max(self.computing, self.communication)
        return ideal / self.time if ideal else None

    @property
    def fits(self) -> bool:
        """Communication fits under the backward pass, in whatever order it is sent."""
        if self.backward is not None:
            return self.communication <= self.backward
        return self.hidden + self.exposed <= NEGLIGIBLE


@dataclass(frozen=True)
class WorkerReport:
    """The whole iterations of one worker that its record holds."""

    name: str
    marked: bool
    iterations: tuple[Iteration, ...]


def resources_of(worker: Timeline, timelines: Sequence[Timeline]) -> Resources:
    """Return when that which a worker's values need was busy, in the whole job."""
    busy: Resources = {"its collectives": union((work.since, work.until) for work in worker.work)}
    for timeline in timelines:
        role, header = timeline.node.role, timeline.header
        if header.model_rank != worker.header.model_rank:
            continue  # of another job
        if role is Role.SERVER:
            busy[f"{header.name}'s updates"] = union((work.since, work.until) for work in timeline.work)
        elif role is Role.WORKER and header.client == worker.header.client:
            busy[f"the link out of {header.name}"] = union(
                (wire.since, wire.until) for wire in timeline.wires
            )
            busy[f"the link into {header.name}"] = union((ans.since, ans.until) for ans in timeline.answers)
    return busy


def measure(worker: Timeline, resources: Resources) -> WorkerReport:
    """Measure every whole iteration of a worker."""
    marked = bool(training_spans(worker))
    pending = union((operation.since, operation.until) for operation in worker.operations)
    computes, backwards = computing(worker), computing_backward(worker)
    waits = difference(waiting_for_others(worker), union([*computes, *pending]))
    starts = boundaries(worker)
    iterations = []
    for start, end in itertools.pairwise(starts):
        if start == end:
            continue  # two marks that began at once
        waiting = clip(pending, start, end)
        known = clip(computes, start, end) if marked else difference([(start, end)], waiting)
        back = length(clip(backwards, start, end)) if backwards else None
        waited = length(clip(waits, start, end)) / (end - start)
        iteration = _iteration((start, end), known, waiting, resources)
        computed = iteration.computing if marked else 0
        iterations.append(replace(iteration, computing=computed, backward=back, waited=waited))
    return WorkerReport(worker.header.name, marked, tuple(iterations))


def _iteration(whole: Interval, known: Intervals, waiting: Intervals, resources: Resources) -> Iteration:
    """Divide one iteration into its shares and find what was busiest in it."""
    time = whole[1] - whole[0]
    computed, pending, hidden = length(known), length(waiting), length(intersection(known, waiting))
    busy = {name: length(clip(intervals, *whole)) for name, intervals in resources.items()}
    resource = max(busy, key=busy.__getitem__, default="")
    longest = busy.get(resource, 0)
    return Iteration(
        time=time,
        compute=(computed - hidden) / time,
        hidden=hidden / time,
        exposed=(pending - hidden) / time,
        other=(time - computed - pending + hidden) / time,
        computing=computed,
        communication=longest,
        resource=resource if longest else "",
        backward=None,
    )


# --- as text ---------------------------------------------------------------------------------------

_TITLES = ("worker", "iterations", "ms", "compute", "hidden", "exposed", "other", "of ideal")


def render(reports: Sequence[WorkerReport]) -> str:
    """Return the report of a job: a line for each worker, one for all of them, and the verdict."""
    whole = [report for report in reports if report.iterations]
    if not whole:
        return "report: no worker has recorded a whole iteration, from one push of a key to the next"
    rows = [_TITLES, *(_row(report) for report in whole)]
    everything = WorkerReport(
        "all", all(r.marked for r in whole), tuple(i for r in whole for i in r.iterations)
    )
    if len(whole) > 1:
        rows.append(_row(everything))
    lines = ["medians of the iterations (docs/tracing.md says what is counted):", *_aligned(rows)]
    lines += [_ideal(everything), _verdict(everything)]
    return "\n".join(lines + ([] if everything.marked else [HINT]))


def _row(report: WorkerReport) -> tuple[str, ...]:
    """Return the medians of a worker as the cells of a line; without marks they are bounds."""
    least, most = ("", "") if report.marked else (">= ", "<= ")

    def share(of: Callable[[Iteration], float]) -> str:
        return f"{median(map(of, report.iterations)):.1%}"

    return (
        report.name,
        str(len(report.iterations)),
        f"{_ms(report, lambda each: each.time):.1f}",
        most + share(lambda each: each.compute),
        share(lambda each: each.hidden) if report.marked else "?",
        most + share(lambda each: each.exposed),
        share(lambda each: each.other) if report.marked else "?",
        _fraction(report, least),
    )


def _fraction(report: WorkerReport, least: str) -> str:
    known = [each.fraction for each in report.iterations if each.fraction is not None]
    return f"{least}{median(known):.2f}" if known else "?"


def _ms(report: WorkerReport, of: Callable[[Iteration], int]) -> float:
    return median(map(of, report.iterations)) / 1e6


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Pad cells to columns: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        )
        for row in rows
    ]


def _ideal(report: WorkerReport) -> str:
    """Say what the ideal is made of."""
    resource = _limit(report)
    computed = f"{_ms(report, lambda each: each.computing):.1f} ms" if report.marked else "not known"
    return (
        f"the ideal is the longer of computing, {computed}, and communication, "
        f"{_ms(report, lambda each: each.communication):.1f} ms" + (f" on {resource}" if resource else "")
    )


def _limit(report: WorkerReport) -> str:
    """Return the resource that was the busiest in most iterations; the first of several."""
    names = [each.resource for each in report.iterations]
    return max(dict.fromkeys(names), key=names.count)


def _verdict(report: WorkerReport) -> str:
    """Say whether an order of sending can help."""
    iterations = report.iterations
    if sum(each.fits for each in iterations) * 2 > len(iterations):
        exposed = median(each.exposed for each in iterations)
        if not report.marked:
            return HARDLY_PENDING
        return LATENCY_BOUND if exposed > NOTICEABLE else COMPUTE_BOUND
    if not report.marked:
        return "whether scheduling helps cannot be seen without marks"
    if all(each.backward is None for each in iterations):
        return "whether scheduling helps cannot be seen without marks of the backward pass"
    if _ms(report, lambda each: each.communication) > _ms(report, lambda each: each.computing):
        return (
            f"communication-bound: at best all computing is hidden under it; {_limit(report)} is the limit"
        )
    return "communication takes longer than the backward pass: scheduling counts"
