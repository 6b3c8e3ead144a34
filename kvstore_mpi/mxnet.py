"""The public import for users of MXNet: registers the stores; the code is in ``adapters/mxnet``."""

from __future__ import annotations

from kvstore_mpi.adapters.mxnet import (
    ClientStore,
    ElasticCallback,
    ElasticTrainer,
    KVStoreMPI,
    TableEmbedding,
    averaged,
    take_over,
)
from kvstore_mpi.records import Retention, RowInit

__all__ = [
    "ClientStore",
    "ElasticCallback",
    "ElasticTrainer",
    "KVStoreMPI",
    "Retention",
    "RowInit",
    "TableEmbedding",
    "averaged",
    "take_over",
]
