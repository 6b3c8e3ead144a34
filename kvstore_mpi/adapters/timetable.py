"""When a client that trains by itself meets the center, and when it applies what has come.

In an asynchronous store the keys of a client are spread over the interval, and clients are shifted against
each other; in a synchronous one, whose rounds wait for all clients, all keys go at once. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from kvstore_mpi.errors import UsageError
from kvstore_mpi.esgd.stagger import exchange_offset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_Exchange = TypeVar("_Exchange")


class Timetable(Generic[_Exchange]):
    """The exchanges of one client: those that are due, and those that are under way.

    Attributes:
        steps: Steps so far.
    """

    def __init__(
        self, interval: int, overlap: int, *, client: int, num_clients: int, staggered: bool
    ) -> None:
        """Start before the first step.

        Args:
            interval: Steps between two exchanges of a key.
            overlap: Steps for which training goes on before what came is applied.
            client: Number of the client.
            num_clients: Number of clients.
            staggered: Keys and clients are spread over the interval.

        Raises:
            UsageError: Interval and overlap do not fit.
        """
        if not isinstance(interval, int) or interval < 1:
            raise UsageError(f"interval is {interval!r}; it must be a number of steps, 1 or more")
        if not isinstance(overlap, int) or not 0 <= overlap < interval:
            raise UsageError(f"overlap is {overlap!r}; it must be a number of steps from 0 to interval - 1")
        self.steps = 0
        self._interval = interval
        self._overlap = overlap
        self._client = client
        self._num_clients = num_clients
        self._staggered = staggered
        self._keys: list[int] = []
        self._by_step: dict[int, list[int]] = {}  # step of the interval -> keys; empty: to be planned
        self._under_way: deque[tuple[int, _Exchange]] = deque()

    def join(self, key: int) -> None:
        """Take up a key."""
        self._keys.append(key)
        self._by_step.clear()

    def due(self, num_keys: int) -> Sequence[int]:
        """Return the keys that are exchanged after the step that has just ended.

        Args:
            num_keys: Number of keys, whether they have joined or not: offsets must not depend on who has.
        """
        if not self._by_step:
            for position, key in enumerate(self._keys):
                self._by_step.setdefault(self._offset(position, num_keys), []).append(key)
        return self._by_step.get(self.steps % self._interval, ())

    def _offset(self, position: int, num_keys: int) -> int:
        if not self._staggered:
            return 0
        return exchange_offset(self._client, self._num_clients, position, num_keys, self._interval)

    def begin(self, exchange: _Exchange) -> None:
        """Note an exchange that has been asked for now."""
        self._under_way.append((self.steps + self._overlap, exchange))

    def arrived(self) -> Iterator[_Exchange]:
        """Take out the exchanges that are to be applied by now."""
        while self._under_way and self._under_way[0][0] <= self.steps:
            yield self._under_way.popleft()[1]

    def all_under_way(self) -> Iterator[_Exchange]:
        """Take out all exchanges that are under way, to be applied or not."""
        while self._under_way:
            yield self._under_way.popleft()[1]
