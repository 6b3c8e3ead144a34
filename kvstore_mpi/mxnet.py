"""The public import for users of MXNet: registers the stores; the code is in ``adapters/mxnet``."""

from __future__ import annotations

from kvstore_mpi.adapters.mxnet import ClientStore, ElasticCallback, ElasticTrainer, KVStoreMPI, take_over

__all__ = ["ClientStore", "ElasticCallback", "ElasticTrainer", "KVStoreMPI", "take_over"]
