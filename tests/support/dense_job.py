"""All servers of a job with dense keys, to which one client pushes; what they have, put together."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.p3.slicing import cut
from kvstore_mpi.records import NodeId, Role, Shard, StoreTerms, Topology
from kvstore_mpi.scheduler.placement import Placement
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server.snapshot_records import VALUE, Layout
from kvstore_mpi.server.snapshots import Snapshots
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec, build, terms_of
from kvstore_mpi.wire import messages as m
from support.store_shell import carry_out

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from pathlib import Path

    from kvstore_mpi.records import KeySpec

Array = np.ndarray[Any, Any]

LEADER = NodeId(Role.WORKER, 0)
SLICE = 5

RULES = {
    name: OptimizerSpec(name=name, hyper=HyperParameters(lr=0.3), params=params, multi_precision=half)
    for name, params, half in (
        ("adam", {}, False),
        ("sgd", {"momentum": 0.7}, True),
        ("elastic", {"alpha": 0.3}, False),
        ("delayed-nesterov", {"num_clients": 1}, False),
        ("norm", {}, False),
    )
}
"""Update rules: with two states, with a master of halves, for parameters without and with states, and one
for whole tensors."""


class NormRule:
    """A rule for whole tensors: steps have the length of the learning rate; the state has all lengths."""

    def bind(self, _key: Any, _shape: Any) -> NormRule:
        """Return this one."""
        return self

    def init(self, weight: Array) -> tuple[Array, ...]:
        """Return a state of elements, and one of two numbers."""
        return np.ones_like(weight), np.zeros(2, np.float64)

    def update(self, weight: Array, gradient: Array, state: Any, hyper: Any, count: int, **_: Any) -> None:
        """Take a step."""
        length = 1 + np.sqrt(np.sum(gradient.astype(np.float64) ** 2))
        weight -= (hyper.lr / length * gradient).astype(weight.dtype)
        state[0][...] += weight
        state[1][...] += (length, count)


class DenseServer:
    """State, arrays and snapshots of one server."""

    def __init__(self, folder: Path, index: int, servers: int, job: str, schedule: Schedule) -> None:
        """Start without keys."""
        self.state = ServerState(
            Topology(1, 1, servers),
            slice_elements=SLICE,
            warn_after=1e3,
            step_timeout=1e3,
            schedule=schedule,
        )
        self.store = ShardStore()
        layout = Layout(index, servers, 1, 1, SLICE)
        self.snapshots = Snapshots(str(folder), 10.0, job=job, layout=layout, now=0.0)

    def give(self, number: int, description: dict[str, Any]) -> None:
        """Give a store an update rule."""
        spec = OptimizerSpec.from_dict(description)
        whole = spec.name == "norm"
        terms = StoreTerms(whole=True) if whole else terms_of(spec)
        self.store.set_optimizer(number, spec, NormRule() if whole else build(spec), terms)
        self.state.set_optimizer(number, description, spec.hyper, terms)

    def take(self, message: m.Create, payloads: list[Any]) -> None:
        """Take what creates a key, as ``Server`` does."""
        self.snapshots.take_up([message], self.state, self.store)
        self.carry_out(self.state.create(LEADER, message, payloads))

    def carry_out(self, instructions: Iterable[Any]) -> None:
        """Do what the state has decided."""
        carry_out(self.store, instructions)

    def save(self) -> None:
        """Take a snapshot and wait until it is written."""
        self.snapshots.save(self.state, self.store)


class DenseJob:
    """The servers of a job.

    Attributes:
        servers: They.
    """

    def __init__(
        self, folder: Path, servers: int, *, job: str = "a", schedule: Schedule = Schedule.P3
    ) -> None:
        """Start without keys."""
        self.servers = [DenseServer(folder, index, servers, job, schedule) for index in range(servers)]
        self._placement = Placement(servers, SLICE)
        self._keys: dict[int, tuple[KeySpec, list[Shard]]] = {}

    def resume(self) -> None:
        """Begin with what is in the folder."""
        for server in self.servers:
            server.snapshots.restore(server.state, server.store, server.give, resume=True, first=True)

    def give(self, rule: str) -> None:
        """Give the store an update rule."""
        for server in self.servers:
            server.give(0, RULES[rule].to_dict())

    def create(self, spec: KeySpec, *, whole: bool = False) -> None:
        """Make a key, as rank 0 does, with a value of its own number."""
        key_id, size = len(self._keys), prod(spec.shape)
        value = (np.arange(size) % 7 + key_id + 1).astype(spec.dtype)
        shards = self._placement.place(size, value.itemsize, whole=whole)
        self._keys[key_id] = (spec, shards)
        owners = {shard.server: shard for shard in shards}
        for index, server in enumerate(self.servers):
            if index in owners:
                _, lo, hi = owners[index]
                message = m.Create(spec, "sync", key_id, (lo, hi), [(lo, hi)])
                server.take(message, [memoryview(value[lo:hi].tobytes())])
            else:
                server.take(m.Create(spec, "sync", key_id, (0, 0), [], seed=True), [])

    def push(
        self,
        step: int,
        sequence: int,
        servers: Container[int] | None = None,
        keys: Container[int] | None = None,
    ) -> None:
        """Push all keys to all servers, or some of either."""
        for key_id, (spec, shards) in self._keys.items():
            if keys is not None and key_id not in keys:
                continue
            size = prod(spec.shape)
            gradient = ((np.arange(size) * step + key_id) % 5 - 1).astype(spec.dtype)
            for shard in shards:
                if servers is None or shard.server in servers:
                    self._push_shard(key_id, shard, gradient, sequence)

    def _push_shard(self, key_id: int, shard: Shard, gradient: Array, sequence: int) -> None:
        server = self.servers[shard.server]
        for _, (_, lo, hi) in cut(key_id, [shard], SLICE):
            message = m.Push([(key_id, lo, hi, sequence, True)], shared=False)
            payload = memoryview(gradient[lo:hi].tobytes())
            server.carry_out(server.state.rounds.push(LEADER, message, [payload], 0.0))

    def save(self) -> None:
        """Let all servers take a snapshot."""
        for server in self.servers:
            server.save()

    def counts(self) -> dict[tuple[int, int], int]:
        """Return how often each slice was updated, by key and first element."""
        return {
            (key.key_id, slice_.lo): unit.updates
            for server in self.servers
            for key in server.state.keys
            for unit in key.distinct_units
            for slice_ in unit.slices
        }

    def content(self) -> dict[tuple[int, int], list[Any]]:
        """Return all elements of values, masters and states, by key and number of the array."""
        found: dict[tuple[int, int], list[tuple[int, list[Any]]]] = {}
        for server in self.servers:
            for key in server.state.keys:
                for (index, lo), array in server.store.contents(key.key_id):
                    found.setdefault((key.key_id, index), []).append((lo, array.tolist()))
                assert (key.key_id, VALUE) in found
        return {
            name: [number for _, part in sorted(parts) for number in part] for name, parts in found.items()
        }
