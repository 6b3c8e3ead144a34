"""A server without its shell, which saves and restores its shard: state, store and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import KeySpec, NodeId, Role, Topology
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server.snapshot_records import Layout
from kvstore_mpi.server.snapshots import Snapshots
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.server_optimizers import OptimizerSpec, build, terms_of
from kvstore_mpi.wire import messages as m
from support.store_shell import carry_out

if TYPE_CHECKING:
    from pathlib import Path

    from kvstore_mpi.server.records import Instructions

    Array = np.ndarray[Any, Any]

LEADER = NodeId(Role.WORKER, 0)
SIZE = 8
"""Elements of each key."""


class Server:
    """State and store of a server, and its snapshots."""

    def __init__(
        self, folder: Path, *, job: str = "a", servers: int = 1, size: int = 1, every: float = 10.0
    ) -> None:
        """Begin without keys, in a folder."""
        self.state = ServerState(
            Topology(2, 2, servers), slice_elements=5, warn_after=1e3, step_timeout=1e3
        )
        self.store = ShardStore()
        self.snapshots = Snapshots(
            str(folder), every, job=job, layout=Layout(0, servers, 2, size, 5), now=0.0
        )

    def give(self, number: int, description: dict[str, Any]) -> None:
        """Take the update rule of a store."""
        spec = OptimizerSpec.from_dict(description)
        self.store.set_optimizer(number, spec, build(spec), terms_of(spec))
        self.state.set_optimizer(number, spec.to_dict(), spec.hyper, terms_of(spec))

    def create(
        self,
        key: str = "w",
        key_id: int = 0,
        shape: tuple[int, ...] = (SIZE,),
        mode: str = "async",
        **spec: Any,
    ) -> Instructions:
        """Have rank 0 create a key."""
        message = m.Create(KeySpec(0, key, shape, "float32", **spec), mode, key_id, (0, SIZE), [(0, SIZE)])
        value = np.arange(SIZE, dtype=np.float32).data.cast("B")
        return self.carry_out(self.state.create(LEADER, message, [value]))

    def push(self, client: int, sequence: int, key_id: int = 0) -> Instructions:
        """Have a client push ones."""
        payload = np.ones(SIZE, np.float32).data.cast("B")
        message = m.Push([(key_id, 0, SIZE, sequence, True)], shared=False)
        return self.carry_out(self.state.rounds.push(NodeId(Role.WORKER, client), message, [payload], 0.0))

    def carry_out(self, instructions: Instructions) -> Instructions:
        """Do what the state says, as far as the store is concerned."""
        carry_out(self.store, instructions)
        return instructions

    def restore(self, **options: bool) -> bool:
        """Take up what is there."""
        return self.snapshots.restore(
            self.state,
            self.store,
            self.give,
            resume=options.get("resume", False),
            first=options.get("first", False),
        )

    @property
    def value(self) -> Array:
        """The value of key 0."""
        return np.frombuffer(self.store.payload(0, 0, SIZE, stable=False), np.float32)
