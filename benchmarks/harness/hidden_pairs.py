"""Pairs of ids of which some go together: what two tables can learn. It must not know who learns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

IDS, HIDDEN = 30_000, 4

Pairs = tuple[Any, Any, Any]
"""Ids on the left, ids on the right, and whether they go together."""


def pairs(seed: int, rank: int, number: int) -> Iterator[Pairs]:
    """Yield batches without end, whose ids are drawn by Zipf's law.

    Args:
        seed: Of the hidden vectors: what goes together is the same for all ranks.
        rank: Each has pairs of its own.
        number: Of pairs in a batch.
    """
    hidden = np.random.default_rng(seed).normal(size=(2, IDS, HIDDEN))
    chances = 1 / np.arange(1, IDS + 1)
    ends = np.cumsum(chances / chances.sum())
    rng = np.random.default_rng((seed, rank + 1))
    while True:
        left, right = np.minimum(np.searchsorted(ends, rng.random((2, number))), IDS - 1)
        together = (hidden[0, left] * hidden[1, right]).sum(axis=1) > 0
        yield left, right, together
