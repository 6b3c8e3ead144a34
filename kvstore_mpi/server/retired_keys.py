"""Keys that no worker uses any more, until their memory may be freed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class RetiredKeys:
    """The keys of one server that something else has taken the place of, or whose stores are over.

    The former stay until every server has saved what that is: snapshots of several servers are of different
    moments, and if one had the former key alone and the next the new one alone, a job could go on with
    neither.

    Attributes:
        numbers: Of all of them, also of those that were freed.
        closed: Of those whose stores are over; they do not come back.
    """

    def __init__(self, delay: float) -> None:
        """Start with none; each stays for ``delay`` seconds."""
        # It only grows: a snapshot of any later time must say so, as long as that of another server may
        # still have such a key, which would otherwise be taken for the one to go on with.
        self.numbers: list[int] = []
        self.closed: set[int] = set()
        self._delay = delay
        # Times, because how far the snapshots of other servers are nobody here knows.
        self._until: dict[int, float] = {}

    def put(self, key_id: int, now: float) -> None:
        """Nobody uses a key any more."""
        self.numbers.append(key_id)
        self._until[key_id] = now + self._delay

    def close(self, keys: Iterable[int]) -> None:
        """The stores of some keys are over: nothing takes their place, and nobody waits with them."""
        known = set(self.numbers)
        for key_id in keys:
            self._until.pop(key_id, None)
            # What was replaced long ago has been freed, and is among them already.
            if key_id not in known:
                self.numbers.append(key_id)
            # Also of keys that never were here: what a worker gives of them may come yet.
            self.closed.add(key_id)

    def due(self, now: float) -> list[int]:
        """Return the keys that are to be freed now."""
        due = [key_id for key_id, until in self._until.items() if until <= now]
        for key_id in due:
            # Not from ``numbers``: snapshots that have it may still be taken up.
            del self._until[key_id]
        return due
