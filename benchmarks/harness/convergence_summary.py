"""Tables of how fast the modes reached the goal. This file must not train, read or write anything."""

from __future__ import annotations

from statistics import fmean, median, quantiles, stdev
from typing import TYPE_CHECKING

from .convergence_study import GOAL, Outcome
from .summary import align

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEAD = (
    "mode",
    "lr",
    "interval",
    f"time to {GOAL:.0%}",
    "quartiles",
    "reached",
    "accuracy",
    "steps",
    "speed",
)
NEVER = float("inf")


def times_of(outcome: Outcome) -> list[float]:
    """Return the time to the goal on each seed, infinite where it was not reached."""
    return [NEVER if time is None else time for time in outcome.times]


def speed_up(slower: Outcome, faster: Outcome) -> tuple[float, float, float] | None:
    """Return least, median and greatest ratio of the times to the goal, seed by seed.

    Where the slower one never reached the goal the ratio is infinite; ``None`` where the faster one ever
    failed to.
    """
    if None in faster.times:
        return None
    ratios = [slow / fast for slow, fast in zip(times_of(slower), times_of(faster))]
    return min(ratios), median(ratios), max(ratios)


def table(outcomes: Sequence[Outcome], reference: str) -> str:
    """Return one scenario's table, the last column relative to a mode."""
    base = {outcome.mode: outcome for outcome in outcomes}.get(reference)
    return align([HEAD, *(_row(outcome, base) for outcome in outcomes)])


def _row(outcome: Outcome, base: Outcome | None) -> tuple[str, ...]:
    times = times_of(outcome)
    low, _, high = quantiles(times, n=4, method="inclusive") if NEVER not in times else (0.0, 0.0, 0.0)
    reached = sum(time < NEVER for time in times)
    ratio = None if base is None else speed_up(base, outcome)
    return (
        outcome.mode,
        f"{outcome.setting.lr:g}{' (edge)' if outcome.at_edge else ''}",
        str(outcome.setting.interval),
        _number(median(times)),
        f"{low:.0f} - {high:.0f}" if high else "",
        f"{reached}/{len(times)}",
        f"{fmean(outcome.final):.3f} +- {stdev(outcome.final):.3f}",
        f"{fmean(outcome.steps):.0f}",
        "" if ratio is None else f"{ratio[1]:.2f} ({ratio[0]:.2f} - {ratio[2]:.2f})",
    )


def _number(value: float) -> str:
    return "never" if value == NEVER else f"{value:.0f}"


def verdicts(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Say whether a loosely coupled mode is twice as fast as both modes that push gradients."""
    lines = []
    for fast in ("mpi-esgd", "mpi-diloco", "localsgd"):
        for slow in ("mpi-sgd", "mpi-asgd", "pure-mpi"):
            if fast in outcomes and slow in outcomes:
                ratio = speed_up(outcomes[slow], outcomes[fast])
                if ratio is not None:
                    lines.append(
                        f"{fast} reaches {GOAL:.0%} {ratio[1]:.2f} times as fast as {slow} "
                        f"({ratio[0]:.2f} to {ratio[2]:.2f} over the seeds)"
                    )
    return lines
