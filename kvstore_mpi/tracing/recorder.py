"""The recorder of one process: appends small records to a bounded ring, from any thread, without a lock.

Whoever has something to record holds a ``Recorder | None`` and tests it, so that a job without a trace pays
for that test alone. What the records mean is decided when the job is over (``timeline.py``).

The ring holds encoded lines and not objects: Python's collector goes through all objects of a process once
those that stay have grown by a quarter, which takes 45 ms where MXNet is loaded, in the midst of training.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi.host_name import host_name
from kvstore_mpi.tracing.clock import ClockOffset
from kvstore_mpi.tracing.events import AnyEvent, Done, Header, InFlight, Mark, Ready, Span, Step
from kvstore_mpi.tracing.iterations import ITERATION, WAIT, kind_of
from kvstore_mpi.tracing.parts import encode, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Done as Callback
    from kvstore_mpi.records import Key, NodeId

log = logging.getLogger("kvstore_mpi.tracing")

CAPACITY = 1 << 17
"""Events that a process keeps, the newest; some 50 MB if it ever fills."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Recorder:
    """What one process has to tell about its part in the job.

    ``deque.append`` and ``next`` of a counter are atomic in CPython; operations on one key come one after
    the other, so that their count needs no lock either.

    Attributes:
        now: The clock, in nanoseconds.
        clock: How the coordinator's clock stands to it; fed with the answers to probes.
        pending: Returns for how many seconds communication has been under way so far.
        hidden_seconds: How many of those the script's thread was inside marks of computing.
    """

    def __init__(
        self,
        node: NodeId,
        directory: str,
        *,
        client: int = 0,
        model_rank: int | None = None,
        capacity: int = CAPACITY,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Record for a process.

        Args:
            node: The process.
            directory: Folder of the job's trace; ``write`` leaves a part in it.
            client: Of a worker, its client.
            model_rank: As of ``Header``.
            capacity: Events to keep.
            now: The clock; other processes of the host must have the same.
        """
        self.now = now
        self.clock = ClockOffset()
        self.pending: Callable[[], float] = float
        self.hidden_seconds = 0.0
        self._marks = 0  # of computing that the script's thread is in
        self._script = threading.main_thread().ident
        self._node = node
        self._client = client
        self._model_rank = model_rank
        self._directory = Path(directory)
        self._ring: deque[bytes] = deque(maxlen=capacity)
        self._numbers = itertools.count()
        self._pushes: dict[tuple[int, Key], int] = {}
        self._in_flight: dict[NodeId, int] = {}
        self._keys: dict[int, tuple[int, Key]] = {}
        self._elements: dict[int, int] = {}
        self._pid = os.getpid()

    # --- from any thread, on the hot path ---

    def mark(
        self, step: Step, peer: NodeId | None, entries: Sequence[Sequence[int]], since: int = 0
    ) -> None:
        """Record that runs have come to a step.

        Args:
            step: The step.
            peer: Whom it has to do with; see ``events.Mark``.
            entries: (key number, lo, hi, sequence, anything more) of each run, as they stand in messages.
            since: When the work of this step began, if it takes a while.
        """
        self._record(Mark(self.now(), step, peer, entries, since))

    def in_flight(self, peer: NodeId, num_bytes: int) -> None:
        """Record how many bytes are under way to a peer, if that has changed; always from one thread."""
        if self._in_flight.get(peer) == num_bytes:
            return
        self._in_flight[peer] = num_bytes
        self._record(InFlight(self.now(), peer, num_bytes))

    def operation(self, kind: str, store: int, key: Key, priority: int, done: Callback) -> Callback:
        """Record that a user's operation may start; return what to call instead of ``done`` at its end."""
        number = next(self._numbers)
        sequence = 0
        if kind != "pull":
            sequence = self._pushes[store, key] = self._pushes.get((store, key), 0) + 1
        self._record(Ready(self.now(), number, kind, store, key, priority, sequence))

        def ended(error: BaseException | None) -> None:
            self._record(Done(self.now(), number))
            done(error)

        return ended

    def begins(self, name: str) -> float:
        """This thread begins what it marks; return what ``ends`` is to be given."""
        if kind_of(name) not in (WAIT, ITERATION) and threading.get_ident() == self._script:
            self._marks += 1
        return self.pending()

    def ends(self, name: str, before: float) -> None:
        """This thread ends what it has marked: communication meanwhile was hidden if that was computing."""
        if threading.get_ident() != self._script:
            return
        pending = self.pending() - before
        kind = kind_of(name)
        if kind == WAIT:
            self.hidden_seconds -= pending if self._marks else 0.0
            return
        if kind == ITERATION:
            return
        self._marks -= 1
        if not self._marks:
            self.hidden_seconds += pending

    def span(self, name: str, since: int, thread: int | None = None) -> None:
        """Record that a thread, this one if none is given, has just ended what it began at ``since``."""
        self._record(Span(since, self.now(), name, threading.get_ident() if thread is None else thread))

    def _record(self, event: AnyEvent) -> None:
        self._ring.append(encode(event))

    # --- seldom ---

    def name_key(
        self, key_id: int, store: int, key: Key, shards: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        """Note which key a number stands for, and its size if its shards (server, lo, hi) are given."""
        self._keys[key_id] = (store, key)
        if shards:
            self._elements[key_id] = max(hi for _, _, hi in shards)

    def write(self) -> None:
        """Write the part of this process; again, with what has been added since, if called again.

        A forked child inherits the recorder, but has no part in the job. A trace that cannot be written
        must not make a job fail that has trained well; the log says so.
        """
        if os.getpid() != self._pid:
            return
        try:
            write_part(self._directory, self._header(), list(self._ring))
        except OSError as error:
            text = "the part of %s cannot be written below %s: %s"
            log.error(text, self._node, self._directory, error.strerror)  # noqa: TRY400  the disk is full, say

    def _header(self) -> Header:
        offset = self.clock.at(self.now())
        return Header(
            node=self._node,
            client=self._client,
            model_rank=self._model_rank,
            host=host_name(),
            pid=self._pid,
            boot_id=BOOT_ID.read_text(encoding="ascii").strip(),
            offset_ns=offset.offset_ns if offset else 0,
            offset_error_ns=offset.error_ns if offset else None,
            keys=[(key_id, *named) for key_id, named in sorted(self._keys.items())],
            elements=self._elements,
            full=len(self._ring) == self._ring.maxlen,
        )
