"""What limits a job, in one sentence: the limit, the evidence for it, and what to try. Pure.

Taken from the figures of the report (``report.py``), which a file of the run holds as well, so that two
runs can be compared.
"""

from __future__ import annotations

from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvstore_mpi.tracing.report import NOTICEABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.tracing.report import Iteration, WorkerReport

STRAGGLER = 1.2
"""A worker that computes as many times as long as the median of the others holds them up."""

IDLE = 0.2
"""Share of an iteration that neither computes nor communicates which is worth a look."""


class Figures(msgspec.Struct, frozen=True):
    """Medians over the iterations of one worker, or of all. Times in milliseconds; shares sum to about 1.

    Attributes:
        name: Of the worker; ``all``.
        iterations: How many there are.
        marked: The script has marks, so that computing is known; otherwise ``compute`` has whatever else
            the script does, and it and ``exposed`` are upper bounds.
        time: Of an iteration.
        low: The first quartile of that.
        high: The third one.
        compute: Share of computing with nothing pending.
        hidden: Share of communication under computing.
        exposed: Share of communication that was waited for.
        other: Share of the rest.
        waited: Of the rest, the share that is marked as waiting.
        computing: Time of it; 0 where it is not known.
        communication: Time that the busiest resource was busy.
        resource: Which that was in most iterations; nothing if none was.
        fits: Share of iterations in which communication fits under the backward pass.
    """

    name: str
    iterations: int
    marked: bool
    time: float
    low: float
    high: float
    compute: float
    hidden: float
    exposed: float
    other: float
    computing: float
    communication: float
    resource: str
    fits: float
    waited: float = 0.0


class Summary(msgspec.Struct, frozen=True):
    """The report of a run, as its file holds it.

    Attributes:
        command: What was run.
        workers: Each that has recorded a whole iteration.
        whole: All their iterations together, if there are any.
        verdict: In one sentence.
    """

    command: str
    workers: list[Figures]
    whole: Figures | None
    verdict: str


class Verdict(NamedTuple):
    """What limits a job, why that is believed, and what to try."""

    limit: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        """Return it as a sentence."""
        return f"this job is limited by {self.limit}: {self.evidence}; {self.advice}"


def summarise(reports: Sequence[WorkerReport], command: str) -> Summary:
    """Return the figures of a run and its verdict."""
    known = [report for report in reports if report.iterations]
    workers = [_figures(each.name, each.marked, each.iterations) for each in known]
    whole = None
    if known:
        iterations = tuple(iteration for report in known for iteration in report.iterations)
        whole = _figures("all", all(report.marked for report in known), iterations)
    return Summary(command, workers, whole, str(judge(workers, whole)) if whole else "nothing was measured")


def _figures(name: str, marked: bool, iterations: Sequence[Iteration]) -> Figures:
    def middle(of: Callable[[Iteration], float]) -> float:
        return median(map(of, iterations))

    times = [each.time / 1e6 for each in iterations]
    low, _, high = quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    resources = [each.resource for each in iterations]
    return Figures(
        name=name,
        iterations=len(iterations),
        marked=marked,
        time=median(times),
        low=low,
        high=high,
        compute=middle(lambda each: each.compute),
        hidden=middle(lambda each: each.hidden),
        exposed=middle(lambda each: each.exposed),
        other=middle(lambda each: each.other),
        computing=middle(lambda each: each.computing) / 1e6,
        communication=middle(lambda each: each.communication) / 1e6,
        resource=max(dict.fromkeys(resources), key=resources.count),
        fits=sum(each.fits for each in iterations) / len(iterations),
        waited=middle(lambda each: each.waited),
    )


def judge(workers: Sequence[Figures], whole: Figures) -> Verdict:
    """Say what limits a job.

    Args:
        workers: Each worker's figures.
        whole: Those of all.
    """
    if not whole.marked:
        return _unmarked(whole)
    return _elsewhere(workers, whole) or _communication(whole)


def _elsewhere(workers: Sequence[Figures], whole: Figures) -> Verdict | None:
    """Say what limits a job that is not communication, if that is so."""
    waited = whole.exposed + whole.waited
    if (slow := _straggler(workers)) is not None and waited > NOTICEABLE:
        others = median(each.computing for each in workers if each is not slow)
        return Verdict(
            slow.name,
            f"it computes for {slow.computing:.1f} ms of an iteration, others for {others:.1f} ms, and "
            f"{waited:.0%} of the time is waited",
            "give it less work or a faster processor, or see what else runs on its host",
        )
    if whole.waited >= max(IDLE, whole.exposed, whole.other / 2):
        return Verdict(
            "waiting, while nothing of the store's is under way",
            f"it takes {whole.waited:.0%} of {whole.time:.1f} ms",
            "see in the trace what is waited for: ranks of one worker wait less for each other with a more "
            "even cut or more micro-batches",
        )
    if whole.other >= max(IDLE, whole.exposed):
        return Verdict(
            "what is neither computing nor communicating",
            f"it takes {whole.other:.0%} of {whole.time:.1f} ms",
            "load data in the background, and mark what else computes with annotate",
        )
    if whole.exposed <= NOTICEABLE:
        return Verdict(
            "computing",
            f"it takes {whole.compute + whole.hidden:.0%} of {whole.time:.1f} ms, and {whole.exposed:.0%} "
            "waits for communication",
            "faster processors help, a faster network does not",
        )
    return None


def _communication(whole: Figures) -> Verdict:
    """Say what it is about communication that limits a job."""
    if whole.fits > 0.5:  # noqa: PLR2004  in most iterations
        return Verdict(
            "latency, or waiting for other workers",
            f"{whole.exposed:.0%} of {whole.time:.1f} ms is waited, though nothing is busy for longer than "
            f"{whole.communication:.1f} ms",
            "try larger batches or fewer and larger keys, and see in the trace who comes late",
        )
    if whole.communication <= whole.computing:
        return Verdict(
            "the order of communication",
            f"{whole.exposed:.0%} of {whole.time:.1f} ms waits, though {whole.communication:.1f} ms of "
            f"communication would fit under {whole.computing:.1f} ms of computing",
            "let each layer wait for its own weights alone, as docs/tracing.md shows",
        )
    return _busy(whole)


def _unmarked(whole: Figures) -> Verdict:
    if whole.exposed <= NOTICEABLE:
        return Verdict(
            "computing, or whatever else the script does, such as loading data",
            f"communication is pending for {whole.exposed:.0%} of {whole.time:.1f} ms",
            f"a faster network does not help; {_MARK} which of these it is",
        )
    return Verdict(
        f"communication, for at most {whole.exposed:.0%} of the time",
        f"it is pending so long in {whole.time:.1f} ms, and how much of that computing hides is not known",
        _MARK,
    )


_MARK = 'mark computing with annotate("forward") and annotate("backward") to know'


def _straggler(workers: Sequence[Figures]) -> Figures | None:
    if len(workers) < 2:  # noqa: PLR2004  one has nobody to hold up
        return None
    slow = max(workers, key=lambda each: each.computing)
    others = median(each.computing for each in workers if each is not slow)
    return slow if slow.computing >= STRAGGLER * others else None


def _busy(whole: Figures) -> Verdict:
    """Communication takes longer than computing: the busiest resource says what to do."""
    evidence = (
        f"it is busy for {whole.communication:.1f} ms of {whole.time:.1f} ms, and computing takes "
        f"{whole.computing:.1f} ms"
    )
    if whole.resource.endswith("updates"):
        advice = "try more servers (--servers)"
    elif whole.resource == "its collectives":
        advice = "try smaller clients (--clients), or let --collective-profile measure choose how to sum"
    else:
        advice = "try more servers on other hosts, set_optimizer(compress=...), or larger batches"
    return Verdict(whole.resource or "communication", evidence, advice)
