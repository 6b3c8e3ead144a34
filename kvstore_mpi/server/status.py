"""What a server tells about itself: its numbers, and the rounds that wait. Only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.metrics.counters import wire_counters
from kvstore_mpi.metrics.status import MOST_WAITS, Wait
from kvstore_mpi.metrics.telling import Seen
from kvstore_mpi.records import parameter_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.metrics.counters import Counters
    from kvstore_mpi.p3.priority_queue import PriorityQueue
    from kvstore_mpi.records import Topology
    from kvstore_mpi.server.records import Unit
    from kvstore_mpi.server.replies import Replies
    from kvstore_mpi.server.snapshots import Snapshots
    from kvstore_mpi.server.state import ServerState
    from kvstore_mpi.wire.events import Received
    from kvstore_mpi.wire.io_loop import IoLoop


class Observed:
    """What can be seen of a server; a part of ``server.Server``."""

    error: KVStoreError | None
    _config: NodeConfig
    _topology: Topology
    _loop: IoLoop
    _state: ServerState
    _pushes: PriorityQueue[Received]
    _replies: Replies
    _snapshots: Snapshots | None

    def look(self, now: float) -> Seen:
        """Return what there is to tell about this server at a time."""
        waits = waits_of(self._state, self._topology, self._config.step_timeout, now)
        return Seen(self._counters(now), waits, str(self.error or ""))

    def _counters(self, now: float) -> Counters:
        rounds, endpoint = self._state.rounds, self._loop.endpoint
        counted: Counters = {
            **wire_counters(endpoint.statistics(), endpoint.all_in_flight()),
            "keys": len(self._state.keys.by_id),
            "rounds": rounds.closed,
            "open_rounds": len(rounds.under_way),
            "stale_updates": rounds.stale,
            "waiting_messages": len(self._pushes),
            "queue_bytes": self._replies.waiting_bytes,
        }
        if self._snapshots is not None:
            counted["snapshot_age_seconds"] = self._snapshots.age(now)
        return counted


def waits_of(state: ServerState, topology: Topology, limit: float, now: float) -> list[Wait]:
    """Return the rounds that wait, the oldest first; of those that wait for the same, one."""
    oldest: dict[tuple[int, ...], Unit] = {}
    # In the order in which they began, so that the first of its kind is the oldest.
    for unit in state.rounds.under_way:
        # A step that is whole here waits for other servers, which say for what.
        if state.rounds.held.is_complete(unit):
            continue
        awaited = state.rounds.held.awaited(unit)
        # Once for each set of clients that is missing: ten thousand keys that wait for the same one
        # would fill the line, which has to be short, and say nothing else.
        oldest.setdefault(_missing(awaited), awaited)
        if len(oldest) == MOST_WAITS:
            break
    return [_wait_of(unit, missing, topology, limit, now) for missing, unit in oldest.items()]


def _missing(unit: Unit) -> tuple[int, ...]:
    """Return the pushers that have not pushed all slices of a unit."""
    # Also who has pushed a part: the rest of it may be what never comes.
    pushed, num_slices = unit.contributions, len(unit.slices)
    return tuple(
        pusher
        for pusher in range(unit.key.num_pushers)
        if pusher not in pushed or len(pushed[pusher].payloads) < num_slices
    )


def _wait_of(unit: Unit, missing: Sequence[int], topology: Topology, limit: float, now: float) -> Wait:
    size = unit.key.pusher_size
    ranks = [rank for pusher in missing for rank in range(pusher * size, (pusher + 1) * size)]
    names = [topology.describe_worker(rank) for rank in ranks]
    number = max(each.sequence for each in unit.contributions.values()) if unit.contributions else 0
    text = f"round {number} of key {parameter_of(unit.key.key)!r}: {', '.join(names)} has not pushed"
    return Wait("round", text, now - unit.since, limit, names, str(unit.key.key), number)
