"""What an agent is to do, on its way there; where that is nothing, the agent is told that we are alive.

A thread writes, so that whoever gives an order does not wait for the connection. It also knows whether this
process was stopped, as by Ctrl-Z: then it has said nothing, and the agent has taken it for dead.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import IO

from mpilaunch.hosts import messages as m


class Orders:
    """The orders to one agent."""

    def __init__(self, sink: IO[bytes], name: str, silence: float) -> None:
        """Begin to write.

        Args:
            sink: Leads to the agent; closed in the end.
            name: Of the agent's host.
            silence: Seconds without a word after which the agent takes us for dead.
        """
        self._sink = sink
        self._silence = silence
        self._pause = silence / 5
        self._waiting: queue.SimpleQueue[m.Message | None] = queue.SimpleQueue()
        self._idle_since: float | None = None
        self._stopped = 0.0
        threading.Thread(target=self._write, name=f"{name} out", daemon=True).start()

    def put(self, message: m.Message | None) -> None:
        """Have a message written; ``None`` is the last one."""
        self._waiting.put(message)

    def stopped(self) -> float:
        """Return for how many seconds at least this process was stopped, if the agent took it for dead."""
        since = self._idle_since
        idle = 0.0 if since is None else time.monotonic() - since
        return max(self._stopped, idle - self._pause if idle > self._silence else 0.0)

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # who reads knows that the connection has ended
            while (message := self._next()) is not None:
                self._sink.write(m.encode(message))
                self._sink.flush()
        with contextlib.suppress(OSError):
            self._sink.close()

    def _next(self) -> m.Message | None:
        """Return the next message, which comes much sooner than the agent's patience ends."""
        self._idle_since = time.monotonic()
        try:
            return self._waiting.get(timeout=self._pause)
        except queue.Empty:
            return m.Alive()
        finally:
            self._stopped = self.stopped()
            self._idle_since = None
