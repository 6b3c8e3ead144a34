"""Operations that all ranks of a client meet for begin step by step, in the order of the user's program.

A framework begins an operation as soon as what it reads is there: the first key of a step may be before the
last key of the step before. A member of a client that waits for that last key has not come to the next one,
and the leader, if it began with that, would wait for ever. This file must not know about frameworks.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import Key


class _Early(NamedTuple):
    """An operation that the engine has begun before all of the step before."""

    step: int
    call: Callable[[Done], None]
    done: Done


class StepOrder:
    """The operations of one store that have been queued, and have not begun. A step has each key once."""

    def __init__(self) -> None:
        """Start with the first step."""
        self._lock = threading.Lock()
        self._step = 0
        self._keys: set[Key] = set()  # of this step
        self._queued: dict[int, int] = {}  # of each step that has some, in order
        self._early: list[_Early] = []

    def queued(self, key: Key, call: Callable[[Done], None]) -> Callable[[Done], None]:
        """Return what begins an operation of a key in its turn, which is that of this call.

        Args:
            key: Which one.
            call: Begins it. The engine must not leave it out, or nothing of a later step would begin.
        """
        with self._lock:
            if key in self._keys:
                self._step += 1
                self._keys.clear()
            self._keys.add(key)
            self._queued[self._step] = self._queued.get(self._step, 0) + 1
            return partial(self._begin, self._step, call)

    def _begin(self, step: int, call: Callable[[Done], None], done: Done) -> None:
        """Begin an operation, and those that have waited for it; or leave it to one that it waits for."""
        operation: _Early | None = _Early(step, call, done)
        with self._lock:
            if self._waits(step):
                self._early.append(_Early(step, call, done))
                return
        while operation is not None:
            operation = self._carry_out(operation)

    def _carry_out(self, operation: _Early) -> _Early | None:
        try:
            operation.call(operation.done)
        except BaseException as error:  # noqa: BLE001  its own operation ends with it, and not another one's
            operation.done(error)
        with self._lock:
            # Only now: what waits for it has to be called behind it.
            self._queued[operation.step] -= 1
            if not self._queued[operation.step]:
                del self._queued[operation.step]
            return self._next()

    def _next(self) -> _Early | None:
        for position, operation in enumerate(self._early):
            if not self._waits(operation.step):
                return self._early.pop(position)
        return None

    def _waits(self, step: int) -> bool:
        """Tell whether something of an earlier step has not begun."""
        return next(iter(self._queued), step) < step
