"""The worker that this process has for all its stores. This file must not know about stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import KVWorker


def own_worker(asked: str, mode: str) -> KVWorker:
    """Return this process's worker, for a store of this mode; ``asked`` is what the user has asked for."""
    from kvstore_mpi.node import process_worker  # noqa: PLC0415  a worker that is given needs no sockets and no MPI

    return process_worker(asked, mode)
