"""The adapter for MXNet: the only place on the worker's side that imports mxnet.

Importing it registers the store types, so that ``mx.kv.create("sync-mpi")`` knows them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import mxnet as mx

from kvstore_mpi.adapters.mxnet.elastic import ElasticCallback, ElasticTrainer
from kvstore_mpi.adapters.mxnet.store import ClientStore, KVStoreMPI

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ClientStore", "ElasticCallback", "ElasticTrainer", "KVStoreMPI", "take_over"]

_NAMES = {
    "sync": ("sync-mpi", "dist_sync_mpi", "dist-sync-mpi"),
    "async": ("async-mpi", "dist_async_mpi", "dist-async-mpi"),
}
_NATIVE_NAMES = {
    "sync": ("dist", "dist_sync", "dist_device_sync", "dist_sync_device"),
    "async": ("dist_async",),
}


def take_over() -> None:
    """Answer for the names of MXNet's own distributed stores too, for scripts that ask for those."""
    _register(_NATIVE_NAMES)


def _register(names: Mapping[str, Sequence[str]]) -> None:
    for mode, aliases in names.items():
        for name in aliases:
            mx.kv.KVStoreBase.kv_registry[name] = partial(KVStoreMPI, mode)


_register(_NAMES)
