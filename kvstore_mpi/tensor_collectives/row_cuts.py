"""Where ranks cut the rows of a table to merge them before they spread them, and whether that pays.

Every rank has some rows. Sent to all others as they are, the rows of N ranks cross each link N - 1 times.
Or each rank first merges a range of the ids, of which every other rank sends it a share of its rows, and
then sends the union to all: fewer rows cross the links, if many ids are those of several ranks.

Pure: what is decided follows from numbers that all ranks have, so that all decide alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.choice import SMALL_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]


def merges_first(num_rows: int, row_bytes: int, ranks: int, overlap: float) -> bool:
    """Return whether fewer bytes travel if rows are merged before they are spread.

    Args:
        num_rows: Of all ranks together.
        row_bytes: Of one row.
        ranks: Number of ranks.
        overlap: Rows of the union for each row of a rank, as far as is known: 1 if no id repeats.
    """
    # With K rows and a union of U, each rank sends (N - 1) / N times K as they are, and otherwise
    # (N - 1) / N times (K + U) / N: which is less if U < (N - 1) K. Never among two ranks.
    return num_rows * row_bytes > SMALL_BYTES * ranks and overlap < (ranks - 1) / ranks


def sample(ids: Array, ranks: int) -> Array:
    """Return what others are told of a rank's ids: how many, and those that cut them into equal parts."""
    told = np.zeros(ranks, np.int64)
    told[0] = ids.size
    if ids.size:
        told[1:] = ids[np.arange(1, ranks) * ids.size // ranks]
    return told


def cuts(samples: Sequence[Array], num_rows: int) -> Array:
    """Return the ids at which ranges for each rank begin, and the end of the last one.

    Not by number alone: ids of words, say, come in the order of their frequency.

    Args:
        samples: Of all ranks, in their order.
        num_rows: Of the table.
    """
    ranks = len(samples)
    weights = np.repeat([each[0] for each in samples], ranks - 1)
    marks = np.concatenate([each[1:] for each in samples])
    order = np.argsort(marks, kind="stable")
    below = np.cumsum(weights[order])
    wanted = np.arange(1, ranks) * weights.sum() // ranks
    inner = marks[order][np.searchsorted(below, wanted)]
    return np.concatenate([[0], inner, [num_rows]])
