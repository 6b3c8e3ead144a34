"""Marks of a net's parts on the trace: when each was computed, and when its rank waited for another.

MXNet computes behind the script's back. So the end of a computation is taken by an operation of its engine
that reads what was computed, and a rank that waits for a message while its engine computes does not wait.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from kvstore_mpi.adapters.mxnet.bridge.engine import push_async
from kvstore_mpi.tracing.iterations import BACKWARD, FORWARD, ITERATION, WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.planner.pipelines.schedules import Action
    from kvstore_mpi.tracing.recorder import Recorder


class PartMarks:
    """Records what one rank of a worker does in its steps; made and told by the thread that trains.

    A rank computes one thing at a time, in the order in which it asks: each computation begins when it is
    asked for, or when the one before it has ended.
    """

    def __init__(self, recorder: Recorder, names: Sequence[str]) -> None:
        """Record with names of parts, by their numbers."""
        self._recorder = recorder
        self._names = names
        self._thread = threading.get_ident()
        self._begun = 0
        self._asked = 0
        self._ended = 0  # by threads of the engine, and so is the time of the last end
        self._last = 0

    def step(self) -> None:
        """See ``segment_run.Observer``."""
        self._recorder.span(ITERATION, self._recorder.now())

    def begins(self, _action: Action) -> None:
        """See ``segment_run.Observer``."""
        self._begun = self._recorder.now()

    def asked(self, action: Action, made: Callable[[], Sequence[NDArray]]) -> None:
        """See ``segment_run.Observer``."""
        self._asked += 1
        kind = FORWARD if action.forward else BACKWARD
        name = f"{kind} {self._names[action.segment]} {action.micro_batch}"
        ended = partial(self._computed, name, self._begun)
        push_async(ended, const=made(), on_error=lambda _: None)

    def _computed(self, name: str, begun: int, done: Done) -> None:
        self._recorder.span(name, max(begun, self._last), self._thread)
        self._last = self._recorder.now()
        self._ended += 1
        done(None)

    @contextmanager
    def waiting(self, what: Callable[[], str]) -> Iterator[None]:
        """See ``segment_run.Observer``."""
        since = self._recorder.now()
        yield
        if self._ended == self._asked:
            self._recorder.span(f"{WAIT} for {what()}", max(since, self._last))
