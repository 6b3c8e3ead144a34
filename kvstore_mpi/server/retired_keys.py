"""Keys that no worker uses any more, until their memory may be freed. Pure."""

from __future__ import annotations


class RetiredKeys:
    """The keys of one server that something else has taken the place of.

    They stay until every server has saved what that is: snapshots of several servers are of different
    moments, and if one had the former key alone and the next the new one alone, a job could go on with
    neither.

    Attributes:
        numbers: Of all of them, also of those that were freed.
    """

    def __init__(self, delay: float) -> None:
        """Start with none; each stays for ``delay`` seconds."""
        # It only grows: a snapshot of any later time must say so, as long as that of another server may
        # still have such a key, which would otherwise be taken for the one to go on with.
        self.numbers: list[int] = []
        self._delay = delay
        # Times, because how far the snapshots of other servers are nobody here knows.
        self._until: dict[int, float] = {}

    def put(self, key_id: int, now: float) -> None:
        """Nobody uses a key any more."""
        self.numbers.append(key_id)
        self._until[key_id] = now + self._delay

    def due(self, now: float) -> list[int]:
        """Return the keys that are to be freed now."""
        due = [key_id for key_id, until in self._until.items() if until <= now]
        for key_id in due:
            # Not from ``numbers``: snapshots that have it may still be taken up.
            del self._until[key_id]
        return due
