"""Which stores workers close, and when none of them uses a store any more. Pure.

A store is closed at a barrier, so that who comes there alone waits no longer than at others. It is over
when every worker that is there, or will be again, has closed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.records import NodeId
    from kvstore_mpi.scheduler.roster import Roster


class Closings:
    """What has been closed by whom.

    Attributes:
        stores: The stores that are over.
        keys: The numbers of the keys that stores had which are over.
    """

    def __init__(self, roster: Roster) -> None:
        """Start with nothing closed; the roster says who is there, and names workers in errors."""
        self.stores: list[int] = []
        self.keys: list[int] = []
        self._roster = roster
        # By barrier that has not opened, as who came there first has it: -1 where it closes nothing.
        self._first: dict[int, tuple[NodeId, int]] = {}
        self._closed_by: dict[int, set[NodeId]] = {}  # of stores that are not over
        self._broken: dict[int, MismatchError] = {}  # barriers at which workers differ

    def arrive(self, worker: NodeId, message: m.BarrierArrive) -> MismatchError | None:
        """A worker comes to a barrier; return an error if others do something else there."""
        if message.closes >= 0 and message.closes not in self.stores:
            self._closed_by.setdefault(message.closes, set()).add(worker)
        first, closes = self._first.setdefault(message.number, (worker, message.closes))
        if closes == message.closes:
            # Who comes last would wait for those that have been told, and have ended.
            return self._broken.get(message.number)
        own, other = self._roster.name(worker), self._roster.name(first)
        self._broken[message.number] = MismatchError(
            f"{own} {_does(message.closes)} where {other} {_does(closes)} (barrier {message.number}): all "
            "workers must close their stores, and call barrier, in the same order"
        )
        return self._broken[message.number]

    def opened(self, numbers: Iterable[int]) -> None:
        """Some barriers have opened, or were open."""
        for number in numbers:
            self._first.pop(number, None)

    def at(self, number: int) -> int:
        """Return which store is closed at a barrier that has not opened; -1 for none."""
        return self._first[number][1] if number in self._first else -1

    def start_anew(self) -> None:
        """All workers begin again with their first store and barrier; the keys get other numbers."""
        self.stores.clear()
        self._first.clear()
        self._closed_by.clear()
        self._broken.clear()

    def over(self) -> list[int]:
        """Return the stores that no worker uses any more, each once."""
        over = [store for store, workers in self._closed_by.items() if self._roster.all_in(workers)]
        for store in over:
            del self._closed_by[store]
        self.stores += over
        return over


def _does(closes: int) -> str:
    return "calls barrier" if closes < 0 else f"closes store {closes}"
