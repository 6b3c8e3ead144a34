"""A process between ``mpiexec`` and its rank, which keeps the rank's death from MPI until all have saved.

MPI ends the ranks of a client at once when one of them ends without having said so. Hydra has an option not
to (``-disable-auto-cleanup``), but ends them all the same when a signal has killed the one. So what mpiexec
has started is the guard, which does nothing but wait; its child is the rank. The guard of a rank that has
ended badly and left no record tells the launcher, and goes when that ends the client.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from mpilaunch.outcome.root_cause import NO_RESOURCES
from mpilaunch.rank.last_words import say
from mpilaunch.rank.reporter import Reporter

if TYPE_CHECKING:
    from typing import NoReturn


def lead_group() -> None:
    """Have a process group of our own, where Slurm has put all ranks of a host into one."""
    if _is_task(os.getpid()) and os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)


def is_slurms() -> bool:
    """Return whether Slurm has started this rank's guard: then SIGTERM need not come from the launcher.

    Slurm sends it to all processes of a job that it ends. The launcher ends who waits for it by SIGKILL.
    """
    return _is_task(os.getppid())


def _is_task(pid: int) -> bool:
    return os.environ.get("SLURM_TASK_PID") == str(pid)


def leave_behind() -> int:
    """Go on as the child of a guard; return the guard's process number, or 0 where there is none.

    Call it before any thread is started, and before the streams are connected: the launcher takes their end
    for the rank's.
    """
    lead_group()
    # Where MPI signals processes and not their groups it would end the guard alone.
    if os.getpgid(0) != os.getpid():
        return 0
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    guard, rank = os.getpid(), _fork()
    if rank:
        _wait(rank)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return guard


def _fork() -> int:
    """Fork; without a process for the rank there is none, and nobody yet who could leave a record."""
    try:
        return os.fork()
    except OSError as error:
        say(f"no process can be started for the rank: {error.strerror}")
        os._exit(NO_RESOURCES)


def _wait(rank: int) -> NoReturn:
    """Be the guard; no signal but SIGKILL and, once the rank has died, SIGTERM does anything.

    Slurm's own SIGTERM does nothing: the other ranks are saving because of it.
    """
    ends = () if _is_task(os.getpid()) else (signal.SIGTERM,)
    code = 1
    try:
        _, status = os.waitpid(rank, 0)
        code = _exit_code(status)
        reporter = Reporter.from_mapping(os.environ)
        if code and not reporter.has_recorded and not signal.sigpending().intersection(ends):
            with contextlib.suppress(OSError):  # the launcher has gone, and its reaper ends us
                reporter.announce_death(rank, code)
                signal.sigwait(ends)
    finally:
        os._exit(code)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
