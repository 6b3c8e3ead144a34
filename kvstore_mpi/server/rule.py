"""A store's optimizer, as its shards use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import ServerOptimizer
    from kvstore_mpi.records import StoreTerms
    from kvstore_mpi.server_optimizers import OptimizerSpec


class Rule(NamedTuple):
    """A store's optimizer.

    Attributes:
        spec: Its description.
        optimizer: Updates arrays.
        terms: On which pushes are taken.
    """

    spec: OptimizerSpec
    optimizer: ServerOptimizer
    terms: StoreTerms
