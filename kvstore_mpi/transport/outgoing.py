"""Messages of one connection that the kernel has not taken yet. Pure: how much it takes others find out."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from kvstore_mpi.transport.framing import without

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.interfaces import Buffer


class Outgoing:
    """A queue of messages, each of several parts, that leaves byte by byte."""

    __slots__ = ("_left", "_parts")

    def __init__(self) -> None:
        """Start empty."""
        self._parts: deque[memoryview] = deque()
        self._left: deque[int] = deque()  # of each message, how many parts have not left

    def __bool__(self) -> bool:
        """Return whether anything waits."""
        return bool(self._parts)

    def __len__(self) -> int:
        """Return how many messages wait, one of which a part has left among them."""
        return len(self._left)

    def put(self, parts: Sequence[Buffer], sent: int) -> None:
        """Queue what follows the first ``sent`` bytes of a message; there is something."""
        rest = without(parts, sent)
        self._parts.extend(rest)
        self._left.append(len(rest))

    def first(self, most: int) -> list[Buffer]:
        """Return the next parts, at most ``most``."""
        return list(islice(self._parts, most))

    def take(self, parts: Sequence[Buffer], sent: int) -> None:
        """Forget the first ``sent`` bytes of the parts that ``first`` has returned."""
        rest = without(parts, sent)
        for _ in range(len(parts) - len(rest)):
            self._parts.popleft()
            self._left[0] -= 1
            if not self._left[0]:
                self._left.popleft()
        if rest:
            self._parts[0] = rest[0]

    def clear(self) -> None:
        """Forget everything."""
        self._parts.clear()
        self._left.clear()
