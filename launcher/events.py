"""What can happen to a job, what the launcher can do about it, and what the policy must know of its plan.

Records only; the decisions are in ``policy``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpilaunch.rank.record import ExitRecord, RankName

# --- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The scheduler listens."""


@dataclass(frozen=True)
class RankOver:
    """A rank has left its record, or its process has gone without (``record=None``)."""

    name: RankName
    record: ExitRecord | None
    pid: int = 0


@dataclass(frozen=True)
class RankGone:
    """The process of a rank has ended; what its end was, another event has told."""

    name: RankName


@dataclass(frozen=True)
class RankDied:
    """A rank has ended badly and without a record, and its guard keeps that from MPI until it is ended.

    Attributes:
        name: Of the rank.
        code: Its exit code.
        pid: Its process number.
        is_silent: Others count it as dead because they have not heard of it; it is still to be killed.
    """

    name: RankName
    code: int
    pid: int = 0
    is_silent: bool = False


@dataclass(frozen=True)
class Began:
    """A rank has been started."""

    name: RankName


@dataclass(frozen=True)
class Met:
    """A rank has come out of MPI_Init, so that all of its client have met."""

    name: RankName


@dataclass(frozen=True)
class Joins:
    """A rank opens its first store."""

    name: RankName


@dataclass(frozen=True)
class Exited:
    """A process that we started has ended.

    ``rank_codes`` are the exit codes of a client's ranks, where its mpiexec tells them; ``host`` is where
    it ran, if not here; ``text`` is what is known beyond the code.
    """

    name: str
    code: int
    pid: int = 0
    rank_codes: tuple[int, ...] = ()
    host: str = ""
    text: str = ""


@dataclass(frozen=True)
class Interrupted:
    """Somebody sent mpilaunch a signal."""

    signum: int


@dataclass(frozen=True)
class Tick:
    """The time that ``deadline`` named has come."""


Event = Ready | Began | Met | Joins | RankOver | RankGone | RankDied | Exited | Interrupted | Tick


# --- actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Start a process of the plan, for the ``incarnation + 1``-th time."""

    name: str
    incarnation: int = 0


@dataclass(frozen=True)
class Inform:
    """Tell the scheduler that a process of this incarnation has died, and is started again."""

    name: str
    incarnation: int
    why: str


@dataclass(frozen=True)
class Send:
    """Send a signal to a process that we have started."""

    name: str
    signum: int


@dataclass(frozen=True)
class Tell:
    """Say something to the user."""

    text: str


Action = Start | Inform | Send | Tell


@dataclass(frozen=True)
class Limits:
    """What the user allows a job. Times are in seconds.

    Attributes:
        grace: How long ranks may take to save once they have been told to end.
        timeout: How long the whole job may take; ``None`` means for ever.
        max_restarts: How often clients and servers that fail are started again, in all.
        join_warning: After how long workers that have opened no store are named.
        snapshots: Servers save what they have at the end, and may take the grace for it, too.
    """

    grace: float
    timeout: float | None = None
    max_restarts: int = 0
    join_warning: float = math.inf
    snapshots: bool = False


@dataclass(frozen=True)
class Shape:
    """What the policy needs to know of a plan.

    Attributes:
        scheduler: There is one.
        servers: Names of the servers.
        clients: Names of the clients, by number.
        client_size: Ranks in each.
        wrapped: Ranks leave records.
        host: Of this machine, for failures that the launcher itself sees.
        rank_hosts: Of each rank, for each client; nothing where all are here.
    """

    scheduler: bool
    servers: tuple[str, ...]
    clients: tuple[str, ...]
    client_size: int
    wrapped: bool
    host: str = ""
    rank_hosts: tuple[tuple[str, ...], ...] = ()
