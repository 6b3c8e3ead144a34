"""The blocking requests of one worker that are not answered yet, and the parts of answers so far. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.worker.instructions import ReceivedPart, Resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.records import KeySpec, NodeId
    from kvstore_mpi.wire import messages as m
    from kvstore_mpi.wire.instructions import Send


class PendingRequests:
    """Requests by number; an answer to a request that is not pending any more is ignored."""

    def __init__(self) -> None:
        """Start without any."""
        # The messages themselves, with their payloads: a server that is started again is asked once more,
        # and the caller, who waits, cannot be asked for them.
        self._pending: dict[int, list[Send]] = {}
        self._received: dict[int, list[ReceivedPart]] = {}

    def note(self, number: int, parts: list[Send]) -> None:
        """A request begins."""
        self._pending[number] = parts

    def again(self, server: NodeId) -> list[Send]:
        """A server has lost what it was asked: return the requests that it has not answered."""
        # Whole requests, and what has come of answers is dropped: the new incarnation answers from its
        # snapshot, and halves of two incarnations would make one wrong state.
        asked = {number: parts for number, parts in self._pending.items() if parts[0].peer == server}
        for number in asked:
            self._received.pop(number, None)
        return [send for parts in asked.values() for send in parts]

    def resolve(self, number: int, result: Any = None) -> list[Resolve]:
        """A request was carried out; its result is given, or is what states have come for it."""
        # Asked again of a server that had answered just before it died, a request is answered twice.
        if number not in self._pending:
            return []
        del self._pending[number]
        return [Resolve(number, self._received.pop(number, result))]

    def states(
        self, message: m.States, payloads: list[Any], spec_of: Callable[[int], KeySpec | None]
    ) -> list[Resolve]:
        """Optimizer states have come, perhaps the last."""
        # Of a request that was refused or has failed nobody will ask for them, and they would stay.
        if message.request not in self._pending:
            return []
        received = self._received.setdefault(message.request, [])
        for part, payload in zip(message.parts, payloads):
            # A key that this worker has given up may still be on the server.
            if (spec := spec_of(part.key_id)) is not None:
                received.append(ReceivedPart(spec, part, payload))
        # States come in several messages, so that values of other keys get through between them; only the
        # last one ends the call.
        return self.resolve(message.request) if message.last else []

    def refused(self, number: int, error: KVStoreError) -> list[Resolve]:
        """A request has failed."""
        # The one refused request, and no other: its caller may catch the error and go on.
        known = self._pending.pop(number, None)
        self._received.pop(number, None)
        return [] if known is None else [Resolve(number, error=error)]

    def fail(self, error: KVStoreError) -> list[Resolve]:
        """All communication has ended."""
        failed = [Resolve(number, error=error) for number in self._pending]
        self._pending.clear()
        return failed
