"""The public import for users of MXNet: registers the stores; the code is in ``adapters/mxnet``."""

from __future__ import annotations

from kvstore_mpi.adapters.mxnet import (
    ClientStore,
    DelayedTrainer,
    ElasticCallback,
    ElasticTrainer,
    KVStoreMPI,
    Part,
    PartTrainer,
    PipelineTrainer,
    TableEmbedding,
    averaged,
    parallel,
    parts_of,
    take_over,
    take_up,
)
from kvstore_mpi.records import Retention, RowInit

__all__ = [
    "ClientStore",
    "DelayedTrainer",
    "ElasticCallback",
    "ElasticTrainer",
    "KVStoreMPI",
    "Part",
    "PartTrainer",
    "PipelineTrainer",
    "Retention",
    "RowInit",
    "TableEmbedding",
    "averaged",
    "parallel",
    "parts_of",
    "take_over",
    "take_up",
]
