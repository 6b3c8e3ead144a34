"""The calls of a store to which all workers come; a part of ``store.KVStoreMPI``."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from kvstore_mpi.adapters.mxnet.bridge import engine
from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.adapters.mxnet.exchange import lifecycle
from kvstore_mpi.adapters.mxnet.exchange.calls import checked
from kvstore_mpi.adapters.mxnet.tables.row_calls import RowCalls
from kvstore_mpi.adapters.mxnet.tables.rows import RowKeys
from kvstore_mpi.adapters.mxnet.taken_up import TakenUp
from kvstore_mpi.adapters.mxnet.updates.local_updates import LocalUpdates

if TYPE_CHECKING:
    from kvstore_mpi.adapters.mxnet.client_store import ClientStore
    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.updates.updates import Updates
    from kvstore_mpi.interfaces import KVWorker


class Meetings(RowCalls):
    """What the workers of a store do together."""

    _client_stores: list[ClientStore]
    _exchange: Exchange
    _mode: str
    _tables: RowKeys
    _taken_up: TakenUp
    _updater: Any
    _updates: Updates
    _worker: KVWorker

    @checked
    def barrier(self) -> None:
        """Wait for all own operations, then for all workers to do so."""
        self._worker.barrier(settled=self._settle())
        self._all_have_met()

    def _barrier(self) -> None:
        """Do what ``barrier`` does, under MXNet's name."""
        self.barrier()

    def _settle(self) -> bool:
        """Wait for all own operations; tell whether none of this worker is under way."""
        self._exchange.drain()
        # Of this worker's other stores, too: who is settled at a barrier says how often it has pushed, and
        # a push that the engine has not called yet would be missing in that.
        return engine.wait_until_idle(lifecycle.drain_seconds())

    @raises_mxnet_errors
    def close(self) -> None:
        """Give up the store with all its memory, here and on the servers, as all workers of the job do.

        It waits for all own operations, and until all workers have called it, as ``barrier`` does. With it
        goes what ``client_store`` has opened, as for an ``ElasticTrainer``. The keys are not in snapshots
        that follow, other stores go on untouched, and a Trainer of this one says that it is closed. A
        second call does nothing. A store that is merely dropped keeps its memory.

        Raises:
            MismatchError: Another worker does something else instead.
            UsageError: Clients of this job may begin later than others, or again; the store goes on.
        """
        if not self._exchange.is_closed:
            self._close()

    @checked
    def _close(self) -> None:
        # In the order in which they were opened, which is that of all workers.
        for store in self._client_stores:
            store.close()
        self._exchange.close(settled=self._settle())
        # What is left is a store without keys: a Trainer, which has it, would keep states and rows.
        self._updates, self._updater = LocalUpdates(self._exchange), None
        self._tables = RowKeys(self._exchange, self._updates, self._mode)
        self._taken_up = TakenUp(self._worker, self._mode)
        # What they were before knows itself in circles, which Python would look for some day: arrays of
        # MXNet are small objects for it.
        gc.collect()
