"""The adapter for MXNet: the only place on the worker's side that imports mxnet.

Importing it registers the store types, so that ``mx.kv.create("sync-mpi")`` knows them.
"""

from __future__ import annotations

from kvstore_mpi.adapters.mxnet.averages import averaged
from kvstore_mpi.adapters.mxnet.client_store import ClientStore
from kvstore_mpi.adapters.mxnet.delayed import DelayedTrainer
from kvstore_mpi.adapters.mxnet.elastic import ElasticCallback, ElasticTrainer
from kvstore_mpi.adapters.mxnet.names import register, take_over
from kvstore_mpi.adapters.mxnet.parallel import parallel, take_up
from kvstore_mpi.adapters.mxnet.parts.operation_parts import parts_of
from kvstore_mpi.adapters.mxnet.parts.part_trainer import PartTrainer
from kvstore_mpi.adapters.mxnet.parts.pipeline import PipelineTrainer
from kvstore_mpi.adapters.mxnet.parts.segments import Part
from kvstore_mpi.adapters.mxnet.store import KVStoreMPI
from kvstore_mpi.adapters.mxnet.table_embedding import TableEmbedding

__all__ = [
    "ClientStore",
    "DelayedTrainer",
    "ElasticCallback",
    "ElasticTrainer",
    "KVStoreMPI",
    "Part",
    "PartTrainer",
    "PipelineTrainer",
    "TableEmbedding",
    "averaged",
    "parallel",
    "parts_of",
    "take_over",
    "take_up",
]

register()
