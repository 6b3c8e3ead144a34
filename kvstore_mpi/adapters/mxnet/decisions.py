"""What one rank of a job decides for all others: they have its answer, or the error that it has met.

An error that stayed with this rank would let the others wait for an answer. This file must not know what is
decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.store import KVStoreMPI
from kvstore_mpi.errors import KVStoreError, error_from_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.comm.links import Links

    Array = np.ndarray[Any, Any]


class _Decision(msgspec.Struct):
    """An answer, or the name and the text of an error."""

    numbers: tuple[int, ...] = ()
    error: tuple[str, str] | None = None


def decided_by_first(decide: Callable[[], Sequence[int]], worker: int, links: Links) -> tuple[int, ...]:
    """Return what rank 0 of worker 0 decides; all ranks of all workers must call this.

    Args:
        decide: Called on that rank alone.
        worker: The number of this rank's worker.
        links: To the other ranks of its worker.

    Raises:
        KVStoreError: That of ``decide``, on all ranks.
    """
    told = _outcome(decide) if worker == links.rank == 0 else b""
    # First among the workers: what rank 0 of each has then, it tells its own ranks.
    told = links.broadcast(_of_worker_0(told), 0)
    decision = msgspec.json.decode(told, type=_Decision)
    if decision.error is not None:
        raise error_from_wire(*decision.error)
    return decision.numbers


def _outcome(decide: Callable[[], Sequence[int]]) -> bytes:
    try:
        return msgspec.json.encode(_Decision(tuple(decide())))
    except KVStoreError as error:
        return msgspec.json.encode(_Decision(error=(type(error).__name__, str(error))))


def _of_worker_0(data: bytes) -> bytes:
    """Return what worker 0's rank of this number has; a store's keys begin with its values."""
    store = KVStoreMPI("sync")
    [size] = _copied(store, "size", np.array([len(data)], np.int64))
    if not size:
        return b""
    mine = np.frombuffer(data, np.uint8) if data else np.zeros(size, np.uint8)
    return _copied(store, "decision", mine).tobytes()


def _copied(store: KVStoreMPI, key: str, array: Array) -> Array:
    out = mx.nd.zeros(array.shape, dtype=array.dtype)
    store.broadcast(key, mx.nd.array(array, dtype=array.dtype), out)
    told: Array = out.asnumpy()
    return told
