"""Ends the calls of workers without a network, on one background thread; a test may withhold answers.

This file must not know what the calls are.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import Key


class Call(NamedTuple):
    """One asynchronous call of one worker.

    Attributes:
        rank: The worker.
        name: ``init``, ``push``, ``pull`` or ``pushpull``, or one of these with ``_rows``.
        store: Number of the store.
        key: The key.
        priority: As the caller gave it.
        gives: Of a push, the new value comes as well.
    """

    rank: int
    name: str
    store: int
    key: Key
    priority: int
    gives: bool = False


class _Answer(NamedTuple):
    call: Call
    done: Done
    give: Callable[[], None] | None


Chooser = Callable[[Call], bool]


class Answers:
    """All answers to the workers of a job."""

    def __init__(self) -> None:
        """Start the thread."""
        self._lock = threading.Lock()
        self._due: queue.SimpleQueue[_Answer | None] = queue.SimpleQueue()
        self._held: list[_Answer] = []
        self._holds: Chooser = lambda _call: False
        self._failing: Chooser = lambda _call: False
        self._error: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="fake-worker", daemon=True)
        self._thread.start()

    def hold(self, chooser: Chooser) -> None:
        """Withhold the answers to the calls that ``chooser`` picks, until ``release``."""
        with self._lock:
            self._holds = chooser

    def release(self) -> None:
        """Give all answers that were withheld, and withhold no more."""
        with self._lock:
            self._holds = lambda _call: False
            for answer in self._held:
                self._due.put(answer)
            self._held.clear()

    def fail(self, chooser: Chooser, error: BaseException) -> None:
        """Let the calls that ``chooser`` picks end with an error from now on."""
        with self._lock:
            self._failing, self._error = chooser, error

    def close(self) -> None:
        """Stop the thread after the answers that are due.

        What an engine of operations asks later, because it has not come to it, is answered as it asks.
        """
        self.release()
        with self._lock:
            self._closed = True
            self._due.put(None)
        self._thread.join()

    def answer(self, call: Call, done: Done, give: Callable[[], None] | None = None) -> None:
        """End a call, when its answer is not withheld; ``give`` hands over what it brings."""
        answer = _Answer(call, done, give)
        with self._lock:
            if self._holds(call):
                self._held.append(answer)
                return
            if not self._closed:
                self._due.put(answer)
                return
        self._end(answer)

    def _run(self) -> None:
        while (answer := self._due.get()) is not None:
            self._end(answer)

    def _end(self, answer: _Answer) -> None:
        error = self._error if self._failing(answer.call) else None
        if error is None and answer.give is not None:
            answer.give()
        answer.done(error)
