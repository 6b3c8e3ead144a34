"""What a server answers to pushes and pulls of a unit, and what it notes about that. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import InternalError, KVStoreError
from kvstore_mpi.server.records import (
    Contribution,
    Entry,
    Instructions,
    KeyRecord,
    Remember,
    Reply,
    ReplyTo,
    Unit,
)
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.wire.runs import merge

if TYPE_CHECKING:
    from kvstore_mpi.records import NodeId, Topology


class Answers:
    """What is answered together: one reply to each peer for all slices of which it wants the value."""

    def __init__(self) -> None:
        """Start without any."""
        self._entries: dict[tuple[NodeId, bool, int, bool], list[Entry]] = {}

    def settle(self, unit: Unit, replies: list[ReplyTo], sequence: int) -> list[Send]:
        """Collect the answers to one client's push; who wants no value is told that it is applied."""
        base = unit.key.store.terms.bases
        applied: dict[NodeId, list[Entry]] = {}
        for peer, lo, wants_value, shared, priority in replies:
            entry = (*unit.piece(lo), sequence)
            if wants_value:
                self._entries.setdefault((peer, shared, priority, base), []).append(entry)
            else:
                applied.setdefault(peer, []).append(entry)
        return [Send(peer, m.Applied(merge(entries))) for peer, entries in applied.items()]

    def replies(self, *, stable: bool) -> list[Reply]:
        """Return the replies; ``stable`` as in ``server_records.Reply``."""
        return [
            Reply(peer, entries, stable, shared, priority, base)
            for (peer, shared, priority, base), entries in self._entries.items()
        ]


def note_sent(unit: Unit, client: int, contribution: Contribution) -> list[Remember]:
    """Note what a client is answered with; a rule that takes parameters sets the base by itself."""
    entries = [
        (*unit.piece(lo), contribution.sequence)
        for _, lo, wants_value, _, _ in contribution.replies
        if wants_value
    ]
    if not entries:
        return []
    unit.seen[client] = unit.updates
    terms = unit.key.store.terms
    return [Remember(client, entries)] if terms.bases and not terms.params else []


def note_pulled(unit: Unit, client: int, entry: Entry) -> list[Remember]:
    """Under a rule that looks at what clients have seen, note that a client gets the value now."""
    terms = unit.key.store.terms
    if terms.staleness:
        unit.seen[client] = unit.updates
    return [Remember(client, [entry])] if terms.pulls else []


def ready_pulls(unit: Unit, topology: Topology) -> Instructions:
    """Answer the pulls that have waited for pushes which are in the value now."""
    if not unit.pulls:
        return []
    waiting, unit.pulls = unit.pulls, []
    out: Instructions = []
    for peer, piece, after, priority in waiting:
        client = topology.client_of(peer.index)
        if unit.applied[client] >= after:
            entry = (*piece, after)
            out += note_pulled(unit, client, entry)
            out.append(Reply(peer, [entry], stable=False, priority=priority))
        else:
            unit.pulls.append((peer, piece, after, priority))
    return out


def failure(peer: NodeId, error: KVStoreError, key: KeyRecord) -> Send:
    """Tell a peer that what it wants of a key cannot be; a bug of this process's own ends the process."""
    if isinstance(error, InternalError):
        raise error
    return Send(peer, m.Failure(type(error).__name__, str(error), key.store.number, key.key))
