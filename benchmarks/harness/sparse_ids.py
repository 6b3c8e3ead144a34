"""Which rows a rank touches in a step: drawn by a seed, from which everybody knows the rows of all."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def draw(rows: int, touched: int, exponent: float, *seed: int) -> Array:
    """Return some rows of a table, ascending and without repetitions.

    Each row is drawn with a probability that falls as Zipf's law with the exponent says; with 0 all are
    equally likely.

    Args:
        rows: Rows of the table.
        touched: Rows to draw.
        exponent: Of Zipf's law.
        seed: Names the drawing.
    """
    if touched >= rows:
        return np.arange(rows)
    # The least of such exponential numbers are a sample without replacement by these weights.
    waits = np.random.default_rng(seed).standard_exponential(rows) * _waiting(rows, exponent)
    return np.sort(np.argpartition(waits, touched)[:touched])


@lru_cache
def _waiting(rows: int, exponent: float) -> Array:
    return np.arange(1, rows + 1, dtype=np.float64) ** exponent


def expected_rows(rows: int, lookups: int, exponent: float) -> int:
    """Return how many different rows a number of lookups is expected to touch."""
    weights = 1 / _waiting(rows, exponent)
    return max(1, round(float(-np.expm1(lookups * np.log1p(-weights / weights.sum())).sum())))


def times_drawn(ids: Array, others: list[Array]) -> Array:
    """Return in how many of the drawings each of the ids is."""
    return np.sum([np.isin(ids, other, assume_unique=True) for other in others], axis=0)
