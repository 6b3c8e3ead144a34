"""Rows of tables that servers have, on their way through the engine to arrays of this process.

This file must not know which rows are wanted when, or what came before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import scatter
from kvstore_mpi.adapters.mxnet.exchange.exchange import at_once, before_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.adapters.mxnet.bridge.row_arrays import FetchedRows
    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable
    from kvstore_mpi.adapters.mxnet.tables.prefetched_rows import Found
    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import Key, Rows
    from kvstore_mpi.rows_interface import RowsWorker

    Array = np.ndarray[Any, Any]

FEW_BYTES = 64 << 10
"""Rows of up to this size are written where they belong by whoever has received them: 64 KB take the I/O
thread 26 us. An operation of the engine that does nothing takes all threads 18 to 91 us of processor time
(five runs of 2,000, other processes beside)."""


class RowFetches:
    """Queues requests for rows of one store's tables."""

    def __init__(self, exchange: Exchange) -> None:
        """Ask by the worker of an exchange."""
        self._exchange = exchange
        self._worker = cast("RowsWorker", exchange.worker)

    def begin(self, key: Key, table: RowTable, priority: int, ids: Array, **how: Any) -> list[Rows]:
        """Queue rows of these ids into the list that is returned; ``how``: as of the worker's call."""
        out: list[Rows] = []
        pull = self._pull(key, priority, out, ids, **how)
        self._exchange.queue(pull, mutable=[table.array], priority=priority)
        return out

    def fill(
        self,
        key: Key,
        table: RowTable,
        priority: int,
        rows: FetchedRows,
        found: Found,
    ) -> None:
        """Queue rows into an array.

        Args:
            key: Of the table.
            table: Of which they are.
            priority: Larger goes first.
            rows: What is filled.
            found: What of them is coming already.
        """
        # With others of this client, who wait for this worker also where it needs no row of them; not for
        # what is missing of rows for which all have met ahead.
        together = self._worker.unites_lookups and not found.is_ahead
        if found.others.size == rows.ids.size and rows.values.nbytes <= FEW_BYTES:
            self._fill_as_they_come(key, table, priority, rows, together=together)
            return
        parts: list[Rows] = []
        if found.others.size or together:
            parts = self.begin(key, table, priority, found.others, exact=False, together=together)
        self._queue(lambda: rows.take([*parts, *found.rows()]), rows.array, table, priority)

    def whole(self, key: Key, table: RowTable, priority: int) -> Staging:
        """Queue all rows of a table, as the servers have them, into a dense array."""
        staging = Staging(table.shape, table.dtype, np.empty)
        self.whole_into(staging, key, table, priority)
        return staging

    def whole_into(self, staging: Staging, key: Key, table: RowTable, priority: int) -> None:
        """Queue them into this one."""
        parts = self.begin(key, table, priority, np.arange(table.shape[0]), exact=True)
        values = staging.buffer.reshape(table.shape[0], -1)
        self._queue(partial(scatter, parts, values), staging.array, table, priority)

    def _fill_as_they_come(
        self, key: Key, table: RowTable, priority: int, rows: FetchedRows, *, together: bool
    ) -> None:
        out: list[Rows] = []
        pull = self._pull(key, priority, out, rows.ids, exact=False, together=together)
        take = partial(rows.take, out)
        self._exchange.queue(
            lambda done: pull(before_end(take, done)), mutable=[table.array, rows.array], priority=priority
        )

    def _pull(
        self, key: Key, priority: int, out: list[Rows], ids: Array, **how: Any
    ) -> Callable[[Done], None]:
        store = self._exchange.store
        return lambda done: self._worker.pull_rows(store, key, priority, done, out, ids, **how)

    def _queue(self, action: Callable[[], Any], target: Any, table: RowTable, priority: int) -> None:
        self._exchange.queue(
            partial(at_once, action),
            mutable=[target],
            const=[table.array],
            priority=priority,
            after_failures=False,
        )
