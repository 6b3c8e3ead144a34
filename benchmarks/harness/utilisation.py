"""How busy a link was: counters read over time, turned into bytes per bin and shares.

Pure; ``sampler.py`` reads the counters.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

IDLE = 0.05
BUSY = 0.5
"""Below and above these shares of its rate a bin counts as idle and as busy."""

Sample = tuple[float, int, int]
"""Seconds of the machine's monotonic clock, and bytes sent and received until then."""


@dataclass(frozen=True)
class Bins:
    """Bytes in bins of equal width.

    Attributes:
        width_s: Width of a bin.
        sent: Bytes out of the host.
        received: Bytes into the host.
    """

    width_s: float
    sent: tuple[float, ...]
    received: tuple[float, ...]


@dataclass(frozen=True)
class Shares:
    """How well a link was used, all as shares.

    Attributes:
        mean_sent: Mean rate out, of the rate of the link.
        mean_received: Mean rate in.
        idle_sent: Bins with hardly anything out.
        idle_received: Bins with hardly anything in.
        both_busy: Bins with much in both directions.
    """

    mean_sent: float
    mean_received: float
    idle_sent: float
    idle_received: float
    both_busy: float


def bins_between(samples: Sequence[Sample], begin_s: float, end_s: float, width_s: float) -> Bins:
    """Return the bytes of each whole bin of a span of time.

    Samples come late now and then; a counter is taken to grow evenly between two of them.

    Args:
        samples: At least two, in order of time, from before the span until after it.
        begin_s: Begin of the span.
        end_s: Its end.
        width_s: Width of a bin.
    """
    count = int((end_s - begin_s) / width_s + 1e-9)
    edges = [begin_s + index * width_s for index in range(count + 1)]
    times, sent, received = zip(*samples)
    return Bins(width_s, _growth(times, sent, edges), _growth(times, received, edges))


def over_steps(
    samples: Sequence[Sample], marks: Sequence[float], parts: int
) -> tuple[list[float], list[float]]:
    """Return what was sent and received in each part of a step, in bytes a second: medians of all steps.

    Args:
        samples: At least two, in order of time, from before the first step until after the last.
        marks: When each step began, and the last one ended.
        parts: Into which each step is cut, all of a length.
    """
    steps = []
    for begin, end in itertools.pairwise(marks):
        bins = bins_between(samples, begin, end, (end - begin) / parts)
        steps.append([[count / bins.width_s for count in each] for each in (bins.sent, bins.received)])
    sent, received = ([median(part) for part in zip(*each)] for each in zip(*steps))
    return sent, received


def _growth(times: Sequence[float], counter: Sequence[int], edges: Sequence[float]) -> tuple[float, ...]:
    """Return by how much a counter grew between each two edges."""
    totals = [_at(times, counter, edge) for edge in edges]
    return tuple(after - before for before, after in itertools.pairwise(totals))


def _at(times: Sequence[float], counter: Sequence[int], time_s: float) -> float:
    """Return a counter at a moment."""
    after = min(max(bisect_right(times, time_s), 1), len(times) - 1)
    share = (time_s - times[after - 1]) / (times[after] - times[after - 1])
    return counter[after - 1] + share * (counter[after] - counter[after - 1])


def shares_of(bins: Bins, bits_per_s: float) -> Shares:
    """Return how well a link of this rate was used."""
    full = bits_per_s / 8 * bins.width_s
    sent = [count / full for count in bins.sent]
    received = [count / full for count in bins.received]
    number = len(sent)
    return Shares(
        sum(sent) / number,
        sum(received) / number,
        sum(share < IDLE for share in sent) / number,
        sum(share < IDLE for share in received) / number,
        sum(out > BUSY and into > BUSY for out, into in zip(sent, received)) / number,
    )
