"""Where one iteration of a worker ends and the next begins, and what in it was computing. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvstore_mpi.tracing.intervals import Intervals, difference, intersection, union

if TYPE_CHECKING:
    from kvstore_mpi.tracing.events import Span
    from kvstore_mpi.tracing.timeline import Timeline

FORWARD, BACKWARD, WAIT, ITERATION = "forward", "backward", "wait", "iteration"
"""First words of marks that mean something; see ``annotation.annotate``."""


def kind_of(name: str) -> str:
    """Return the word of a mark's name that counts."""
    return name.partition(" ")[0]


def training_spans(timeline: Timeline) -> list[Span]:
    """Return the user's marks on the thread that trains: the one with the first forward, or the first."""
    threads = [span.thread for span in timeline.spans if kind_of(span.name) == FORWARD]
    threads += [span.thread for span in timeline.spans]
    return [span for span in timeline.spans if span.thread == threads[0]]


def boundaries(timeline: Timeline) -> list[int]:
    """Return when iterations begin, in order of time; the last one only ends the one before it.

    With marks, an iteration begins with each ``iteration``, or without those with the first ``forward``
    after a ``backward``, so that each layer may have a mark of its own; where nothing is marked
    ``backward``, with each ``forward``. Without marks, it begins whenever the worker pushes the first key
    again: the first of those that it pushes more than once.
    """
    marks = [(kind_of(span.name), span.since) for span in training_spans(timeline)]
    if any(kind == ITERATION for kind, _ in marks):
        return [since for kind, since in marks if kind == ITERATION]
    passes = [mark for mark in marks if mark[0] in (FORWARD, BACKWARD)]
    if any(kind == FORWARD for kind, _ in passes):
        both = any(kind == BACKWARD for kind, _ in passes)
        before = [BACKWARD, *(kind for kind, _ in passes)]
        return [
            since
            for (kind, since), last in zip(passes, before)
            if kind == FORWARD and (last == BACKWARD or not both)
        ]
    pushes = [operation for operation in timeline.operations if operation.sequence]
    times = Counter((push.store, push.key) for push in pushes)
    first = next(((push.store, push.key) for push in pushes if times[push.store, push.key] > 1), None)
    return [push.since for push in pushes if (push.store, push.key) == first]


def computing(timeline: Timeline) -> Intervals:
    """Return when the training thread was computing: inside a mark, and not inside one of a ``wait``."""
    spans = training_spans(timeline)
    marked = union(
        (span.since, span.until) for span in spans if kind_of(span.name) not in (WAIT, ITERATION)
    )
    return difference(marked, waiting_for_others(timeline))


def waiting_for_others(timeline: Timeline) -> Intervals:
    """Return when the training thread was inside a ``wait``."""
    spans = training_spans(timeline)
    return union((span.since, span.until) for span in spans if kind_of(span.name) == WAIT)


def computing_backward(timeline: Timeline) -> Intervals:
    """Return when the training thread was computing gradients."""
    spans = training_spans(timeline)
    marked = union((span.since, span.until) for span in spans if kind_of(span.name) == BACKWARD)
    return intersection(marked, computing(timeline))
