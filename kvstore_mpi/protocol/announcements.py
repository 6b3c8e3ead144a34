"""The collectives that a leader is going to announce: queued by priority, a few ahead of the MPI threads.

Pure. This file must not know when a collective is possible, or what it does.
"""

from __future__ import annotations

from typing import Iterable, Tuple

from ..p3.priority_queue import PriorityQueue
from ..records import NodeId
from . import messages as m
from .instructions import Send
from .worker_records import Collect, Collective, Instructions, KeyState, Operation

COLLECTIVE_BYTES = 1 << 20
"""Neighbouring slices share a collective up to this size, as they share a message to a server."""

AHEAD_BYTES = 4 << 20
"""So much is announced before the first of it has ended: what is announced cannot be overtaken, and the MPI
threads shall not wait for announcements."""

_Entry = Tuple[int, int, int, int, int]
"""What an ``Announce`` has for each collective."""


class Announcements:
    """What the leader of one client has to announce to the rest of it."""

    def __init__(self, members: Iterable[NodeId], slice_elements: int, *, by_priority: bool) -> None:
        """Start with nothing to announce.

        Args:
            members: The client's ranks but the leader.
            slice_elements: Elements of an ordinary slice.
            by_priority: Otherwise first come, first served.
        """
        self._members = list(members)
        self._slice_elements = slice_elements
        self._queue: PriorityQueue[tuple[_Entry, KeyState]] = PriorityQueue(by_priority=by_priority)
        self._ahead_bytes = 0

    def put(self, key: KeyState, operation: Operation, what: Collective, positions: range) -> None:
        """Queue a collective on some slices, in pieces that others may overtake."""
        most = max(1, COLLECTIVE_BYTES // max(1, self._slice_elements * key.itemsize))
        for first in range(positions.start, positions.stop, most):
            last = min(first + most, positions.stop)
            entry = (int(what), key.key_id, operation.sequence, first, last)
            self._queue.put(operation.priority, key.num_bytes(first, last), (entry, key))

    def ended(self, done: Collect) -> None:
        """Note that a collective that was announced has ended here."""
        self._ahead_bytes -= done.key.num_bytes(done.first, done.last)

    def next(self) -> Instructions:
        """Announce, and carry out here as well, so many that the MPI threads have work."""
        chosen: list[tuple[_Entry, KeyState]] = []
        while self._queue and self._ahead_bytes < AHEAD_BYTES:
            self._ahead_bytes += self._queue.peek()[0]
            chosen.append(self._queue.pop())
        if not chosen:
            return []
        announce = m.Announce([entry for entry, _ in chosen])
        return [
            *(Send(member, announce) for member in self._members),
            *(Collect(Collective(code), key, first, last) for (code, _, _, first, last), key in chosen),
        ]
