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

LATER_STEPS = 200
"""The same once a route has been decided: what training touches changes slowly."""

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


class Counted(NamedTuple):
    """What was counted of a table, in sums over the ranks of a client.

    Attributes:
        pushes: Of each rank.
        rank: Distinct rows of each rank's pushes.
        client: Distinct rows of what the ranks push together.
        job: Rows that servers said had changed.
        sent: Bytes to servers.
        received: Bytes from servers.
    """

    pushes: float
    rank: float
    client: float
    job: float
    sent: float
    received: float


def ends_window(steps: int) -> bool:
    """Return whether the density of a table is looked at after this number of steps."""
    return steps >= WINDOW_STEPS and (steps - WINDOW_STEPS) % LATER_STEPS == 0


def density_of(counted: Counted, rows: int, *, ranks: int, apart: bool) -> Density:
    """Return the density that counts amount to.

    Args:
        counted: Of a client; with at least one push.
        rows: Of the table; at least 1.
        ranks: Workers in each client.
        apart: Each of them counts as a machine; if not, their client does.
    """
    whole = counted.pushes * rows
    rank, client = counted.rank / (whole * ranks), counted.client / whole
    # Who is sent no changes, as of a row-sparse weight, knows of no more than its client has pushed.
    return Density(rank, rank if apart else client, max(client, counted.job / whole))


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
