"""Which rank merges which rows of a table before they are spread, and whether that pays.

Every rank has some rows. Sent to all others as they are, the rows of N ranks cross each link N - 1 times.
Or each rank first merges some of the ids, of which every other rank sends it its rows, and then sends the
union to all: fewer rows cross the links, if many ids are those of several ranks.

Pure: what is decided follows from numbers that all ranks have, so that all decide alike.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.choice import SMALL_BYTES
from kvstore_mpi.tensor_collectives.row_blocks import Share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.records import Rows

Array = np.ndarray[Any, Any]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: multiples of it are spread evenly, of every id as of every tenth."""

_HALF = np.uint64(32)


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


def places_of(ids: Array, ranks: int) -> Array:
    """Return which of the ranks merges the row of each id, as its place among them.

    Not a range each. Ids of words, say, come in the order of their frequency: whoever had the last range
    would merge rows that are of one rank each, and send up to twice as many to all as the mean.
    """
    mixed = ids.astype(np.uint64) * _GOLDEN >> _HALF
    return (mixed * np.uint64(ranks) >> _HALF).astype(np.uint16)


def deal(rows: Rows, places: Array, receivers: Sequence[int]) -> list[Share]:
    """Return the rows of each receiver, ascending.

    Args:
        rows: Of all receivers.
        places: To which of them each row goes, uint16.
        receivers: All numbers that may be among the places, ascending.
    """
    # Numbers this short are sorted by their digits, four times faster than others.
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places, [*receivers, receivers[-1] + 1], sorter=order).tolist()
    return [Share(rows, order[lo:hi]) for lo, hi in itertools.pairwise(bounds)]
