"""The collectives that a leader is going to announce: queued by priority, a few ahead of the MPI threads.

Pure. This file must not know when a collective is possible, or what it does.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvstore_mpi.p3.priority_queue import PriorityQueue
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.records import Collect, Collective, Instructions, KeyState, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.records import NodeId

COLLECTIVE_BYTES = 1 << 20
"""Neighbouring slices share a collective up to this size, as they share a message to a server."""

AHEAD_BYTES = 4 << 20
"""So much is announced before the first of it has ended: what is announced cannot be overtaken, and the MPI
threads shall not wait for announcements."""

BUCKET_BYTES = 2 << 20
"""Collectives of one kind that follow each other are carried out together up to this size."""

BUCKETS_AHEAD = 2
"""With so many buckets under way the MPI threads have work, and the next one may fill up meanwhile. Nothing
waits for longer than that: there is no time limit."""

_Entry = tuple[int, int, int, int, int]


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
        self._waiting_bytes = 0
        self._announced_bytes = 0
        self._ended_bytes = 0
        self._ends: deque[int] = deque()  # bytes announced up to the end of each bucket under way

    def put(self, key: KeyState, operation: Operation, what: Collective, positions: range) -> None:
        """Queue a collective on some slices, in pieces that others may overtake."""
        most = max(1, COLLECTIVE_BYTES // max(1, self._slice_elements * key.itemsize))
        for first in range(positions.start, positions.stop, most):
            last = min(first + most, positions.stop)
            entry = (int(what), key.key_id, operation.sequence, first, last)
            num_bytes = key.num_bytes(first, last)
            self._queue.put(operation.priority, num_bytes, (entry, key))
            self._waiting_bytes += num_bytes

    def ended(self, done: Collect) -> None:
        """Note that a collective that was announced, or a part of it, has ended here."""
        self._ended_bytes += done.key.num_bytes(done.first, done.last)
        while self._ends and self._ends[0] <= self._ended_bytes:
            self._ends.popleft()

    def next(self) -> Instructions:
        """Announce, and carry out here as well, so many that the MPI threads have work."""
        chosen: list[Collect] = []
        entries: list[m.Announced] = []
        while self._queue and self._wants_more():
            bucket = self._next_bucket()
            for left, ((code, key_id, sequence, first, last), key) in zip(
                range(len(bucket), 0, -1), bucket
            ):
                entries.append((code, key_id, sequence, first, last, left))
                chosen.append(Collect(Collective(code), key, first, last, left))
        if not chosen:
            return []
        return [*(Send(member, m.Announce(entries)) for member in self._members), *chosen]

    def _wants_more(self) -> bool:
        """Return whether the next bucket shall be announced: it is full, or there is little to do."""
        full = self._waiting_bytes >= BUCKET_BYTES
        ahead_bytes = self._announced_bytes - self._ended_bytes
        return ahead_bytes < AHEAD_BYTES and (full or len(self._ends) < BUCKETS_AHEAD)

    def _next_bucket(self) -> list[tuple[_Entry, KeyState]]:
        """Take the most urgent collective, and those after it that can be carried out with it."""
        bucket: list[tuple[_Entry, KeyState]] = []
        total = 0
        while self._queue:
            num_bytes, (entry, _) = self._queue.peek()
            if bucket and (entry[0] != bucket[0][0][0] or total + num_bytes > BUCKET_BYTES):
                break
            bucket.append(self._queue.pop())
            total += num_bytes
        self._waiting_bytes -= total
        self._announced_bytes += total
        self._ends.append(self._announced_bytes)
        return bucket
