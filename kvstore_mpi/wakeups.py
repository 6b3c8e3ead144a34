"""Hears signals although the main thread may be in a native wait, where no handler of Python's can run.

Python runs handlers in the main thread, between two of its own instructions: not while MXNet or MPI waits
there, maybe for something that a dead process will never do. The C half of Python's handling writes the
number of each signal to a descriptor in any case, and a thread reads it here.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 4096

log = logging.getLogger("kvstore_mpi.signals")


class WakeUps:
    """The signals that this process hears so; a process has one of these, for Python has one descriptor."""

    def __init__(self) -> None:
        """Hear no signal yet; call it in the main thread.

        A script that sets a wake-up descriptor of its own takes this one's place.
        """
        self._heard: dict[int, Callable[[], None]] = {}
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # Quiet when full: more of the same signal say no more than one.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        # A forked child would write the signals that it gets into its parent's pipe.
        os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))
        # A daemon: the interpreter waits for all others before it runs the exit handlers, which save.
        threading.Thread(target=self._read, args=(reading,), name="kvstore-signals", daemon=True).start()

    def on(self, number: int, heard: Callable[[], None]) -> None:
        """Have ``heard`` called, in a thread of its own, when a signal that has a Python handler comes.

        It may be called again for each further one, and must not wait for long. What it raises is logged.
        """
        self._heard[number] = heard

    def _read(self, reading: int) -> None:
        while True:
            for number in set(os.read(reading, _READ_BYTES)):
                if number in self._heard:
                    self._call(number)

    def _call(self, number: int) -> None:
        try:
            self._heard[number]()
        except Exception:  # the signals that follow must be heard all the same
            log.exception("handling signal %d has failed", number)
