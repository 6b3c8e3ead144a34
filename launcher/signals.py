"""The launcher's signals, as bytes on a descriptor: its loop waits for them as for anything else."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""What ends a job; Ctrl-\\ is SIGQUIT, and workload managers send SIGUSR1 before its time is over."""


@contextlib.contextmanager
def as_bytes() -> Iterator[int]:
    """Turn signals into bytes on a descriptor, which the block closes; put everything back afterwards."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    heeded = [number for number in (*SIGNALS, signal.SIGCHLD) if not is_ignored(number)]
    old = {number: signal.signal(number, _noted) for number in heeded}
    old_wakeup = signal.set_wakeup_fd(writing)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(old_wakeup)
        for number, handler in old.items():
            signal.signal(number, handler)
        os.close(writing)


def is_ignored(number: int) -> bool:
    """Return whether the job is to outlive its terminal: who starts it with nohup says so."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _noted(_number: int, _frame: object) -> None:
    """Do nothing: the wake-up descriptor has the number."""
