"""What is sent in the benchmark of bytes: keys, what is done with them, and what Parallax says it costs.

It must not start processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.hybrid.cost import (
    Cluster,
    Pull,
    Table,
    Wire,
    dense_allreduce,
    dense_servers,
    rows_gathered,
    rows_servers,
    share_of,
)
from kvstore_mpi.hybrid.density import DENSE as EVERY_ROW
from kvstore_mpi.hybrid.density import Density

from .sparse_ids import draw

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

WIDTH = 128
ITEM_BYTES = 4
DENSE_ELEMENTS = 250_000
BARE = Wire(0, 0, 0)
"""Values alone, as in the paper."""

WARMUP, STEPS = 2, 6


@dataclass(frozen=True)
class Case:
    """Some keys of one size that every worker pushes and pulls.

    Attributes:
        name: What the table calls it.
        keys: How many.
        rows: Rows of each; 0 for dense keys.
        touched: Rows that a rank pushes in a step.
        in_pieces: Each is cut into as many pieces as there are servers; if not, one server has it.
        pull: Which rows come back.
    """

    name: str
    keys: int
    rows: int = 0
    touched: int = 0
    in_pieces: bool = False
    pull: Pull = Pull.OWN

    def ids(self, rank: int, key: int, step: int) -> Array:
        """Return the rows of a key that a rank pushes in a step."""
        return draw(self.rows, self.touched, 0.0, rank, key, step)


DENSE, DENSE_MANY = Case("dense, 1 key", 1), Case("dense, 8 keys", 8)
ROWS, ROWS_MANY = Case("rows, 1 key", 1, 100_000, 2_000), Case("rows, 8 keys", 8, 25_000, 500)
PIECES = replace(ROWS, name="rows, 1 key in pieces", in_pieces=True)
DELTA = replace(PIECES, name="rows, what changed", pull=Pull.CHANGED)
ALIKE = Case("rows, many alike", 1, 5_000, 2_000, in_pieces=True)
TABLE_3 = (DENSE, DENSE_MANY, ROWS, ROWS_MANY)
CASES = (*TABLE_3, PIECES, DELTA, ALIKE)


@dataclass(frozen=True)
class Variant:
    """A way to send.

    Attributes:
        name: What the table calls it.
        by_servers: Values go through servers, one on each host; if not, workers sum among themselves.
        cases: What is sent.
        ranks: Workers on each host.
        ours: It is this project's.
        together: Workers of a host look up rows together.
    """

    name: str
    by_servers: bool
    cases: tuple[Case, ...]
    ranks: int = 1
    ours: bool = True
    together: bool = False


VARIANTS = (
    Variant("servers", by_servers=True, cases=(*TABLE_3, PIECES, DELTA)),
    Variant("allreduce", by_servers=False, cases=TABLE_3),
    Variant("2 ranks a host", by_servers=True, cases=(DELTA, ALIKE), ranks=2),
    Variant("4 ranks a host", by_servers=True, cases=(DELTA, ALIKE), ranks=4),
    Variant("2 ranks together", by_servers=True, cases=(ALIKE,), ranks=2, together=True),
    Variant("4 ranks together", by_servers=True, cases=(ALIKE,), ranks=4, together=True),
    Variant("stock", by_servers=True, cases=TABLE_3, ours=False),
    Variant("mpi", by_servers=False, cases=TABLE_3, ours=False),
)


def formula(case: Case, variant: Variant, hosts: int) -> float:
    """Return what Parallax says that the busiest host sends and receives in a step, for values alone."""
    cluster = Cluster(hosts, hosts if variant.by_servers else 0, variant.ranks)
    pieces = hosts if case.in_pieces else 1
    share = share_of(pieces, cluster) if variant.by_servers and case.keys == 1 else 1 / hosts
    density = density_of(case, variant.ranks, hosts)
    key = (
        Table(case.rows, WIDTH * ITEM_BYTES, pieces) if case.rows else Table(1, DENSE_ELEMENTS * ITEM_BYTES)
    )
    if case.rows and variant.by_servers:
        pull = Pull.EACH if case.pull is Pull.OWN and not variant.together else case.pull
        one = rows_servers(key, density, cluster, BARE, share=share, pull=pull)
    elif case.rows:
        one = rows_gathered(key, density, cluster, BARE)
    elif variant.by_servers:
        one = dense_servers(key, cluster, BARE, share=share)
    else:
        one = dense_allreduce(key, cluster)
    return case.keys * one.num_bytes


def density_of(case: Case, ranks: int, hosts: int) -> Density:
    """Return the share of rows that a rank, a host and all touch in a step, the mean of those measured."""
    if not case.rows:
        return EVERY_ROW
    touched = np.zeros(3)
    for step in range(WARMUP, WARMUP + STEPS):
        ids = [case.ids(rank, 0, step) for rank in range(ranks * hosts)]
        unions = [
            np.unique(np.concatenate(ids[first : first + ranks])) for first in range(0, len(ids), ranks)
        ]
        every = np.unique(np.concatenate(unions))
        touched += case.touched, np.mean([union.size for union in unions]), every.size
    return Density(*(touched / STEPS / case.rows).tolist())
