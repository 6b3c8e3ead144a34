"""What a rank does at SIGUSR1, by which it is told to end: its script unwinds, so that it can save."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import KVStoreError
from mpilaunch.outcome.root_cause import SAVED

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.wakeups import WakeUps
    from mpilaunch.rank.rank_main import RankEnd
    from mpilaunch.rank.reporter import Reporter

TOLD = "has been told to end"

AGAIN_S = 0.01
"""After that time the script is unwound anew, if Python has ignored the attempt."""

UNHANDLED_S = 0.1
"""After that time the main thread is signalled anew, if it has not come to handle the signal."""


class ToldToEnd:
    """Unwinds the script of this process; the script may install a handler of its own instead."""

    def __init__(self, end: RankEnd, reporter: Reporter) -> None:
        """Handle nothing yet."""
        self._end = end
        self._reporter = reporter
        self._exit: SystemExit | None = None
        self._hook = sys.unraisablehook

    def listen(self, wakeups: WakeUps) -> None:
        """Handle the signal from now on, in the main thread."""
        sys.unraisablehook = self._on_ignored
        signal.signal(signal.SIGUSR1, self._unwind)
        wakeups.on(signal.SIGUSR1, self._heard)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        # An mpiexec that has not started its ranks yet forgets a signal that it should pass on.
        if self._reporter.cause_of_end() is not None:
            signal.raise_signal(signal.SIGUSR1)

    def _reason(self) -> str:
        cause = self._reporter.cause_of_end() or ""
        return f"{TOLD}{cause and ', because ' + cause}"

    def _unwind(self, number: int, frame: FrameType | None) -> None:
        # mpiexec signals our forked helpers too, which the rank needs to save.
        if os.getpid() != self._reporter.pid:
            return
        # On a busy machine the signal is back before the hook has returned. What is raised in there is lost
        # for good, as Python calls no hook for it.
        if _is_within(frame, ToldToEnd._on_ignored.__code__):
            self._signal_later(AGAIN_S)
            return
        signal.signal(number, signal.SIG_IGN)  # a second one must not disturb the saving
        handled = sys.exc_info()[1]
        give_up_waiting(self._reason())
        if self._end.script_is_over:
            self._end.wait_at_last(SAVED)
        # Who is in the ``finally`` of such an error is saving because of what the job ends for.
        elif not isinstance(handled, (KVStoreError, SystemExit)):
            self._exit = SystemExit(SAVED)
            raise self._exit

    def _on_ignored(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Unwind anew if the signal was handled in a destructor or a callback, which raise nothing.

        Importing a module has such callbacks. To raise it here would be ignored as well.
        """
        if self._exit is None or unraisable.exc_value is not self._exit:
            self._hook(unraisable)
            return
        signal.signal(signal.SIGUSR1, self._unwind)
        self._signal_later(AGAIN_S)

    def _heard(self) -> None:
        """Free the main thread from a native wait, so that it comes to handle the signal."""
        # A script that handles the signal itself may want to finish its step first, and can unless the job
        # has failed. The handler above ignores the signal from then on, so it may have been quicker.
        own = signal.getsignal(signal.SIGUSR1) not in (self._unwind, signal.SIG_IGN)
        worker = existing_worker()
        if worker is not None and (self._reporter.cause_of_end() or not own):
            worker.interrupt(self._reason())
        # A call that the main thread was about to begin, such as a sleep, was not interrupted.
        self._signal_later(UNHANDLED_S)

    def _signal_later(self, seconds: float) -> None:
        later = threading.Timer(seconds, self._signal_unhandled)
        later.daemon = True
        with contextlib.suppress(RuntimeError):  # the interpreter ends already
            later.start()

    def _signal_unhandled(self) -> None:
        main = threading.main_thread().ident
        if main is not None and signal.getsignal(signal.SIGUSR1) == self._unwind:
            signal.pthread_kill(main, signal.SIGUSR1)


def _is_within(frame: FrameType | None, code: CodeType) -> bool:
    """Tell whether a function is under way in this frame, or has called what is."""
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def give_up_waiting(reason: str = TOLD) -> None:
    """Free this rank, and those that wait for it, from what the job will not finish."""
    interrupt = _loaded("kvstore_mpi.adapters.mxnet.exchange.lifecycle", "interrupt")
    if interrupt is not None:
        interrupt(reason)


def existing_worker() -> KVWorker | None:
    """Return the worker of this process, if its script has opened a store."""
    ask = _loaded("kvstore_mpi.node", "existing_worker")
    return ask() if ask is not None else None


def _loaded(module: str, name: str) -> Any:
    """Return a function of a module; a module that is still being imported does not have it yet."""
    return getattr(sys.modules.get(module), name, None)
