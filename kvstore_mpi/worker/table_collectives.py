"""What the ranks of a client do together with the rows of a table, in the MPI thread.

From the moment at which a collective is begun until it has ended, the rows of the operation under way
belong to this thread, as an exchange buffer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import InternalError
from kvstore_mpi.values.row_sparse import PushedRows
from kvstore_mpi.worker.records import Collective

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.tensor_collectives.group import Group
    from kvstore_mpi.worker.instructions import Collect
    from kvstore_mpi.worker.records import Operation
    from kvstore_mpi.worker.table_state import WorkerTable


def carry_out(group: Group, job: Collect) -> None:
    """Do a collective on the rows of the operation that is under way on a key."""
    _WAYS[job.operation](group, job, job.key.queue[0])


def _broadcast(group: Group, job: Collect, _operation: Operation) -> None:
    group.rows.broadcast_value(_table(job).value, 0)


def _reduce(group: Group, job: Collect, operation: Operation) -> None:
    """Merge what the ranks push at the leader, which pushes it once for all of them."""
    merged = group.rows.reduce(operation.source.rows, 0)
    if merged is not None:
        versions = operation.source.versions
        operation.source = PushedRows(_table(job).layout, merged)
        operation.source.versions = versions


def _allreduce(group: Group, _job: Collect, operation: Operation) -> None:
    operation.rows[0] = group.rows.allreduce(operation.source.rows)


def _share(group: Group, job: Collect, operation: Operation) -> None:
    """Give the rows that the leader was sent of some pieces to all."""
    positions = range(job.first, job.last)
    mine = [operation.rows[position] for position in positions] if group.rank == 0 else None
    operation.rows.update(zip(positions, group.rows.broadcast(mine, 0)))


def _never(_group: Group, job: Collect, _operation: Operation) -> None:
    raise InternalError(f"{job.operation.name} of {job.key.spec}: ranks pull rows for themselves")


def _table(job: Collect) -> WorkerTable:
    if job.key.table is None:
        raise InternalError(f"{job.key.spec} is no table")
    return job.key.table


_WAYS: dict[Collective, Callable[[Group, Collect, Any], None]] = {
    Collective.BROADCAST: _broadcast,
    Collective.REDUCE: _reduce,
    Collective.REDUCE_SHARE: _reduce,
    Collective.ALLREDUCE: _allreduce,
    Collective.SHARE: _share,
    Collective.FETCH: _never,
    Collective.SKIP: _never,
}
