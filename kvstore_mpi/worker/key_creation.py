"""The messages with which a key comes into being. Pure functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import PeerLostError, UnsupportedError, UsageError
from kvstore_mpi.p3.send_queue import BUNDLE_BYTES
from kvstore_mpi.records import ITEMSIZES, NodeId, Role, Shard
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.codec import MAX_FRAME_BYTES
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.records import KeySpec
    from kvstore_mpi.worker.records import KeyState
    from kvstore_mpi.worker.table_state import WorkerTable


MOST_SLICES = 40_000
"""Of a key. A message that names each of them, as a push in a coding does, then has 0.8 MB of the 1 MB that
a body may have (``wire/codec.py``); an array of 2 GB has 10,738 of the default size."""


def check_new(spec: KeySpec, worker: NodeId, config: NodeConfig, *, loose: bool) -> None:
    """Raise where a worker cannot take part in a new key.

    Args:
        spec: The key.
        worker: Who.
        config: Its configuration.
        loose: Rounds of the key's store do not need all clients.

    Raises:
        UnsupportedError: Elements of such a type cannot travel.
        PeerLostError: Its client was started again, and the others have gone on.
    """
    if spec.dtype not in ITEMSIZES:
        raise UnsupportedError(f"{spec} of {worker}: only {', '.join(ITEMSIZES)} can travel")
    # Here, where the user sees which call it is; the others would wait for this client in every round, and
    # fail after the step's timeout without a reason. It is a consequence of the client's first end, and
    # says so by its class, so that the job is told of that end, however soon this one comes.
    if config.incarnation and config.num_clients > 1 and not loose:
        raise PeerLostError(
            f"client {config.client} was restarted and cannot take part in a synchronous store, whose "
            "rounds have gone on or failed without it; only async stores, and stores to which "
            "set_optimizer has given a quorum before, take restarted clients in"
        )


def check_slices(spec: KeySpec, slice_elements: int) -> None:
    """Raise where the slices of a key that is no table cannot travel.

    Args:
        spec: The key.
        slice_elements: The most that a slice has.

    Raises:
        UsageError: They are too large for a message, or too many.
    """
    size = math.prod(spec.shape)
    num_slices = -(-size // slice_elements)
    num_bytes = min(size, slice_elements) * ITEMSIZES[spec.dtype]
    if num_slices > MOST_SLICES:
        raise UsageError(
            f"{spec} would be cut into {num_slices:,} slices of {slice_elements:,} elements, and can have "
            f"{MOST_SLICES:,}: give --set slice_elements={-(-size // MOST_SLICES)} or more"
        )
    if num_bytes > MAX_FRAME_BYTES:
        most = MAX_FRAME_BYTES // ITEMSIZES[spec.dtype]
        raise UsageError(
            f"{spec}: a slice of {num_bytes:,} bytes is too large to travel: give --set "
            f"slice_elements={most} or less"
        )


def declare(key: KeyState, *, whole: bool, quorum: bool) -> m.Declare:
    """Return what tells the coordinator that a worker has a key.

    Args:
        key: The key.
        whole: It stays on one server.
        quorum: Rounds do not wait for all clients.
    """
    # All by which the same key of two workers can differ: the coordinator compares, and says who differs,
    # before a value has been cut.
    return m.Declare(key.spec, key.mode.value, whole, quorum)


def create(key: KeyState, shards: Iterable[Shard], slice_elements: int, value: Any = None) -> list[Send]:
    """Give the servers the own value, or another to seed, a bundle of slices in each message."""
    if key.table is not None:
        return _create_table(key, key.table, shards)
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
                key.spec, key.mode.value, key.key_id, (lo, hi), [(start, end)], seed=value is not None
            )
            part = key.layout.part(key.raw if value is None else value, 0, start, end)
            # A view, not a copy: the operation is under way until every message is confirmed, and until
            # then nobody writes the buffer.
            out.append(Send(NodeId(Role.SERVER, server), message, [part]))
    return out


def _create_table(key: KeyState, table: WorkerTable, shards: Iterable[Shard]) -> list[Send]:
    """Give the servers the rows of each piece, which are not neighbours in the table: a copy.

    Of a table that grows there are none.
    """
    out: list[Send] = []
    for server, lo, hi in shards:
        for start in range(lo, hi, 2):
            message = m.Create(key.spec, key.mode.value, key.key_id, (lo, hi), [(start, start + 1)])
            # An empty value is sent as well: without it the piece would not count as filled, and every push
            # to it would come too early.
            grows = table.layout.grows
            rows = b"" if grows else table.layout.value_of(start // 2, table.value)
            out.append(Send(NodeId(Role.SERVER, server), message, [rows]))
    return out


def shard_on(key: KeyState, server: NodeId) -> list[Shard]:
    """Return what a server has of a key: one run of slices, or nothing."""
    # From the first slice to the last, because a server has neighbouring slices only; were they ever dealt
    # out one by one, this would claim those of others in between.
    mine = key.by_server().get(server)
    # The last piece [2p, 2p + 1) of a table ends one before the end of its shard, which is an even number.
    return [Shard(server.index, mine[0].lo, mine[-1].hi + (key.table is not None))] if mine else []
