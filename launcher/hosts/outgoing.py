"""What an agent says to the launcher: whoever says it does not wait for the launcher to read.

The launcher may be stopped, or cut off, while ranks print, and an agent that waited in a write would not
see its own deadlines. This file must not know what is said.
"""

from __future__ import annotations

import os
import select
from collections import deque

HELD_BYTES = 1 << 20
"""How much may wait for the launcher before what processes say is left in their pipes."""


class Outgoing:
    """Bytes on their way.

    Attributes:
        waiting: How many have not been written yet.
    """

    def __init__(self, sink: int) -> None:
        """Write to a descriptor."""
        self._sink = sink
        self._rest: deque[memoryview] = deque()
        self._poll = select.poll()
        self._poll.register(sink, select.POLLOUT)
        self.waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether no more should be said than must be."""
        return self.waiting > HELD_BYTES

    def put(self, data: bytes) -> None:
        """Say something after all that waits.

        Raises:
            OSError: The launcher is gone.
        """
        self._rest.append(memoryview(data))
        self.waiting += len(data)
        self.write()

    def write(self) -> None:
        """Write what there is room for.

        Raises:
            OSError: The launcher is gone.
        """
        while self._rest and self._poll.poll(0):
            # Where there is room at all there is for as much. The descriptor is not made non-blocking: it
            # would be so for all processes that have it.
            written = os.write(self._sink, self._rest[0][: select.PIPE_BUF])
            self.waiting -= written
            self._rest[0] = self._rest[0][written:]
            if not self._rest[0]:
                self._rest.popleft()

    def make_room(self, patience: float) -> None:
        """Wait until not too much waits.

        Args:
            patience: Seconds without any room after which nobody reads any more.

        Raises:
            OSError: Nobody reads, or the launcher is gone.
        """
        while self.is_full:
            if not self._poll.poll(patience * 1000):
                raise TimeoutError(f"the launcher has read nothing for {patience:g} s")
            self.write()
