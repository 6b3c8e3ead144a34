"""The interface to sums that are under way together, which ``interfaces.Communicator`` begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class SumUnderWay(Protocol):
    """A sum, or a value on its way from one rank, that has begun; its communicator's thread calls this.

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


class BeginsSums(Protocol):
    """The part of ``interfaces.Communicator`` that begins what it also does at once.

    ``None`` where only one at a time is done. All ranks begin the same, in the same order, and other calls
    may come before these end. Until then the arrays, contiguous and 1-D, must stay as they are.
    """

    def begin_allreduce(self, array: np.ndarray[Any, Any]) -> SumUnderWay | None:
        """Begin an ``allreduce``."""
        ...

    def begin_reduce(self, array: np.ndarray[Any, Any], root: int) -> SumUnderWay | None:
        """Begin a ``reduce``: every other rank sends its array to the root."""
        ...

    def begin_broadcast(self, array: np.ndarray[Any, Any], root: int) -> SumUnderWay | None:
        """Begin a ``broadcast``: the root sends its array to every other rank."""
        ...
