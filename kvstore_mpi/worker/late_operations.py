"""Operations that wait for long: for whom is said once a minute, and in the end they fail. Pure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvstore_mpi.errors import DeadlineError, MismatchError
from kvstore_mpi.records import Role, parameter_of
from kvstore_mpi.wire.instructions import Log
from kvstore_mpi.worker.operations import called

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.worker.client import LeaderSchedule
    from kvstore_mpi.worker.records import KeyState, Operation

SERVERS_FIRST_S = 3.0
"""A server's deadline for a push comes this much before its worker's: a server knows, and says, whom it
waits for. Both are checked once a second."""

REPEAT_S = 60.0
"""From one line to the next, of a wait that may take for ever."""


class LateOperations:
    """What one worker says of its operations."""

    def __init__(
        self,
        config: NodeConfig,
        schedule: LeaderSchedule,
        keys: Mapping[int, KeyState],
        me: str,
        coordinator: NodeId,
    ) -> None:
        """Start with nothing said.

        Args:
            config: Deadlines are asked for here.
            schedule: Knows to what the ranks of the client have come, where this one leads it.
            keys: Those that have their place, by number.
            me: Names this worker.
            coordinator: Who is waited for where no server is.
        """
        self._schedule, self._keys = schedule, keys
        self._me, self._coordinator = me, coordinator
        # It is a worker, rank 0, where there are no servers.
        self._timeout = config.step_timeout + (
            SERVERS_FIRST_S if coordinator.role is not Role.WORKER else 0
        )
        self._warn_after = config.warn_after
        self._told = float("-inf")

    def tick(
        self, under_way: Mapping[KeyState, Operation], now: float
    ) -> tuple[list[Log], KVStoreError | None]:
        """Return what is to be said, and the error of an operation that has waited for too long, if any."""
        # Since it began, not since it was called: behind others on its key an operation may rightly wait
        # for many times as long.
        for key, operation in under_way.items():
            # One is enough: its error ends all that is under way.
            if now - operation.since > self._timeout:
                return [], self._error(key, operation)
        if now - self._told < REPEAT_S:
            return [], None
        # Of what waits for a server or another client, the server says for whom: it sees all clients, and
        # this worker would only know that something is missing.
        late = [
            (key, operation)
            for key, operation in under_way.items()
            if now - operation.since > self._warn_after and self._schedule.late(key)
        ]
        if not late:
            return [], None
        # Whatever waits a minute from now, and not each operation for itself: all may wait for one rank.
        self._told = now
        return [Log(logging.WARNING, self._warning(late, now))], None

    def _warning(self, late: Sequence[tuple[KeyState, Operation]], now: float) -> str:
        key, operation = late[0]  # for all: a line that names ten thousand keys would be read by nobody
        more = f" and {len(late) - 1:,} more" if len(late) > 1 else ""
        ranks = self._schedule.late(key)
        return (
            f"{self._me}: {called(key, operation)}{more} has waited {now - operation.since:.0f} s for "
            f"{_named(ranks)}, which did not call it{self._instead(ranks)}"
        )

    def _error(self, key: KeyState, operation: Operation) -> KVStoreError:
        # Said by the leader alone: to its members it announces nothing before all have called it, so that
        # they only know that something is missing.
        ranks = self._schedule.late(key)
        instead = self._instead(ranks)
        text = (
            f"{self._me}: {operation.kind.value} number {operation.sequence} of {key.spec} has not "
            f"ended within {self._timeout:g} s; {operation.remaining} of {len(key.slices)} "
            f"slices are missing; it involves {self._asked_for(key)}the workers of its client"
            + (f", of which {_named(ranks)} did not call it{instead}" if ranks else "")
        )
        # The exit code tells whether to look at the network or at the script.
        return MismatchError(text) if instead else DeadlineError(text)

    def _asked_for(self, key: KeyState) -> str:
        """Return whom this worker asks for a key beside its client, in words to be followed by that."""
        # Before a key has its place no server can be the cause: the coordinator has not answered.
        if not key.slices:
            return f"{self._coordinator} and "
        # Without servers it is rank 0, and a key's one server stands for none.
        if self._coordinator.role is Role.WORKER:
            return ""
        return f"{', '.join(sorted({str(server) for server, _ in key.slices}))} and "

    def _instead(self, ranks: Sequence[NodeId]) -> str:
        """Say what ranks have called to which this one has not come: then none of them goes on."""
        # A rank that is behind in one key and ahead in another has left the first one out: the operations
        # of all come in one order, but for those that a program may call in any.
        # By number, for a key may have gone since, as a table that was cut anew.
        for key_id, early in self._schedule.early().items():
            if key_id in self._keys and not early.isdisjoint(ranks):
                who, key = _named(sorted(early.intersection(ranks))), self._keys[key_id]
                return (
                    f"; meanwhile {who} has called key {parameter_of(key.spec.key)!r} once more, to which "
                    "this rank has not come: all must push the same keys in each step, and a layer that "
                    "one of them alone has frozen, or does not use, is left out there"
                )
        return ""


def _named(ranks: Sequence[NodeId]) -> str:
    return ", ".join(f"rank {each.index}" for each in ranks)
