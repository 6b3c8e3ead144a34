"""What the leader of a client has announced to a member, and the member has not carried out yet.

Pure. Announcements come in the leader's order, and every rank carries them out in that order, as far as its
own program has come. The leader's side is ``announcements.py``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.worker.records import WANTED, Collect, Collective, KeyState, Kind, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvstore_mpi.wire import messages as m


class Agenda:
    """The collectives that one member has before it."""

    def __init__(self, me: str) -> None:
        """Start without any; ``me`` names the member in errors."""
        self._me = me
        self._announced: deque[m.Announced] = deque()
        self._begun = 0  # slices that it has begun to reduce, share or push, and not ended

    def put(self, entries: Iterable[m.Announced]) -> None:
        """The leader has announced these."""
        self._announced.extend(entries)

    def next(self, find: Callable[[int], KeyState | None]) -> Collect | None:
        """Take the next collective, if this rank's program has called for it.

        Args:
            find: Returns the key of a number, if it is known here.

        Raises:
            MismatchError: The leader has called another operation on the key.
        """
        if not self._announced:
            return None
        code, key_id, sequence, first, last, together = self._announced[0]
        collective = Collective(code)
        key = find(key_id)
        operation = key.queue[0] if key is not None and key.queue else None
        if key is None or operation is None:
            return None
        if (operation.kind is Kind.PULL) is not (collective is Collective.FETCH):
            return None
        if operation.sequence < sequence:
            return None  # an earlier operation on the key is still under way here
        if operation.kind not in WANTED[collective] or operation.sequence > sequence:
            raise self._disagreement(key, operation, collective, sequence)
        self._announced.popleft()
        self._begun += last - first
        return Collect(collective, key, first, last, together)

    def _disagreement(
        self, key: KeyState, operation: Operation, collective: Collective, sequence: int
    ) -> MismatchError:
        theirs = "/".join(kind.value for kind in WANTED[collective])
        return MismatchError(
            f"key {key.spec.key!r}: {self._me} called {operation.kind.value} number {operation.sequence} "
            f"where the leader of its client called {theirs} number {sequence}; all workers of a "
            "client must call the same operations on a key in the same order"
        )

    def ended(self, num_slices: int) -> None:
        """There is nothing to wait for any more with slices that were begun."""
        self._begun -= num_slices

    def clear(self) -> None:
        """All communication has ended."""
        self._announced.clear()

    @property
    def is_empty(self) -> bool:
        """Nothing is announced, and nothing under way."""
        return not self._announced and not self._begun

    def describe_first(self, find: Callable[[int], KeyState | None]) -> str:
        """Say what the leader waits in, if anything is announced, for people."""
        if not self._announced:
            return ""
        code, key_id, sequence, *_ = self._announced[0]
        key = find(key_id)
        name = repr(key.spec.key) if key else f"number {key_id}"
        return f"the leader waits in {Collective(code).name} number {sequence} of key {name}"
