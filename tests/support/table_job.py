"""All servers of a job with one table, to which one client pushes rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import KeySpec, Rows
from kvstore_mpi.scheduler.placement import Placement
from kvstore_mpi.wire import messages as m
from support.table_server import RULES, WIDTH, TableServer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvstore_mpi.records import Growth


class TableJob:
    """The servers of a job.

    Attributes:
        servers: They.
    """

    def __init__(self, folder: Path, servers: int, *, job: str = "a") -> None:
        """Start without tables."""
        self.servers = [TableServer(folder, index, servers, job=job) for index in range(servers)]

    def resume(self) -> None:
        """Begin with what is in the folder."""
        for server in self.servers:
            server.restore(resume=True, first=True)

    def give(self, rule: str) -> None:
        """Give the store an update rule."""
        for server in self.servers:
            server.give(0, RULES[rule].to_dict())

    def create(self, spec: KeySpec, key_id: int = 0) -> None:
        """Make a table, as rank 0 does."""
        shape, dtype = spec.shape, spec.dtype
        value = None if spec.growth else np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        shards = {}
        for shard in Placement(len(self.servers), 5).place_pieces(spec.partitions, 8):
            shards[shard.server] = (shard.lo, shard.hi)
        for index, server in enumerate(self.servers):
            if index in shards:
                server.create(spec, shards[index], value, key_id)
            else:
                message = m.Create(spec, "sync", key_id, (0, 0), [], seed=True)
                server.snapshots.take_up([message], server.state, server.store)

    def push(self, ids: Iterable[int], sequence: int, key_id: int = 0) -> None:
        """Push some rows, of which each has a value of its own."""
        rows = np.array(sorted(ids), np.int64)
        for server in self.servers:
            if key_id in server.store.tables:
                dtype = server.store.tables[key_id].layout.dtype
                values = np.repeat(rows[:, None] % 7 + 1, WIDTH, 1).astype(dtype)
                server.push(Rows(rows, values), sequence, key_id)

    def save(self) -> None:
        """Let all servers take a snapshot."""
        for server in self.servers:
            server.save()

    def content(self) -> dict[tuple[int, int], list[Any]]:
        """Return all rows that there are, by key and id, with their states, ages and counts."""
        found: dict[tuple[int, int], list[Any]] = {}
        for server in self.servers:
            found |= server.content()
        return found


def table(growth: Growth | None, rows: int, dtype: str, cut: tuple[str, int]) -> KeySpec:
    """Return a table, cut in a way into a number of pieces."""
    return replace(KeySpec(0, "t", (rows, WIDTH), dtype), layout=cut[0], partitions=cut[1], growth=growth)
