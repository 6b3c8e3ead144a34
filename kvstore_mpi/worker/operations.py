"""The operations of a worker that are under way: one on each key, in the order of the user's calls.

Pure. This file must not know what an operation has to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import DeadlineError, KVStoreError, SkippedError
from kvstore_mpi.worker.records import Complete, Instructions, Keep, KeyState, Kind, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Operations:
    """What one worker's user waits for."""

    def __init__(self, me: str, coordinator: str, step_timeout: float) -> None:
        """Start without any.

        Args:
            me: Names this worker in errors.
            coordinator: Names who is waited for where no server is.
            step_timeout: Seconds after which an operation that has not ended is an error.
        """
        self._me = me
        self._coordinator = coordinator
        self._step_timeout = step_timeout
        self._active: dict[KeyState, Operation] = {}

    def under_way(self) -> list[tuple[KeyState, Operation]]:
        """Return the operations that have begun and not ended."""
        return [*self._active.items()]

    def on(self, key: KeyState) -> Operation | None:
        """Return the operation that is under way on a key, if there is one."""
        return self._active.get(key)

    def begin(self, key: KeyState, now: float) -> Operation:
        """The key's next operation begins."""
        operation = key.queue[0]
        operation.since = now
        self._active[key] = operation
        if key.answered is not None:
            key.answered.clear()
        return operation

    def end(self, key: KeyState, *, keep: bool) -> Instructions:
        """The key's operation has ended: tell the caller; ``keep`` a copy of the value, if it is new."""
        del self._active[key]
        operation = key.queue.popleft()
        skipped = None
        if operation.skipped:
            skipped = SkippedError(f"{key.spec} was not exchanged as a whole: a server is away")
        out: Instructions = []
        if keep and operation.kind is not Kind.PUSH:
            out.append(Keep(key))  # as long as the buffer is not the caller's again
        out.append(Complete(operation.done, skipped))
        while key.queue and key.queue[0].kind is Kind.PULL and not key.on_servers:
            out.append(Complete(key.queue.popleft().done))  # without servers the value is there
        return out

    def fail(self, keys: Iterable[KeyState], error: KVStoreError) -> Iterator[Complete]:
        """All operations end with an error, also those that have not begun."""
        for key in keys:
            yield from (Complete(operation.done, error) for operation in key.queue)
            key.queue.clear()
        self._active.clear()

    def waits_for_client(self) -> str:
        """Name an operation that needs the rest of the client, if there is one, for people."""
        for key, operation in self._active.items():
            if operation.kind in (Kind.PUSH, Kind.PUSHPULL) or operation.sequence:
                return f"{operation.kind.value} number {operation.sequence} of key {key.spec.key!r}"
        return ""

    def overdue(self, now: float) -> DeadlineError | None:
        """Return the error of an operation that has waited too long, if there is one."""
        for key, operation in self._active.items():
            if now - operation.since > self._step_timeout:
                servers = sorted({str(server) for server, _ in key.slices}) or [self._coordinator]
                return DeadlineError(
                    f"{self._me}: {operation.kind.value} number {operation.sequence} of {key.spec} has not "
                    f"ended within {self._step_timeout:g} s; {operation.remaining} of {len(key.slices)} "
                    f"slices are missing; it involves {', '.join(servers)} and the workers of its client"
                )
        return None
