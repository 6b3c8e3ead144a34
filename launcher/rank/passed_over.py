"""A signal that Slurm sends to every process of a job, of which the launcher has heard, too."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any


def pass_over(number: int) -> None:
    """Do nothing at signal ``number`` in this process; what it forks ends at it, as a pool expects.

    A helper takes up the default at its birth, and not in the handler: Python calls a handler only when it
    is back from C, and forgets in a child which signals it has not handled yet, so that a helper which is
    ended as soon as it is started would go on for ever.
    """
    masks = threading.local()  # two threads may fork at once

    def block() -> None:
        masks.old = signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)

    def begin_helper() -> None:
        if signal.getsignal(number) is _do_nothing:  # or the script's own handler, which stays
            signal.signal(number, signal.SIG_DFL)
        restore()

    signal.signal(number, _do_nothing)
    os.register_at_fork(before=block, after_in_parent=restore, after_in_child=begin_helper)


def _do_nothing(_number: int, _frame: Any) -> None:
    """Not SIG_IGN, which would outlive ``exec``: programs that the script runs would not end."""
