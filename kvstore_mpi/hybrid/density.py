"""How many rows of a table a step touches: measured, or expected of ids that follow Zipf's law.

Ranks count distinct rows, as whole numbers: sums of these are the same in any order, so that all ranks come
to the same density. What several ranks touch together is measured and not computed from what one touches:
they all touch the frequent rows, so that their union is smaller than if rows were drawn alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

WINDOW_STEPS = 20
"""Steps over which a density is measured before a route is decided, or looked at again."""

_EXACT = 4096
_BIN_GROWTH = 1.01


class Density(NamedTuple):
    """The shares of a table's rows that are touched in a step.

    Attributes:
        rank: By one rank.
        machine: By any rank of one machine; the ranks of a machine are merged before anything leaves it.
        job: By any rank of the job.
    """

    rank: float
    machine: float
    job: float


DENSE = Density(1.0, 1.0, 1.0)


class RowCounts(NamedTuple):
    """Distinct rows, added up over steps and over the ranks that count them.

    A rank reports 0 for a number that it does not know, or that another one reports: their sums over all
    ranks are what ``density_of`` takes.

    Attributes:
        rank: Of this rank.
        machine: Of the union of a machine's ranks; one of them reports it.
        job: Of the union of all ranks; one of them reports it.
    """

    rank: int
    machine: int
    job: int


class DensityWindow:
    """What one rank counts of one table, from one decision to the next.

    Attributes:
        steps: Counted so far.
    """

    def __init__(self, length: int = WINDOW_STEPS) -> None:
        """Start without steps; a window is full after ``length`` of them."""
        self.steps = 0
        self._length = length
        self._counts = RowCounts(0, 0, 0)

    def add(self, rank: int, machine: int = 0, job: int = 0) -> bool:
        """Count the distinct rows of a step, as in ``RowCounts``; return whether the window is full."""
        self.steps += 1
        before = self._counts
        self._counts = RowCounts(before.rank + rank, before.machine + machine, before.job + job)
        return self.steps >= self._length

    def take(self) -> RowCounts:
        """Return what has been counted, and start the next window."""
        counts, self.steps, self._counts = self._counts, 0, RowCounts(0, 0, 0)
        return counts


def density_of(counts: RowCounts, steps: int, rows: int, *, machines: int, ranks: int) -> Density:
    """Return the density that counts of all ranks amount to.

    Where nobody has counted a union, it counts as what its members have touched, or all rows if that is
    less: this is the most that it can be.

    Args:
        counts: Added up over all ranks.
        steps: Of each rank; at least 1.
        rows: Of the table.
        machines: Number of machines that have ranks.
        ranks: Ranks on each machine.
    """
    if not rows:
        return Density(0.0, 0.0, 0.0)
    whole = steps * rows
    rank = counts.rank / (whole * machines * ranks)
    machine = counts.machine / (whole * machines) if counts.machine else min(1.0, rank * ranks)
    job = counts.job / whole if counts.job else min(1.0, machine * machines)
    return Density(rank, machine, job)


def zipf_density(
    rows: int, draws: int, *, ranks: int = 1, machines: int = 1, exponent: float = 1.0
) -> Density:
    """Return the density to be expected of ids whose frequencies follow Zipf's law.

    For predictions before anything runs; routes are decided by what is measured.

    Args:
        rows: Of the table.
        draws: Ids of one rank in a step, with repetitions.
        ranks: On each machine.
        machines: Number of machines.
        exponent: The i-th id is drawn with a probability in proportion to i ** -exponent.
    """
    sizes, chances = _zipf_bins(rows, exponent)

    def touched(ids: int) -> float:
        with np.errstate(divide="ignore"):  # of one row the chance is 1, and the logarithm minus infinity
            return float(-np.expm1(ids * np.log1p(-chances)) @ sizes) / rows

    return Density(touched(draws), touched(draws * ranks), touched(draws * ranks * machines))


def _zipf_bins(rows: int, exponent: float) -> tuple[Array, Array]:
    """Return bins of ids with nearly equal chances: how many ids each has, and the mean chance of one.

    The first ids each have a bin; a hundred million rows then make about a thousand more.
    """
    edges = [*range(min(rows, _EXACT) + 1)]
    while edges[-1] < rows:
        edges.append(min(rows, int(edges[-1] * _BIN_GROWTH) + 1))
    bounds = np.array(edges, np.float64)
    sizes = np.diff(bounds)
    chances = ((bounds[:-1] + bounds[1:] + 1) / 2) ** -exponent
    chances /= chances @ sizes
    return sizes, chances
