"""A queue in which what is urgent overtakes, but nothing waits for ever.

P3 section 4.2: a slice that becomes ready now overtakes every slice of lower priority that waits. Among
equals it is first come, first served. In synchronous training nothing can starve, because the urgent slices
of the next iteration depend on all slices of this one; asynchronous workers, or two models that are trained
side by side, know no such bound, so there is one here: ``PATIENCE_BYTES``.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Deque, Generic, List, TypeVar

Item = TypeVar("Item")

PATIENCE_BYTES = 1 << 30
"""What may overtake an item before it goes first. More than the gradients of most models, so that in
ordinary training priority alone decides; at 10 Gb/s it is 0.9 s."""


class _Entry(Generic[Item]):
    __slots__ = ("arrival", "item", "num_bytes", "patience", "rank", "taken")

    def __init__(self, rank: int, arrival: int, num_bytes: int, item: Item, patience: int) -> None:
        self.rank = rank
        self.arrival = arrival
        self.num_bytes = num_bytes
        self.item = item
        self.patience = patience
        self.taken = False

    def __lt__(self, other: _Entry[Item]) -> bool:
        return (self.rank, self.arrival) < (other.rank, other.arrival)


class PriorityQueue(Generic[Item]):
    """Items with a priority and a size in bytes."""

    def __init__(self, *, by_priority: bool = True, patience: int = PATIENCE_BYTES) -> None:
        """Make an empty queue.

        Args:
            by_priority: Otherwise it is first come, first served for all.
            patience: Bytes that may overtake an item.
        """
        self._by_priority = by_priority
        self._patience = patience
        self._heap: List[_Entry[Item]] = []
        self._arrivals: Deque[_Entry[Item]] = deque()
        self._arrived = 0
        self._served_bytes = 0
        self._length = 0

    def put(self, priority: int, num_bytes: int, item: Item) -> None:
        """Queue an item; larger ``priority`` goes first."""
        self._arrived += 1
        rank = -priority if self._by_priority else 0
        entry = _Entry(rank, self._arrived, num_bytes, item, self._served_bytes + self._patience)
        heapq.heappush(self._heap, entry)
        self._arrivals.append(entry)
        self._length += 1

    def peek(self) -> tuple[int, Item]:
        """Return the size of the item that ``pop`` would return, and the item."""
        entry = self._next()
        return entry.num_bytes, entry.item

    def pop(self) -> Item:
        """Remove and return the next item."""
        entry = self._next()
        entry.taken = True
        self._served_bytes += entry.num_bytes
        self._length -= 1
        return entry.item

    def _next(self) -> _Entry[Item]:
        heap, arrivals = self._heap, self._arrivals
        while arrivals[0].taken:
            arrivals.popleft()
        while heap[0].taken:
            heapq.heappop(heap)
        return arrivals[0] if arrivals[0].patience < self._served_bytes else heap[0]

    def __len__(self) -> int:
        """Return how many items wait."""
        return self._length
