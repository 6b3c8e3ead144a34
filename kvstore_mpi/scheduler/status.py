"""What a scheduler tells about itself: who has not come, to the job or to a barrier. Only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.metrics.counters import wire_counters
from kvstore_mpi.metrics.status import Wait
from kvstore_mpi.metrics.telling import Seen
from kvstore_mpi.records import NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.records import Topology
    from kvstore_mpi.scheduler.scheduler import Scheduler
    from kvstore_mpi.scheduler.state import SchedulerState
    from kvstore_mpi.wire.endpoint import Endpoint


class Awaited:
    """What the processes of a job have been waiting for, and since when; looked at about once a second."""

    def __init__(self, state: SchedulerState, topology: Topology, now: float, *, join: float) -> None:
        """Begin to look.

        Args:
            state: The scheduler's.
            topology: The shape of the job.
            now: The time.
            join: Seconds within which everybody must join.
        """
        self._state = state
        self._topology = topology
        self._began, self._join = now, join
        self._since: dict[int, float] = {}  # barrier -> when it was first seen to wait

    def look(self, scheduler: Scheduler, endpoint: Endpoint, limit: float, now: float) -> Seen:
        """Return what there is to tell about a scheduler at a time."""
        counted = wire_counters(endpoint.statistics(), endpoint.all_in_flight())
        joined = len(self._state.roster.present)
        return Seen({**counted, "joined": joined}, self.waits(limit, now), str(scheduler.error or ""))

    def waits(self, limit: float, now: float) -> list[Wait]:
        """Return what is waited for; a barrier is an error after ``limit`` seconds."""
        return [*self._unjoined(now), *self._barriers(limit, now)]

    def _unjoined(self, now: float) -> list[Wait]:
        roster = self._state.roster
        missing = roster.expected.difference(roster.joined, roster.left)
        if not missing:
            return []
        text = f"the job begins when all have joined; missing: {roster.names_missing(missing)}"
        return [Wait("join", text, now - self._began, self._join, self._names(missing))]

    def _barriers(self, limit: float, now: float) -> list[Wait]:
        waits = []
        waiting = self._state.waiting_at_barriers
        self._since = {number: self._since.get(number, now) for number in waiting}
        workers = {each for each in self._state.roster.present if each.role is Role.WORKER}
        for number, arrived in waiting.items():
            missing = self._names(workers - arrived)
            here = ", ".join(self._names(arrived))
            text = f"barrier {number}: {here} is there, {', '.join(missing)} is not"
            waits.append(Wait("barrier", text, now - self._since[number], limit, missing, "", number))
        return waits

    def _names(self, nodes: Iterable[NodeId]) -> list[str]:
        return [
            self._topology.describe_worker(node.index) if node.role is Role.WORKER else str(node)
            for node in sorted(nodes)
        ]
