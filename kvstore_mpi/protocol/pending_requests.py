"""The blocking requests of one worker that are not answered yet, and the parts of answers so far. Pure."""

from __future__ import annotations

from typing import Any, Callable

from ..errors import KVStoreError
from ..records import KeySpec
from . import messages as m
from .worker_records import ReceivedPiece, Resolve


class PendingRequests:
    """Requests by number; an answer to a request that is not pending any more is ignored."""

    def __init__(self) -> None:
        """Start without any."""
        self._pending: set[int] = set()
        self._pieces: dict[int, list[ReceivedPiece]] = {}

    def note(self, number: int) -> None:
        """A request is on its way."""
        self._pending.add(number)

    def resolve(self, number: int, result: Any = None) -> list[Resolve]:
        """A request was carried out; its result is given, or is what states have come for it."""
        if number not in self._pending:
            return []
        self._pending.remove(number)
        return [Resolve(number, self._pieces.pop(number, result))]

    def states(
        self, message: m.States, payloads: list[Any], spec_of: Callable[[int], KeySpec]
    ) -> list[Resolve]:
        """Optimizer states have come, perhaps the last."""
        pieces = self._pieces.setdefault(message.request, [])
        for piece, payload in zip(message.pieces, payloads):
            pieces.append(ReceivedPiece(spec_of(piece.key_id), piece, payload))
        return self.resolve(message.request) if message.last else []

    def refused(self, number: int, error: KVStoreError) -> list[Resolve]:
        """A request has failed."""
        known = number in self._pending
        self._pending.discard(number)
        return [Resolve(number, error=error)] if known else []

    def fail(self, error: KVStoreError) -> list[Resolve]:
        """All communication has ended."""
        failed = [Resolve(number, error=error) for number in self._pending]
        self._pending.clear()
        return failed
