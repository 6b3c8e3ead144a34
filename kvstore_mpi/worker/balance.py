"""Whether this worker pushes more often than workers that already wait at a barrier. Pure.

A worker that is settled at a barrier has nothing under way and pushes no more until all have come there. A
push that it has not made is therefore never completed before the barrier, and who waits for that never
comes there: without this, both would wait until a deadline ends one of them. Of a worker that is not
settled nothing is said: another of its threads may be about to make that push. So it is with what the ranks
of a client pull together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.worker.operations import UNEQUAL

if TYPE_CHECKING:
    from kvstore_mpi.wire import messages as m

# Said of each: which of these a script has made too often, a number does not tell.
_ALIKE = (
    f"{UNEQUAL}; with --lookups together the ranks of a client must look rows up, and call prefetch, "
    "equally often"
)
_COUNTED = (
    ("pushes", "push", UNEQUAL),
    # In one number: in a synchronous store these are lookups, in an asynchronous one either, and whoever
    # makes one more of either waits.
    ("pushes and lookups with its client", "push or lookup", _ALIKE),
)
"""What is counted in ``Balance.pushes``, several and one of it, and why numbers may differ."""


class Balance:
    """Counts pushes that wait for others, so that all of these must make equally many.

    Attributes:
        pushes: How many have begun, in rounds of all workers, and in sums of this client alone, of which
            each client makes as many as it likes; with these what its ranks look up, or pull, together.
            Whoever begins one looks for an ``error`` while there are ``others``.
        others: Who waits at barriers to which this worker has not come, the earliest barrier first.
    """

    def __init__(self, me: str) -> None:
        """Start before the first push; ``me`` is this worker, for people."""
        self.pushes = [0, 0]
        self._me = me
        self._barrier = 0  # the last one that this worker has come to
        self.others: list[m.BarrierAwaits] = []
        self._finished: tuple[int, str] | None = None  # the fewest pushes of ranks that have, and whose

    def arrive(self, number: int) -> None:
        """This worker has come to a barrier, and need not be compared with others that wait there."""
        # Workers at later barriers stay: this one still has pushes to make before it comes there, and they
        # are compared.
        self._barrier = number
        self.others = [each for each in self.others if each.number > number]

    def awaited(self, message: m.BarrierAwaits) -> MismatchError | None:
        """Another worker waits at a barrier; return an error if it waits for ever."""
        if message.number <= self._barrier:
            return None  # this worker has come there, too
        # Looked at now and with each push from now on: the push that never completes may be under way
        # already, or yet to come.
        self.others.append(message)
        # The earliest barrier first: who waits there must be released before any other.
        self.others.sort(key=lambda each: each.number)
        return self.error()

    def finished(self, who: str, pushes: int) -> None:
        """Another rank of the client has finished after a number of pushes that it made for itself."""
        self._finished = min(self._finished or (pushes, who), (pushes, who))

    def surplus(self, own: int) -> str:
        """Say which of the ``own`` pushes can never be completed because another rank has finished, if any.

        Of pushes that need no collective nothing else tells: the servers wait for the other rank's.
        """
        if self._finished is None or own <= self._finished[0]:
            return ""
        pushes, who = self._finished
        made = f"{who} has finished after {pushes} pushes of rows, but {self._me} makes push {own}"
        return f"{made}: {UNEQUAL}"

    def error(self) -> MismatchError | None:
        """Return an error if this worker's pushes can never be completed."""
        for each in self.others:
            for own, theirs, (several, one, why) in zip(self.pushes, each.pushes, _COUNTED):
                # Below 0 stands for nothing said: the other one may still push, or is of another client,
                # whose sums are its own affair. As many is right: the push that begins now is counted here,
                # and was counted there when it began.
                if own > theirs >= 0:
                    return MismatchError(
                        f"{each.who} waits at barrier {each.number} and has made {theirs} {several}, but "
                        f"{self._me} makes {one} {own}: {why}"
                    )
        return None
