"""Collectives of tables in a simulation: rows travel in dense arrays, by what a simulated rank can call.

The real ones wait for what others send, which a simulated rank cannot; they have tests of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import Rows
from kvstore_mpi.values.row_sparse import PushedRows
from kvstore_mpi.worker.records import Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvstore_mpi.values.row_sparse import RowSparse
    from kvstore_mpi.worker.instructions import Collect
    from support.simulated_mpi import SimulatedCommunicator

Array = np.ndarray[Any, Any]


def call(communicator: SimulatedCommunicator, job: Collect) -> Callable[[], None]:
    """Call a collective; return what makes its result the operation's, once all ranks have called."""
    table, operation = job.key.table, job.key.queue[0]
    assert table is not None
    layout = table.layout
    if job.operation is Collective.BROADCAST:
        communicator.broadcast(table.value.reshape(-1), 0)
        return lambda: None
    if job.operation is Collective.SHARE:
        return _share(communicator, job, layout)
    dense = _dense(layout, [operation.source.rows])
    communicator.allreduce(dense)

    def reduced() -> None:
        rows = _rows(layout, dense)
        if job.operation is Collective.ALLREDUCE:
            operation.rows[0] = rows
            return
        mine = [rank == communicator.rank for rank in job.key.pushers]
        own = np.array(mine)[layout.pieces_of(rows.ids)]
        versions = operation.source.versions
        operation.source = PushedRows(layout, Rows(rows.ids[own], rows.values[own]))
        operation.source.versions = versions

    return reduced


def _share(communicator: SimulatedCommunicator, job: Collect, layout: RowSparse) -> Callable[[], None]:
    shared = []
    rows = job.key.queue[0].rows
    for root, first, last in job.key.by_pusher(job.first, job.last):
        mine = [rows[piece] for piece in range(first, last)] if root == communicator.rank else []
        dense = _dense(layout, mine)
        communicator.broadcast(dense, root)
        shared.append((dense, first, last))

    def take() -> None:
        for dense, first, last in shared:
            ids, values = _rows(layout, dense)
            pieces = layout.pieces_of(ids)
            for piece in range(first, last):
                rows[piece] = Rows(ids[pieces == piece], values[pieces == piece])

    return take


def _dense(layout: RowSparse, parts: Iterable[Rows]) -> Array:
    """Return all rows of a table, and behind them which are there."""
    dense = np.zeros((layout.num_rows, layout.width + 1), layout.dtype)
    for ids, values in parts:
        dense[ids, :-1] = values
        dense[ids, -1] = 1
    return dense.reshape(-1)


def _rows(layout: RowSparse, dense: Array) -> Rows:
    table = dense.reshape(layout.num_rows, -1)
    ids = np.flatnonzero(table[:, -1])
    return Rows(ids, np.ascontiguousarray(table[ids, :-1]))
