"""Stacks of all threads of this process, on a signal; nothing that they show may change while it is read.

Frames of Python change and go away whenever some thread runs Python, and who follows them meanwhile reads
memory that is gone: a process that was asked for the stacks of its other threads in a signal's handler died
of that. So there are two parts:

- the handler, which needs no lock, writes the stack of the thread that it interrupts, most often the main
  one. It comes from a process whose interpreter is held by native code, too, or that waits for ever;
- a thread then writes all stacks while it holds the interpreter, so that no other runs Python.

The signal is SIGURG, which does nothing to a process that has not asked for it.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore_mpi.wakeups import WakeUps

STACK_SIGNAL = signal.SIGURG


def stack_pipe(name: str) -> str:
    """Return the name of the pipe to which a process writes its stacks."""
    return f"{name}.stack"


def write_on_signal(directory: str | Path, name: str, wakeups: WakeUps) -> None:
    """Have the stacks of this process written to its pipe whenever it gets the signal.

    Call it in the main thread.

    Args:
        directory: Where the launcher has made the pipe; without one nothing is written.
        name: Of this process, as in the launcher's output.
        wakeups: Has the thread that writes all stacks.
    """
    path = Path(directory) / stack_pipe(name)
    with contextlib.suppress(OSError):
        # Not waited for: who is stopped in the handler because nobody reads would not go on.
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        wakeups.on(STACK_SIGNAL, partial(faulthandler.dump_traceback, file=pipe, all_threads=True))
        # The handler passes the signal on to Python's, which wakes up the thread.
        signal.signal(STACK_SIGNAL, _restart_calls)
        faulthandler.register(STACK_SIGNAL, file=pipe, all_threads=False, chain=True)
        _restart_calls()
        # A helper that the script forks has the same pipe, and would write in between.
        os.register_at_fork(after_in_child=_stop)
        # The interpreter takes itself apart after this, and a handler in another thread then ends the
        # process by SIGSEGV. Exit handlers that were registered later have run by then.
        atexit.register(_stop)


def _restart_calls(*_: object) -> None:
    """Have native calls go on after the signal; ``faulthandler`` forgets that each time."""
    signal.siginterrupt(STACK_SIGNAL, False)


def _stop() -> None:
    faulthandler.unregister(STACK_SIGNAL)
    signal.signal(STACK_SIGNAL, signal.SIG_DFL)
