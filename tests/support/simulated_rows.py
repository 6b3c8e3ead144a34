"""Collectives of tables in a simulation: rows travel in boxes, by what a simulated rank can call.

The real ones wait for what others send, which a simulated rank cannot; they have tests of their own. What
makes one of the rows of all ranks is the real one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import Rows
from kvstore_mpi.values.row_sparse import PushedRows
from kvstore_mpi.values.rows import RowMerger
from kvstore_mpi.worker.collectives import Collective

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.worker.instructions import Collect
    from support.simulated_mpi import SimulatedCommunicator

Array = np.ndarray[Any, Any]


def call(communicator: SimulatedCommunicator, job: Collect) -> Callable[[], None]:
    """Call a collective; return what makes its result the operation's, once all ranks have called."""
    table, operation = job.key.table, job.key.queue[0]
    assert table is not None
    layout = table.layout
    if job.operation is Collective.BROADCAST:
        return _broadcast(communicator, table)
    if job.operation is Collective.SHARE:
        return _share(communicator, job)
    box = _boxed(_copy(operation.source.rows))
    communicator.gather(box)

    def reduced() -> None:
        rows = _copy(RowMerger().merge(box[0], layout.num_rows))
        if job.operation is Collective.ALLREDUCE:
            operation.rows[0] = rows
            return
        mine = [rank == communicator.rank for rank in job.key.pushers]
        own = np.array(mine)[layout.pieces_of(rows.ids)]
        versions = operation.source.versions
        operation.source = PushedRows(layout, Rows(rows.ids[own], rows.values[own]))
        operation.source.versions = versions

    return reduced


def _broadcast(communicator: SimulatedCommunicator, table: Any) -> Callable[[], None]:
    # All ranks of a simulated client have an array of a table, or of one that grows none.
    if table.value is not None:
        communicator.broadcast(table.value.reshape(-1), 0)
    return lambda: None


def _share(communicator: SimulatedCommunicator, job: Collect) -> Callable[[], None]:
    shared = []
    rows = job.key.queue[0].rows
    for root, first, last in job.key.by_pusher(job.first, job.last):
        mine = [_copy(rows[piece]) for piece in range(first, last)] if root == communicator.rank else []
        box = _boxed(mine)
        communicator.broadcast(box, root)
        shared.append((box, first, last))

    def take() -> None:
        for box, first, last in shared:
            rows.update(zip(range(first, last), map(_copy, box[0])))

    return take


def _boxed(what: Any) -> Array:
    """Return an array of one object, which is what simulated ranks can send of unequal sizes."""
    box = np.empty(1, object)
    box[0] = what
    return box


def _copy(rows: Rows) -> Rows:
    """Return rows that are nobody else's: the ranks are in one process."""
    return Rows(rows.ids.copy(), rows.values.copy())
