"""Which of several failures came first, and what the job's exit code is. Pure."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstore_mpi.errors import HostLostError, LeaseExpiredError, PeerError

if TYPE_CHECKING:
    from collections.abc import Sequence

SAVED = 75
"""Exit code of a rank, and of a job, that was told to end and has saved."""

NO_RESOURCES = 71
"""Exit code of a process that runs out of memory, files or threads, and of one that cannot be started."""

_OWN = {HostLostError.__name__, LeaseExpiredError.__name__}
"""Errors of a process whose exit code says that somebody else failed, and that was lost itself."""

NO_STORE = """\
no store was made; give the Trainer or Module one, kvstore=mx.kv.create("sync-mpi"), or its name"""
"""Why a worker may not be part of the job."""


@dataclass(frozen=True)
class Failure:
    """One process that has failed.

    Attributes:
        who: Its name, as the log prefixes have it.
        code: Its exit code; 128 + n for signal n.
        when: Monotonic time in seconds.
        host: Where it ran.
        pid: Its process number there.
        error: Class of the exception, or nothing.
        text: What is known beyond the code: the exception's text, or what the launcher saw.
        remedy: What to do about it, where the code does not tell.
    """

    who: str
    code: int
    when: float
    host: str = ""
    pid: int = 0
    error: str = ""
    text: str = ""
    remedy: str = ""

    @property
    def is_secondary(self) -> bool:
        """It says itself that somebody else failed."""
        return only_reports(self.code, self.error)

    @property
    def host_is_lost(self) -> bool:
        """It was lost with its host, where nothing can be started."""
        return self.error == HostLostError.__name__


def only_reports(code: int, error: str) -> bool:
    """Return whether a process with this exit code and class of error says that somebody else failed."""
    return code == PeerError.exit_code and error not in _OWN


def root_cause(failures: Sequence[Failure], grace: float) -> Failure | None:
    """Return the failure that explains the others.

    The first one does, unless it only reports the loss of somebody: then the first within ``grace``
    seconds of it that failed by itself. Who notices a death is often faster than who reports it.
    """
    if not failures:
        return None
    first = min(failures, key=lambda failure: failure.when)
    if not first.is_secondary:
        return first
    own = [each for each in failures if not each.is_secondary and each.when <= first.when + grace]
    return min(own, key=lambda failure: failure.when, default=first)


def explanation(failures: Sequence[Failure], restarts: Sequence[Restart], grace: float) -> Failure | None:
    """Return the failure that explains the others, be it one that the job had survived.

    A client that was just restarted, say, of which another failure only tells.
    """
    cause = root_cause(failures, grace)
    if cause is None or not cause.is_secondary:
        return cause
    survived = [each for restart in restarts for each in restart.failures]
    recent = [each for each in survived if each.when >= cause.when - grace and not each.is_secondary]
    return root_cause(recent, grace) or cause


@dataclass(frozen=True)
class Restart:
    """One restart of a client or a server.

    Attributes:
        name: The process.
        incarnation: Its number after the restart: how often it has been restarted.
        failures: Why; not empty.
    """

    name: str
    incarnation: int
    failures: tuple[Failure, ...]


class Reason(enum.Enum):
    """Why a job has ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    SIGNAL = "signal"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Verdict:
    """How a job has ended.

    Attributes:
        reason: Why.
        code: The exit code of mpilaunch.
        cause: The failure that explains the others, if there was any.
        failures: All of them, in order of time.
        signum: The signal that mpilaunch was sent, or 0.
        unsaved: Ranks that were told to save and did not end in time.
        restarts: What the job has survived, in order of time.
    """

    reason: Reason
    code: int
    cause: Failure | None = None
    failures: tuple[Failure, ...] = ()
    signum: int = 0
    unsaved: tuple[str, ...] = ()
    restarts: tuple[Restart, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Nothing has gone wrong on the way."""
        return self.cause is None and not self.unsaved and not self.restarts


def is_signal(code: int) -> bool:
    """Return whether an exit code is 128 + n for a signal n."""
    return code - 128 in set(signal.Signals)


def describe_code(code: int) -> str:
    """Return ``exit code 3`` or ``SIGKILL (exit code 137)``."""
    if is_signal(code):
        return f"{signal.Signals(code - 128).name} (exit code {code})"
    return f"exit code {code}"


def describe_restart(restart: Restart) -> str:
    """Return what was restarted, and why: the failure that came first, unless it only tells of another."""
    cause = root_cause(restart.failures, 0.0)
    why = f" after {cause.who}: {describe_code(cause.code)}" if cause else ""
    text = ": ".join(part for part in (cause.error, cause.text) if part) if cause else ""
    return f"{restart.name}{why}{f', {text}' if text else ''}"
