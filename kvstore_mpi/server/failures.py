"""How a server says that something cannot be: to whom, and as the failure of which key.

Pure. This file must not know when a round fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import InternalError, KVStoreError
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.records import NodeId
    from kvstore_mpi.server.records import Instructions, KeyRecord, Unit


def failure(peer: NodeId, error: KVStoreError, key: KeyRecord) -> Send:
    """Tell a peer that what it wants of a key cannot be; a bug of this process's own ends the process."""
    if isinstance(error, InternalError):
        raise error
    # With the key: a failure without one ends everything that the worker has under way with this server.
    return Send(peer, m.Failure(type(error).__name__, str(error), key.store.number, key.key))


def stranded(unit: Unit, missing: Iterable[int], error: KVStoreError) -> KVStoreError:
    """Return why a unit's round cannot be closed without a client's pushers that have departed."""
    times = min(unit.pushed[pusher] for pusher in missing)
    text = f"{error}; it has pushed key {unit.key.key!r} {times} times"
    # Of the type that it had: whether the client has died or has finished decides what its peers' users
    # are told, and with which exit code their job ends.
    return type(error)(text)


def fail_round(unit: Unit, error: KVStoreError) -> Instructions:
    """Tell everybody who waits for a unit."""
    # Once for each peer, although it may have pushed all slices: the first failure ends its operation.
    peers = dict.fromkeys(asker.peer for c in unit.contributions.values() for asker in c.askers.values())
    # Pulls, too: they wait for a push of their client which is in no value before this round is closed.
    peers.update(dict.fromkeys(pull.peer for pull in unit.pulls))
    return [failure(peer, error, unit.key) for peer in peers]
