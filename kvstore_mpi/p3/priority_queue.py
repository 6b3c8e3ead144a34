"""A queue in which what is urgent overtakes, but nothing waits for ever.

P3 section 4.2: a slice that becomes ready now overtakes every slice of lower priority that waits. Among
equals it is first come, first served. In synchronous training nothing can starve, because the urgent slices
of the next iteration depend on all slices of this one; asynchronous workers, or two models that are trained
side by side, know no such bound. So time is cut into epochs of ``EPOCH_BYTES`` of arrivals, and nothing
overtakes what came in an earlier epoch: less than that goes before an item that came before it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Item = TypeVar("Item")

EPOCH_BYTES = 16 << 30
"""Many iterations of most models, so that in ordinary training priority alone decides but once in many
iterations; at 10 Gb/s it is 14 s."""


class PriorityQueue(Generic[Item]):
    """Items with a priority and a size in bytes."""

    def __init__(self, *, by_priority: bool = True, epoch_bytes: int = EPOCH_BYTES) -> None:
        """Make an empty queue.

        Args:
            by_priority: Otherwise it is first come, first served for all.
            epoch_bytes: Bytes that may overtake an item.
        """
        self._by_priority = by_priority
        self._epoch_bytes = epoch_bytes
        self._heap: list[tuple[int, int, int, int, Item]] = []
        self._arrived = 0
        self._arrived_bytes = 0

    def put(self, priority: int, num_bytes: int, item: Item) -> None:
        """Queue an item; larger ``priority`` goes first."""
        self._arrived += 1
        self._arrived_bytes += num_bytes
        epoch = self._arrived_bytes // self._epoch_bytes
        rank = -priority if self._by_priority else 0
        heapq.heappush(self._heap, (epoch, rank, self._arrived, num_bytes, item))

    def peek(self) -> tuple[int, Item]:
        """Return the size of the item that ``pop`` would return, and the item."""
        return self._heap[0][3:]

    def pop(self) -> Item:
        """Remove and return the next item."""
        return heapq.heappop(self._heap)[4]

    def discard(self, unwanted: Callable[[Item], bool]) -> None:
        """Remove some items."""
        self._heap = [entry for entry in self._heap if not unwanted(entry[4])]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._heap)
