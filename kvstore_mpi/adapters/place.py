"""Which worker of which client a store belongs to, in the words that its users know. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import KVWorker


class Place:
    """Numbers of this process in its job; a store's class inherits them."""

    _worker: KVWorker

    @property
    def rank(self) -> int:
        """Number of this worker among all workers of all clients."""
        return self._worker.rank

    @property
    def num_workers(self) -> int:
        """Number of workers of all clients."""
        return self._worker.num_workers

    @property
    def local_rank(self) -> int:
        """Number of this worker among those of its client on the same host."""
        return self._worker.local_rank

    @property
    def client(self) -> int:
        """Number of this worker's client."""
        return self._worker.client

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self._worker.num_clients

    @property
    def goes_on(self) -> bool:
        """Whether servers may have later values than this worker gives: who is back, late or resumed."""
        return bool(self._worker.takes_up)

    def stats(self) -> dict[str, float]:
        """Return the counters of this process: bytes, messages, repeats, steps, waiting times and others.

        A plain dictionary; docs/seeing.md says what each number is. Any thread may ask, at any time.
        """
        return self._worker.stats()

    @property
    def mpi_rank(self) -> int:
        """This worker's rank in its client."""
        return self._worker.mpi_rank

    @property
    def mpi_size(self) -> int:
        """Number of workers in this worker's client."""
        return self._worker.mpi_size

    @property
    def model_rank(self) -> int:
        """Number of this rank in its worker: which part of the model it owns."""
        return self._worker.model_rank

    @property
    def model_parallel(self) -> int:
        """Ranks of each worker."""
        return self._worker.model_parallel

    @property
    def num_servers(self) -> int:
        """Number of servers; 0 is pure MPI."""
        return self._worker.num_servers
