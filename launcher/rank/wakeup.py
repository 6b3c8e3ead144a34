"""Hears a signal although the main thread may be in a native wait, where no handler of Python's can run.

Python runs handlers in the main thread, between two of its own instructions: not while MXNet or MPI waits
there, maybe for something that a dead process will never do. The C half of Python's handling writes the
number of each signal to a descriptor in any case, and a thread reads it here.
"""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 4096


def listen(number: int, heard: Callable[[], None]) -> None:
    """Have ``heard`` called once, in a thread of its own, when a signal with a Python handler comes.

    Call it in the main thread. A script that sets a wake-up descriptor of its own takes this one's place.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # Quiet when full: once the signal has come nobody reads any more.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # A forked child would write the signals that it gets into its parent's pipe.
    os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))
    # A daemon: the interpreter waits for all other threads before it runs the exit handlers, which save.
    threading.Thread(
        target=_read, args=(reading, number, heard), name="mpilaunch-signals", daemon=True
    ).start()


def _read(reading: int, number: int, heard: Callable[[], None]) -> None:
    while number not in os.read(reading, _READ_BYTES):
        pass
    heard()
