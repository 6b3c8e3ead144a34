"""State, arrays and snapshots of a server with tables, to which clients push rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import KeySpec, NodeId, Role, Rows, Topology
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server.snapshot_records import LAST_USED, PLACES, UPDATES, USES, VALUE, Layout
from kvstore_mpi.server.snapshots import Snapshots
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec, build_for_rows, terms_of
from kvstore_mpi.values.row_sparse import PushedRows, RowSparse
from kvstore_mpi.wire import messages as m
from support.store_shell import carry_out

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvstore_mpi.records import Growth
    from kvstore_mpi.server.table_shards import TableShard

Array = np.ndarray[Any, Any]

LEADER = NodeId(Role.WORKER, 0)
WIDTH = 2

RULES = {
    name: OptimizerSpec(
        name=name,
        hyper=HyperParameters(lr=0.5),
        params={} if name in {"adam", "groupadagrad"} else {"momentum": 0.5, "lazy_update": name != "nag"},
    )
    for name in ("sgd", "adam", "groupadagrad", "nag")
}
RULES["half"] = OptimizerSpec(
    # Steps that half the digits cannot have: a master that was lost would be seen.
    name="sgd",
    hyper=HyperParameters(lr=0.3),
    params={"momentum": 0.7},
    multi_precision=True,
)
"""Update rules: lazy ones, an exact one, and one for rows of half the digits."""


class TableServer:
    """One server of a job with one client.

    Attributes:
        store: Its arrays.
        snapshots: Its snapshots.
    """

    def __init__(self, folder: Path, index: int = 0, servers: int = 1, *, job: str = "a") -> None:
        """Start without tables."""
        self.state = ServerState(
            Topology(1, 1, servers), slice_elements=5, warn_after=1e3, step_timeout=1e3
        )
        self.store = ShardStore()
        self.layout = Layout(index, servers, 1, 1, 5)
        self.snapshots = Snapshots(str(folder), 10.0, job=job, layout=self.layout, now=0.0)

    def give(self, number: int, description: dict[str, Any]) -> None:
        """Give a store an update rule."""
        spec = OptimizerSpec.from_dict(description)
        self.store.set_optimizer(number, spec, build_for_rows(spec), terms_of(spec))
        self.state.set_optimizer(number, spec.to_dict(), spec.hyper, terms_of(spec))

    def create(self, spec: KeySpec, shard: tuple[int, int], value: Array | None, key_id: int = 0) -> None:
        """Make a part of a table."""
        layout = RowSparse(spec)
        for lo in range(*shard, 2):
            message = m.Create(spec, "sync", key_id, shard, [(lo, lo + 1)])
            payload = memoryview(b"") if value is None else layout.value_of(lo // 2, value)
            # As ``Server`` does with each such message.
            self.snapshots.take_up([message], self.state, self.store)
            self.carry_out(self.state.create(LEADER, message, [payload]))

    def push(self, rows: Rows, sequence: int, key_id: int = 0) -> None:
        """Push rows to all pieces that are here."""
        table = self.store.tables[key_id]
        pushed = PushedRows(table.layout, rows)
        pushed.versions = [0] * table.layout.partitions
        record = self.state.keys.by_id[key_id]
        for lo in range(record.shard.lo, record.shard.hi, 2):
            message = m.Push([(key_id, lo, lo + 1, sequence, False)], shared=False)
            self.carry_out(self.state.rounds.push(LEADER, message, [pushed.pack(lo // 2)], 0.0))

    def carry_out(self, instructions: Iterable[Any]) -> None:
        """Do what the state has decided."""
        carry_out(self.store, instructions)

    def save(self) -> None:
        """Take a snapshot and wait until it is written."""
        self.snapshots.save(self.state, self.store)

    def restore(self, *, resume: bool = False, first: bool = False) -> bool:
        """Take up the newest snapshot."""
        return self.snapshots.restore(self.state, self.store, self.give, resume=resume, first=first)

    def content(self) -> dict[tuple[int, int], list[Any]]:
        """Return all that is here of tables by key and id, and how often each piece was updated."""
        found: dict[tuple[int, int], list[Any]] = {}
        for key_id, table in self.store.tables.items():
            for unit in self.state.keys.by_id[key_id].distinct_units:
                lo = unit.slices[0].lo
                rows = _growing(table, lo) if table.layout.grows else _fixed(table, lo)
                ids = table.layout.ids_of(lo // 2, np.array([*rows], np.int64)).tolist()
                found |= {(key_id, i): [unit.updates, *row] for i, row in zip(ids, rows.values())}
        return found


def spec_of(growth: Growth | None = None, rows: int = 12, dtype: str = "float32") -> KeySpec:
    """Return a table of two pieces."""
    return KeySpec(0, "t", (rows, WIDTH), dtype, "rows", 2, growth)


def begin(
    folder: Path, growth: Growth | None = None, rule: str = "adam", rows: int = 12, dtype: str = "float32"
) -> TableServer:
    """Return a server with both pieces of a table."""
    server = TableServer(folder)
    server.give(0, RULES[rule].to_dict())
    value = None if growth else np.arange(rows * WIDTH).reshape(rows, WIDTH).astype(dtype)
    server.create(spec_of(growth, rows, dtype), (0, 4), value)
    return server


def push(server: TableServer, ids: Iterable[int], step: int) -> None:
    """Push some rows, of which each has a value of its own."""
    dtype = server.store.tables[0].layout.dtype
    rows = np.array(sorted(ids), np.int64)
    server.push(Rows(rows, np.repeat(rows[:, None] % 7 + 1, WIDTH, 1).astype(dtype)), step)


def again(folder: Path) -> TableServer:
    """Return a server that has taken up what is in a folder."""
    server = TableServer(folder)
    assert server.restore()
    return server


def chain_of_three(folder: Path) -> tuple[TableServer, list[dict[tuple[int, int], list[Any]]]]:
    """Return a server that has written a base and two links, and its content at each."""
    server = begin(folder, rule="sgd", rows=40)
    push(server, range(40), 1)
    contents = []
    for step, ids in enumerate(((), (3, 4), (4, 5)), 2):
        push(server, ids, step)
        server.save()
        contents.append(server.content())
    return server, contents


def _fixed(table: TableShard, lo: int) -> dict[int, list[Any]]:
    arrays = [array for (_, at), array in table.contents() if at == lo]
    num_rows = table.layout.rows_of(lo // 2)
    return {
        place: [each.reshape(num_rows, -1)[place].tolist() for each in arrays] for place in range(num_rows)
    }


def _growing(table: TableShard, lo: int) -> dict[int, list[Any]]:
    contents = {index: array for (index, at), array in table.contents() if at == lo}
    places, last_used, uses = (contents.pop(index).tolist() for index in (PLACES, LAST_USED, USES))
    del contents[UPDATES]
    num_rows = contents[VALUE].size // table.layout.width
    tables = [array.reshape(num_rows, -1).tolist() for array in contents.values() if num_rows]
    # Rows first, and then what waits to be admitted, which has no values.
    return {
        place: [last_used[n], uses[n], *(each[n] for each in tables if n < num_rows)]
        for n, place in enumerate(places)
    }
