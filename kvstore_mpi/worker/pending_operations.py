"""The operations of a worker that have not ended: callers' threads begin them, the I/O thread ends them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Done


class PendingOperations:
    """A count that threads can wait for to be zero."""

    def __init__(self) -> None:
        """Start without any."""
        self._count = 0
        self._settled = threading.Condition()

    def begin(self, done: Done) -> Done:
        """An operation begins; return what is to be called at its end in place of ``done``."""
        with self._settled:
            self._count += 1

        def end(error: BaseException | None) -> None:
            done(error)
            with self._settled:
                self._count -= 1
                if not self._count:
                    self._settled.notify_all()

        return end

    def wait(self, timeout: float | None) -> int:
        """Wait until all have ended; return how many have not after so many seconds."""
        with self._settled:
            self._settled.wait_for(lambda: self._count == 0, timeout)
            return self._count
