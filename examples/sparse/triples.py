"""Knowledge graphs as triples of numbers, and how well links are found.

Knows nothing of MXNet and of key-value stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import wheel_data
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

GRAPHS = ("umls", "kinships")
"""Notions of medicine, and who is what to whom in an Alyawarra tribe."""

Numbers = NDArray[np.int64]
Scores = Callable[[Numbers], NDArray[np.float32]]
"""Takes pairs of an entity and a relation; returns for each the scores of all entities as its tail."""


class Graph(NamedTuple):
    """Triples of head, relation and tail.

    Attributes:
        train: The triples to train on, each in both directions; the second has a relation of its own.
        test: Those to find, in both directions as well.
        known: All triples, those to find included, in both directions.
        num_entities: Heads and tails are numbers less than this.
        num_relations: Relations are numbers less than this, those of the other direction included.
    """

    train: Numbers
    test: Numbers
    known: Numbers
    num_entities: int
    num_relations: int


def load(name: str) -> Graph:
    """Return one of the graphs; the same numbers on every call."""
    files = (f"pykeen/datasets/{name}/{part}.txt" for part in ("train", "valid", "test"))
    return number(*(read(path) for path in wheel_data.unpack(wheel_data.GRAPHS, *files)))


def read(path: Path) -> list[list[str]]:
    """Return head, relation and tail of each line."""
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def number(train: list[list[str]], valid: list[list[str]], test: list[list[str]]) -> Graph:
    """Number entities and relations in the order of the alphabet."""
    everything = [*train, *valid, *test]
    entities = sorted({each for head, _, tail in everything for each in (head, tail)})
    relations = sorted({relation for _, relation, _ in everything})
    entity_of = {name: index for index, name in enumerate(entities)}
    relation_of = {name: index for index, name in enumerate(relations)}

    def both(triples: list[list[str]]) -> Numbers:
        there = np.array([(entity_of[h], relation_of[r], entity_of[t]) for h, r, t in triples])
        return np.concatenate([there, there[:, ::-1] + [0, len(relations), 0]])

    return Graph(both(train), both(test), both(everything), len(entities), 2 * len(relations))


def ranks(graph: Graph, scores: Scores) -> NDArray[np.float64]:
    """Return the place of each tail to find among those that are not right, ties counted half."""
    found = scores(graph.test[:, :2]).astype(np.float64)
    right = found[np.arange(len(found)), graph.test[:, 2]][:, None]
    others = np.ones(found.shape, bool)
    tails: dict[tuple[int, int], list[int]] = {}
    for head, relation, tail in graph.known.tolist():
        tails.setdefault((head, relation), []).append(tail)
    for row, (head, relation, _) in zip(others, graph.test.tolist()):
        row[tails[head, relation]] = False
    better, equal = (others & (found > right)).sum(axis=1), (others & (found == right)).sum(axis=1)
    return np.asarray(1 + better + equal / 2)


def mrr(places: NDArray[np.float64]) -> float:
    """Return the mean of 1 / place."""
    return float(np.mean(1 / places))


def hits(places: NDArray[np.float64], best: int = 10) -> float:
    """Return for how many the place is among the best."""
    return float(np.mean(places <= best))
