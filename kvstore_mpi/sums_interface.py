"""The interface to sums that are under way together, which ``interfaces.Communicator`` begins."""

from __future__ import annotations

from typing import Protocol


class SumUnderWay(Protocol):
    """An allreduce that has been begun; all calls come from the thread of its communicator.

    A rank goes on with its sums in these calls alone. Where another rank may wait for a sum, a rank that
    has it under way must not wait in any other call for that rank: both would wait for ever.
    """

    def pause_s(self) -> float:
        """Return for how many seconds nobody needs to ask; 0 where it is better waited for."""
        ...

    def has_ended(self) -> bool:
        """Take all sums that are under way further, and tell whether this one has ended, at once."""
        ...

    def wait(self) -> None:
        """Return when it has ended; those that were begun before it have."""
        ...
