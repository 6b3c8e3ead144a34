"""The messages with which a key comes into being. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.p3.send_queue import BUNDLE_BYTES
from kvstore_mpi.records import NodeId, Role, Shard
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.worker.records import KeyState


def declare(key: KeyState, *, whole: bool, quorum: bool) -> m.Declare:
    """Return what tells the coordinator that a worker has a key.

    Args:
        key: The key.
        whole: It stays on one server.
        quorum: Rounds do not wait for all clients.
    """
    # All by which the same key of two workers can differ: the coordinator compares, and says who differs,
    # before a value has been cut.
    spec = key.spec
    return m.Declare(spec.store, key.mode.value, spec.key, spec.shape, spec.dtype, whole, quorum)


def create(key: KeyState, shards: Iterable[Shard], slice_elements: int, value: Any = None) -> list[Send]:
    """Give the servers the own value, or another to seed, a bundle of slices in each message."""
    spec = key.spec
    # Whole slices, or a server would have the initial value of a part of one and count it as filled.
    step = max(1, BUNDLE_BYTES // max(1, key.slice_bytes)) * slice_elements
    out: list[Send] = []
    for server, lo, hi in shards:
        # A key without elements has one message as well: the servers have to know it, and confirm it.
        for start in range(lo, hi, step) if hi > lo else (lo,):
            end = min(start + step, hi)
            # The whole shard is in each of them: with the first one the server makes room for all, and
            # knows how much is still to come.
            message = m.Create(
                spec.store,
                key.mode.value,
                spec.key,
                key.key_id,
                spec.shape,
                spec.dtype,
                (lo, hi),
                [(start, end)],
                seed=value is not None,
            )
            part = key.layout.part(key.raw if value is None else value, 0, start, end)
            # A view, not a copy: the operation is under way until every message is confirmed, and until
            # then nobody writes the buffer.
            out.append(Send(NodeId(Role.SERVER, server), message, [part]))
    return out


def shard_on(key: KeyState, server: NodeId) -> list[Shard]:
    """Return what a server has of a key: one run of slices, or nothing."""
    # From the first slice to the last, because a server has neighbouring slices only; were they ever dealt
    # out one by one, this would claim those of others in between.
    mine = key.by_server().get(server)
    return [Shard(server.index, mine[0].lo, mine[-1].hi)] if mine else []
