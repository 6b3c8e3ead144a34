"""What the ranks of a client do together with the rows of a table, in the MPI thread.

From the moment at which a collective is begun until it has ended, the rows of the operation under way
belong to this thread, as an exchange buffer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvstore_mpi.errors import InternalError
from kvstore_mpi.tensor_collectives.row_lookups import LookedUp
from kvstore_mpi.tensor_collectives.row_unions import Summed
from kvstore_mpi.tensor_collectives.rows import Pushed
from kvstore_mpi.values.row_sparse import PushedRows
from kvstore_mpi.worker.collectives import Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.tensor_collectives.group import Group
    from kvstore_mpi.worker.instructions import Collect
    from kvstore_mpi.worker.lookups import Lookup
    from kvstore_mpi.worker.records import Operation
    from kvstore_mpi.worker.table_state import WorkerTable


def carry_out(group: Group, jobs: Sequence[Collect]) -> None:
    """Do a collective of one kind on the rows of the operations that are under way on some keys."""
    # By the first: what is handed over together is of one kind, for one call of MPI.
    _WAYS[jobs[0].operation](group, jobs)


def _broadcast(group: Group, jobs: Sequence[Collect]) -> None:
    # From the leader, which has asked the servers for it: the ranks must begin with the same bits. Of a
    # table that stays on the servers the other ranks have no array, and so nothing to begin with.
    for job in jobs:
        value = _table(job).value
        nobody_wants_it = group.agree(int(group.rank == 0 or value is None))
        if not nobody_wants_it:
            group.rows.broadcast_value(value, 0)


def _reduce(group: Group, jobs: Sequence[Collect]) -> None:
    """Merge what the ranks push: each piece at the rank that pushes it, once for all of them."""
    # All pieces of all tables at once: ids say which piece a row is of, and a message for each would cost
    # more than most of them.
    pushes = [Pushed(_operation(job).source.rows, _table(job).layout, job.key.pushers) for job in jobs]
    for job, merged in zip(jobs, group.rows.reduce(pushes)):
        operation = _operation(job)
        alone = operation.source
        # In the place of what this rank alone would push; the versions are those that go with the request.
        operation.source = PushedRows(_table(job).layout, merged)
        operation.source.versions, operation.source.coding = alone.versions, alone.coding


def _allreduce(group: Group, jobs: Sequence[Collect]) -> None:
    # With the key's number, by which the ranks remember what their ids had in common the last time.
    sums = [Summed(_operation(job).source.rows, _table(job).layout, job.key.key_id) for job in jobs]
    for job, union in zip(jobs, group.rows.allreduce(sums)):
        # One piece: a table that is on the workers only is not divided.
        _operation(job).rows[0] = union


def _share(group: Group, jobs: Sequence[Collect]) -> None:
    """Give the rows that a rank was sent of some pieces to all."""
    # Pieces go around the ranks that push: once for each rank, and not for each piece or table.
    by_root: dict[int, dict[Collect, list[int]]] = {}
    for job in jobs:
        for root, first, last in job.key.by_pusher(job.first, job.last):
            by_root.setdefault(root, {}).setdefault(job, []).extend(range(first, last))
    for root, places in by_root.items():
        # The others give nothing and still have to call: it is one collective.
        mine = [
            [_operation(job).rows[position] for position in positions] if root == group.rank else None
            for job, positions in places.items()
        ]
        shared = group.rows.broadcast(mine, [_table(job).layout for job in places], root)
        for (job, positions), rows in zip(places.items(), shared):
            _operation(job).rows.update(zip(positions, rows))


def _unite(group: Group, jobs: Sequence[Collect]) -> None:
    """Collect what the ranks of each host look up; of each piece at the rank that asks for it."""
    # All tables at once, as of a push: a model has many, and a message between ranks for each would cost
    # more than the ids.
    looked_up = [_looked_up(job) for job in jobs]
    for job, wanted in zip(jobs, group.rows.lookups.unite(looked_up)):
        _lookup(job).wanted = wanted
        union = np.unique(np.concatenate(list(wanted.values())))
        # In the place of what this rank alone would ask for. A rank that asks for no piece asks for
        # nothing, and has its rows from others. Of the same union as the last time, if that was since a
        # version: all ranks have come back with the ids that they had then.
        operation = _operation(job)
        operation.source = operation.source.of_rows(union)


def _give(group: Group, jobs: Sequence[Collect]) -> None:
    """Give the ranks of a host the rows that they look up."""
    # Each rank its own, and not the union to all: whoever asked for them knows which these are, and what is
    # copied are the rows of the ranks and not ranks times the union.
    looked_up = [_looked_up(job) for job in jobs]
    have = [list(_operation(job).rows.values()) for job in jobs]
    wanted = [_lookup(job).wanted for job in jobs]
    for job, parts in zip(jobs, group.rows.lookups.give(looked_up, have, wanted)):
        _operation(job).rows = dict(enumerate(parts))


def _looked_up(job: Collect) -> LookedUp:
    newer = _operation(job).source.since is not None
    return LookedUp(_lookup(job).ids, _table(job).layout, job.key.askers.of_pieces, only_newer=newer)


def _never(_group: Group, jobs: Sequence[Collect]) -> None:
    raise InternalError(f"{jobs[0].operation.name} of {jobs[0].key.spec}: ranks pull rows for themselves")


def _operation(job: Collect) -> Operation:
    # The one under way: no other of the key begins before it has ended.
    return job.key.queue[0]


def _lookup(job: Collect) -> Lookup:
    found = _operation(job).lookup
    if found is None:
        raise InternalError(f"{job.key.spec}: what is under way is no lookup")
    return found


def _table(job: Collect) -> WorkerTable:
    if job.key.table is None:
        raise InternalError(f"{job.key.spec} is no table")
    return job.key.table


_WAYS: dict[Collective, Callable[[Group, Sequence[Collect]], None]] = {
    Collective.BROADCAST: _broadcast,
    Collective.REDUCE: _reduce,
    Collective.REDUCE_SHARE: _reduce,
    Collective.ALLREDUCE: _allreduce,
    Collective.SHARE: _share,
    # What tables have no part in is listed all the same: a kind that is missing here would end the MPI
    # thread with a KeyError that names no key.
    Collective.FETCH: _never,
    Collective.SKIP: _never,
    Collective.REDUCE_GIVE: _never,
    Collective.UNITE: _unite,
    Collective.GIVE: _give,
}
