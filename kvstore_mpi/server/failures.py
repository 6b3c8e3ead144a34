"""How a server says that something cannot be: to whom, and as the failure of which key.

Pure. This file must not know when a round fails.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvstore_mpi.errors import InternalError, KVStoreError
from kvstore_mpi.records import parameter_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.records import NodeId
    from kvstore_mpi.server.records import Instructions, KeyRecord, Unit, Update


def failure(peer: NodeId, error: KVStoreError, key: KeyRecord) -> Send:
    """Tell a peer that what it wants of a key cannot be; a bug of this process's own ends the process."""
    if isinstance(error, InternalError):
        raise error
    # With the key: a failure without one ends everything that the worker has under way with this server.
    return Send(peer, m.Failure(type(error).__name__, str(error), key.store.number, key.key))


def stranded(unit: Unit, missing: Iterable[int], error: KVStoreError) -> KVStoreError:
    """Return why a unit's round cannot be closed without a client's pushers that have departed."""
    times = min(unit.pushed[pusher] for pusher in missing)
    text = f"{error}; it has pushed key {parameter_of(unit.key.key)!r} {times} times"
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


class FailedUpdates:
    """Updates that could not be made, for who reads the server's log; clients are told apart from that."""

    def __init__(self) -> None:
        """Start with none."""
        self._told: dict[int, tuple[int, str]] = {}  # key -> number of the last that failed, and why

    def log(self, update: Update, error: KVStoreError) -> list[Log]:
        """Return the line of a failure; of the slices of a key that fail alike only the first has one."""
        key, failed = update.unit.key, (update.number, str(error))
        if self._told.get(key.key_id) == failed:
            return []
        self._told[key.key_id] = failed
        name = key.store.spec["name"] if key.store.spec else "no optimizer"
        text = f"update {update.number} of key {parameter_of(key.key)!r} by {name} failed: {error}"
        return [Log(logging.ERROR, text)]
