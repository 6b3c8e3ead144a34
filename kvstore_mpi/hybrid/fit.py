"""Fits t(P) = th0 + th1 / P + th2 P to measured step times, as Parallax does, with no term negative.

th0 is what does not depend on the number of pieces P; th1 / P is what pieces do beside each other, such as
sums and updates; th2 P is what each piece costs for itself. Only the four operations of arithmetic and
square roots are used, which give the same bits on every machine. Pure.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MAD_TO_DEVIATION = 1.4826
_MEDIAN_ERROR = 1.2533
_LEAST_ERROR = 1e-3
"""Of a time: clocks and the curve are not better; one sample without noise must not outweigh the rest."""

_CLOCK_S = 1e-9
"""No time is known better than to a nanosecond, nor is one without any error."""

_DEPENDENT = 1e-12
"""Of a column's square: what is left of it beside the others is then rounding."""


class Sample(NamedTuple):
    """What a step took with some number of pieces.

    Attributes:
        pieces: Their number.
        seconds: The median.
        error: The standard error of that median, in seconds.
    """

    pieces: int
    seconds: float
    error: float


class Curve(NamedTuple):
    """A fitted t(P)."""

    constant: float
    inverse: float
    linear: float

    def seconds(self, pieces: int) -> float:
        """Return the time that the curve gives for some number of pieces."""
        return self.constant + self.inverse / pieces + self.linear * pieces


def median(values: Iterable[float]) -> float:
    """Return the median; of an even number, the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def sample_of(pieces: int, seconds: Sequence[float]) -> Sample:
    """Return the sample that the times of some steps make; at least one.

    The error follows from the median of the deviations, so that a step in which the machine did something
    else makes neither the time longer nor the error larger.
    """
    middle = median(seconds)
    deviation = _MAD_TO_DEVIATION * median(abs(each - middle) for each in seconds)
    error = _MEDIAN_ERROR * deviation / math.sqrt(len(seconds))
    return Sample(pieces, middle, max(error, _LEAST_ERROR * middle, _CLOCK_S))


def beside(tried: Sample, before: Sample, after: Sample, first: Sample) -> Sample:
    """Return what a sample would have been when ``first`` was made, of the same kind as its neighbours.

    Whatever else a machine does makes steps longer while it does it, whichever their number of pieces. So a
    sample is taken in proportion to those made just before and just after it. Half of what these differ by
    is an error: nobody knows how much of the change came before the sample.
    """
    middle = (before.seconds + after.seconds) / 2
    if not middle:
        return tried
    scale = first.seconds / middle
    of_middle = before.error * before.error + after.error * after.error
    of_middle = (of_middle + (before.seconds - after.seconds) ** 2) / (4 * middle * middle)
    error = math.sqrt(tried.error * tried.error + tried.seconds * tried.seconds * of_middle)
    return Sample(tried.pieces, scale * tried.seconds, max(scale * error, _CLOCK_S))


def is_slower(sample: Sample, best: Sample, errors: float = 2.0) -> bool:
    """Return whether a sample is slower than another by more than ``errors`` standard errors of both."""
    noise = math.sqrt(sample.error * sample.error + best.error * best.error)
    return sample.seconds - best.seconds > errors * noise


def fit(samples: Sequence[Sample]) -> Curve:
    """Return the curve with the least sum of squared differences, each in units of its sample's error.

    Among all choices of terms that may differ from 0, the best whose factors are not negative is the
    optimum under that condition; there are only seven.
    """
    # Shorter ones come first: of curves that fit equally well, min() takes the one with the fewest terms.
    curves = (_solve(samples, terms) for number in (1, 2, 3) for terms in combinations(range(3), number))
    return min((curve for curve in curves if curve is not None), key=lambda curve: _misfit(samples, curve))


def _misfit(samples: Sequence[Sample], curve: Curve) -> float:
    return math.fsum(((curve.seconds(each.pieces) - each.seconds) / each.error) ** 2 for each in samples)


def _solve(samples: Sequence[Sample], terms: Sequence[int]) -> Curve | None:
    """Fit some of the terms, by Gram and Schmidt; nothing if they cannot be told apart, or are negative.

    Not by a library's least squares, whose bits depend on the processor: ranks might come to different
    numbers of pieces.
    """
    columns = [[_term(index, each.pieces) / each.error for each in samples] for index in terms]
    rest = [each.seconds / each.error for each in samples]
    bases: list[list[float]] = []
    mixed: list[list[float]] = []
    shares = []
    for column in columns:
        base, factors = list(column), []
        for other in bases:
            factor = _dot(column, other) / _dot(other, other)
            base = [one - factor * two for one, two in zip(base, other)]
            factors.append(factor)
        if _dot(base, base) <= _DEPENDENT * _dot(column, column):
            return None
        shares.append(_dot(rest, base) / _dot(base, base))
        bases.append(base)
        mixed.append(factors)
    values = [0.0, 0.0, 0.0]
    for position in reversed(range(len(terms))):
        later = range(position + 1, len(terms))
        values[terms[position]] = shares[position] - math.fsum(
            mixed[each][position] * values[terms[each]] for each in later
        )
    return Curve(*values) if min(values) >= 0 else None


def _term(index: int, pieces: int) -> float:
    return (1.0, 1 / pieces, float(pieces))[index]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other))
