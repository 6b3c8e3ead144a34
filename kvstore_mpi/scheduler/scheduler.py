"""The scheduler process: a thin shell around ``scheduler/state.py``."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from kvstore_mpi.launcher_events import tell
from kvstore_mpi.records import Role
from kvstore_mpi.wire import events as ep
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send, Stop
from kvstore_mpi.wire.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.scheduler.state import SchedulerState
    from kvstore_mpi.wire.io_loop import IoLoop

log = logging.getLogger("kvstore_mpi.scheduler")


class Scheduler:
    """Membership, keys, barriers and liveness of one job."""

    def __init__(self, state: SchedulerState, loop: IoLoop) -> None:
        """Take ownership of the state and the loop."""
        self.error: KVStoreError | None = None
        self._records: Path | None = None  # by which the launcher is told whom to end, if it wants to know
        self._state = state
        self._loop = loop

    def listen(self, news: Path, records: Path) -> None:
        """Hear from the launcher which processes have died and are started again, and tell it who is lost.

        Args:
            news: A named pipe with a line of JSON for each death.
            records: Where ranks tell of themselves (``launcher_events``).
        """
        self._records = records
        threading.Thread(target=self._read, args=(news,), name="kvstore-news", daemon=True).start()

    def _read(self, news: Path) -> None:
        with news.open(encoding="utf-8") as lines:
            for line in lines:
                self._loop.post(partial(self.restarting, **json.loads(line)))

    def restarting(self, now: float, *, name: str, incarnation: int, why: str) -> None:
        """An incarnation of a client or a server has died, and the next is started."""
        for node in self.named(name):
            self._loop.endpoint.forget(node, before=incarnation + 1)
        self._do(self._state.restarting(name, incarnation, why, now))

    def named(self, name: str) -> list[NodeId]:
        """Return whom the launcher means by ``client1`` or ``server0``: all its processes."""
        return self._state.roster.named(name)

    def run(self) -> None:
        """Serve until all workers have left.

        Raises:
            KVStoreError: The job could not go on.
        """
        self._loop.run(self)
        if self.error is not None:
            raise self.error

    def on_event(self, event: ep.Event, now: float) -> None:
        """See ``io_loop.Node``."""
        match event:
            case ep.Received():
                self._receive(event.peer, event.message, now)
            case ep.Connected():
                self._loop.endpoint.monitor(event.peer)
            case ep.Silent():
                self._do(self._state.silent(event.peer, event.seconds, now))
                self._give_up(event.peer)
            case ep.Failed():
                self._do(self._state.lost(event.peer, f"cannot be reached: {event.error}", now))

    def _give_up(self, peer: NodeId) -> None:
        """Have the launcher end a client that others train on without: it may never do so by itself."""
        if self._records is None or peer.role is not Role.WORKER:
            return
        roster = self._state.roster
        client = roster.group(peer)
        run = roster.joined[peer].incarnation
        name = (peer.index // len(client), peer.index % len(client), run)
        with contextlib.suppress(OSError):
            tell(self._records, name, "lost")

    def _receive(self, peer: NodeId, message: Message, now: float) -> None:
        if isinstance(message, m.ClockProbe):
            self._loop.send(peer, m.ClockAnswer(message.sent_ns, time.monotonic_ns()))
        elif isinstance(message, m.ToScheduler):
            self._do(self._state.handle(peer, message, now))

    @property
    def busy(self) -> bool:
        """See ``io_loop.Node``: what can be done is done at once."""
        return False

    @property
    def deadline(self) -> None:
        """See ``io_loop.Node``: nothing is due but the tick."""

    def on_pass(self, now: float) -> None:
        """See ``io_loop.Node``."""

    def on_tick(self, now: float) -> None:
        """See ``io_loop.Node``."""
        self._do(self._state.tick(now))

    def on_crash(self, error: BaseException) -> None:
        """See ``io_loop.Node``: ``run`` raises by itself."""

    def _do(self, instructions: Iterable[Send | Log | Stop]) -> None:
        for instruction in instructions:
            match instruction:
                case Send():
                    self._loop.send(*instruction)
                case Log():
                    log.log(instruction.level, instruction.text)
                case Stop():
                    self.error = instruction.error
                    self._loop.stop()
