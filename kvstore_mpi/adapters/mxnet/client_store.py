"""A store of the workers of one client. This file must not know how they sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.adapters.mxnet.store import KVStoreMPI
from kvstore_mpi.errors import UnsupportedError

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import KVWorker


class ClientStore(KVStoreMPI):
    """A store that the workers of one client have among themselves: sums by MPI, no servers.

    ``rank`` and ``num_workers`` are those of the client. A Trainer or a Module that is given one trains
    synchronously within its client, whatever other clients do.
    """

    def __init__(self, worker: KVWorker | None = None) -> None:
        """Open a store; see ``KVStoreMPI.client_store``."""
        super().__init__("client", worker)

    @property
    def type(self) -> str:
        """A name with ``dist`` and ``_sync``: a Module then divides by the number of workers."""
        return "dist_sync_client"

    @property
    def rank(self) -> int:
        """Number of this worker in its client."""
        return self._worker.mpi_rank

    @property
    def num_workers(self) -> int:
        """Number of workers of the client."""
        return self._worker.mpi_size

    @property
    def num_servers(self) -> int:
        """None has anything of this store."""
        return 0

    def is_capable(self, capability: str) -> bool:
        """Say no to ``optimizer``: Trainer and Module then update their own weights, which may be moved."""
        super().is_capable(capability)
        return False

    @raises_mxnet_errors
    def barrier(self) -> None:
        """Refuse: clients that wait for each other are a matter of the store that they share."""
        raise UnsupportedError("a client's own store has no barrier; use that of the store it came from")
