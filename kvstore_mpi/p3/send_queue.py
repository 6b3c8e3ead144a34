"""What waits to be sent: for each destination a queue by priority, behind a window of bytes under way.

P3 section 4.2: a slice that becomes ready now overtakes all that has not been handed to the transport; the
window bounds what has. One destination never blocks another. Items that are ready together share a message,
which is what makes small keys cheap; on a fast link, where the window is large, neighbouring slices do,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from kvstore_mpi.p3.priority_queue import PriorityQueue
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.p3.window import Window

Destination = TypeVar("Destination", bound=Hashable)
Item = TypeVar("Item")

BUNDLE_BYTES = 1 << 20
"""Items for one destination share a message up to this size.

Handling a message takes a process some 50 us of Python, about as long as the memory traffic of one slice
of the default size; with five of them in a message that cost is small.
"""

BUNDLES_IN_WINDOW = 2
"""A message is at most such a part of the window, but a slice in any case: one is on the wire while room is
made for the other. None is smaller while more waits: what is acknowledged in small portions would leave in
small messages, each as dear as a large one (TCP's silly windows, RFC 1122 section 4.2.3.4)."""


class _Lane(Generic[Item]):
    __slots__ = ("num_bytes", "queue", "window")

    def __init__(self, window: Window, *, by_priority: bool) -> None:
        self.queue: PriorityQueue[tuple[Item, int]] = PriorityQueue(by_priority=by_priority)
        self.window = window
        self.num_bytes = 0  # that wait to travel


class SendQueue(Generic[Destination, Item]):
    """Priority queues and windows by destination."""

    def __init__(
        self,
        schedule: Schedule = Schedule.P3,
        *,
        window_bytes: int = 0,
        window_times: int = 1,
    ) -> None:
        """Make an empty queue.

        Args:
            schedule: Whether priority counts.
            window_bytes: Bytes under way to one destination; 0 lets each window find its size.
            window_times: Factor on the size that a window finds; 1 for a worker.
        """
        self._by_priority = schedule.by_priority
        self._window_bytes = window_bytes
        self._window_times = window_times
        self._lanes: dict[Destination, _Lane[Item]] = {}
        self._waiting: dict[Destination, _Lane[Item]] = {}

    def put(
        self, destination: Destination, priority: int, num_bytes: int, item: Item, *, travels: bool = True
    ) -> None:
        """Queue an item.

        Args:
            destination: Who shall have it.
            priority: Larger goes first.
            num_bytes: Its size.
            item: What ``bundles`` returns.
            travels: Its bytes travel; otherwise the window does not count them.
        """
        lane = self._lanes.get(destination) or self._new_lane(destination)
        wire_bytes = num_bytes if travels else 0
        lane.queue.put(priority, num_bytes, (item, wire_bytes))
        lane.num_bytes += wire_bytes
        if destination not in self._waiting:
            self._waiting[destination] = lane
            lane.window.resume()

    def expect(self, destination: Destination, num_bytes: int, slice_bytes: int) -> None:
        """Note that ``num_bytes`` more, or less, go to a destination in each iteration, in such slices."""
        lane = self._lanes.get(destination) or self._new_lane(destination)
        lane.window.expect(num_bytes, slice_bytes)

    def _new_lane(self, destination: Destination) -> _Lane[Item]:
        window = Window(self._window_bytes, times=self._window_times)
        lane = self._lanes[destination] = _Lane(window, by_priority=self._by_priority)
        return lane

    def bundles(
        self, now: float, in_flight: Callable[[Destination], int]
    ) -> Iterator[tuple[Destination, list[Item]]]:
        """Take what may leave now: bundles of items for one destination, destinations in turn.

        Args:
            now: The time, in seconds.
            in_flight: Bytes under way to a destination.
        """
        turns = [(destination, lane, in_flight(destination)) for destination, lane in self._waiting.items()]
        for _, lane, under_way in turns:
            lane.window.observe(under_way, now)
        while turns:
            again = []
            for destination, lane, under_way in turns:
                items, num_bytes = self._bundle(lane, under_way)
                if items:
                    lane.window.sent(num_bytes, now)
                    yield destination, items
                if not lane.queue:
                    self._waiting.pop(destination, None)
                elif items:
                    again.append((destination, lane, under_way + num_bytes))
            turns = again

    def wants_room(self, destination: Destination) -> bool:
        """Tell whether what waits, or one more message, has no room behind the bundle just taken.

        The receiver then has to acknowledge at once what it would otherwise acknowledge by the way.
        """
        lane = self._lanes[destination]
        return not lane.window.has_room(max(lane.num_bytes, self._largest(lane.window)))

    def _bundle(self, lane: _Lane[Item], in_flight: int) -> tuple[list[Item], int]:
        """Take items for one message, as the window admits; return also how many bytes travel."""
        queue, window = lane.queue, lane.window
        most = self._largest(window)
        room = window.limit - in_flight
        _, (_, first_travels) = queue.peek()
        if first_travels and in_flight and room < min(most, lane.num_bytes):
            return [], 0  # later there is room for a whole message
        items: list[Item] = []
        total = travelling = 0
        while queue:
            num_bytes, (item, wire_bytes) = queue.peek()
            total += num_bytes
            travelling += wire_bytes
            if items and (total > BUNDLE_BYTES or travelling > most):
                return items, travelling - wire_bytes
            if not window.admits(travelling, in_flight):
                return items, travelling - wire_bytes
            queue.pop()
            lane.num_bytes -= wire_bytes
            items.append(item)
        return items, travelling

    def drop(self, destination: Destination) -> None:
        """Forget what waits for a destination."""
        lane = self._waiting.pop(destination, None)
        if lane is not None:
            lane.queue.discard(lambda _: True)
            lane.num_bytes = 0

    def _largest(self, window: Window) -> int:
        return max(window.slice_bytes, min(BUNDLE_BYTES, window.limit // BUNDLES_IN_WINDOW))

    @property
    def num_bytes(self) -> int:
        """Bytes that wait to travel, to all destinations; any thread may ask."""
        return sum(lane.num_bytes for lane in list(self._lanes.values()))

    def __bool__(self) -> bool:
        """Return whether anything waits."""
        return bool(self._waiting)

    def __len__(self) -> int:
        """Return how many items wait."""
        return sum(len(lane.queue) for lane in self._waiting.values())
