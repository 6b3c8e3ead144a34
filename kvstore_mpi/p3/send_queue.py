"""What waits to be sent: one priority queue per destination, served in bundles.

P3 section 4.2: a slice that becomes ready now overtakes every slice of lower priority that has not been
handed to the transport. Among equals it is first come, first served: the order key is
``(-priority, arrival)``. One destination never blocks another.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, Hashable, Iterator, TypeVar

Destination = TypeVar("Destination", bound=Hashable)
Item = TypeVar("Item")


class SendQueue(Generic[Destination, Item]):
    """Priority queues by destination."""

    def __init__(self) -> None:
        """Make an empty queue."""
        self._heaps: dict[Destination, list[tuple[int, int, int, Item]]] = {}
        self._arrival = itertools.count()

    def put(self, destination: Destination, priority: int, num_bytes: int, item: Item) -> None:
        """Queue an item; larger ``priority`` goes first."""
        entry = (-priority, next(self._arrival), num_bytes, item)
        heapq.heappush(self._heaps.setdefault(destination, []), entry)

    def bundles(self, bundle_bytes: int) -> Iterator[tuple[Destination, list[Item]]]:
        """Empty the queue: yield bundles of items for one destination, destinations in turn.

        A bundle is closed before it would exceed ``bundle_bytes``; an item larger than that travels
        alone. Small keys so share one message, which is what makes them cheap.
        """
        while self._heaps:
            for destination in list(self._heaps):
                heap = self._heaps[destination]
                yield destination, self._bundle(heap, bundle_bytes)
                if not heap:
                    del self._heaps[destination]

    @staticmethod
    def _bundle(heap: list[tuple[int, int, int, Item]], bundle_bytes: int) -> list[Item]:
        _, _, room, item = heapq.heappop(heap)
        items = [item]
        room = bundle_bytes - room
        while heap and heap[0][2] <= room:
            _, _, num_bytes, item = heapq.heappop(heap)
            room -= num_bytes
            items.append(item)
        return items

    def __bool__(self) -> bool:
        """Return whether anything waits."""
        return bool(self._heaps)

    def __len__(self) -> int:
        """Return how many items wait."""
        return sum(len(heap) for heap in self._heaps.values())
