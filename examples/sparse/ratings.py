"""MovieLens-100k: who rated what, cut for training and testing.

Knows nothing of MXNet and of key-value stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import wheel_data
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

Numbers = NDArray[np.int64]
OTHERS = 99
"""Items that a user has not rated, among which the one that is held out is to be found."""


class Ratings(NamedTuple):
    """Who rated what.

    Attributes:
        users: Who, for each rating to train on.
        items: What.
        rated: Whether a user has rated an item, held out or not.
        candidates: For each user the item that was rated last, which is held out, and ``OTHERS`` others.
    """

    users: Numbers
    items: Numbers
    rated: NDArray[np.bool_]
    candidates: Numbers


def load() -> Ratings:
    """Return the ratings; the same ones on every call."""
    [path] = wheel_data.unpack(wheel_data.MOVIELENS, "recbole/dataset_example/ml-100k/ml-100k.inter")
    return cut(*read(path))


def read(path: Path) -> tuple[Numbers, Numbers]:
    """Return user and item, numbered from 0 on, of each rating, in the order of time."""
    fields = np.loadtxt(path, delimiter="\t", skiprows=1, usecols=(0, 1, 3), dtype=np.int64)
    fields = fields[np.lexsort((fields[:, 1], fields[:, 2]))]
    return np.unique(fields[:, 0], return_inverse=True)[1], np.unique(fields[:, 1], return_inverse=True)[1]


def cut(users: Numbers, items: Numbers) -> Ratings:
    """Hold out the last rating of each user."""
    rng = np.random.default_rng(0)
    rated = np.zeros((users.max() + 1, items.max() + 1), bool)
    rated[users, items] = True
    last = np.zeros(len(rated), np.int64)
    last[users] = np.arange(len(users))
    others = [rng.choice(np.flatnonzero(~row), OTHERS, replace=False) for row in rated]
    train = np.ones(len(users), bool)
    train[last] = False
    return Ratings(users[train], items[train], rated, np.column_stack([items[last], others]))


def draw(ratings: Ratings, negatives: int, rng: np.random.Generator) -> tuple[Numbers, Numbers, Any]:
    """Return users, items and whether they belong together, in random order.

    Each rating comes with ``negatives`` other items for its user, of which a few are rated, too: there is
    only implicit feedback.
    """
    count = len(ratings.users)
    users = np.tile(ratings.users, 1 + negatives)
    drawn = rng.integers(ratings.rated.shape[1], size=negatives * count)
    items = np.concatenate([ratings.items, drawn])
    labels = np.repeat([1.0, 0.0], [count, negatives * count]).astype(np.float32)
    order = rng.permutation(len(users))
    return users[order], items[order], labels[order]


def hit_rate(scores: NDArray[np.float32], best: int = 10) -> float:
    """Return for how many users the item that is held out is among the best; scores as ``candidates``."""
    return float(np.mean((scores[:, 1:] >= scores[:, :1]).sum(axis=1) < best))


def auc(scores: NDArray[np.float32]) -> float:
    """Return the mean share of the others that have a lower score than the item that is held out."""
    lower, equal = scores[:, 1:] < scores[:, :1], scores[:, 1:] == scores[:, :1]
    return float(np.mean(lower + equal / 2))
