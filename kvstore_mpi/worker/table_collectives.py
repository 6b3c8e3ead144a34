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
    # From the leader, which has asked the servers for it: the ranks must begin with the same bits.
    group.rows.broadcast_value(_table(job).value, 0)


def _reduce(group: Group, job: Collect, operation: Operation) -> None:
    """Merge what the ranks push: each piece at the rank that pushes it, once for all of them."""
    layout, source = _table(job).layout, operation.source
    # All pieces at once: ids say which piece a row is of, and a call of MPI for each piece would cost more
    # than most pieces.
    merged = group.rows.reduce(source.rows, layout, job.key.pushers)
    # In the place of what this rank alone would push; the versions are those that go with the request.
    operation.source = PushedRows(layout, merged)
    operation.source.versions = source.versions


def _allreduce(group: Group, job: Collect, operation: Operation) -> None:
    rows = operation.source.rows
    # One piece: a table that is on the workers only is not divided.
    operation.rows[0] = group.rows.allreduce(rows, _table(job).layout, job.key.key_id)


def _share(group: Group, job: Collect, operation: Operation) -> None:
    """Give the rows that a rank was sent of some pieces to all."""
    # Pieces go around the ranks that push: once for each rank, and not for each piece.
    by_root: dict[int, list[int]] = {}
    for root, first, last in job.key.by_pusher(job.first, job.last):
        by_root.setdefault(root, []).extend(range(first, last))
    for root, positions in by_root.items():
        # The others give nothing and still have to call: it is one collective.
        mine = [operation.rows[position] for position in positions] if root == group.rank else None
        shared = group.rows.broadcast(mine, _table(job).layout, root)
        operation.rows.update(zip(positions, shared))


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
