"""What to do about each thing that happens to a job: who is started, who is ended, when and how.

Pure: ``handle(event, now) -> [action]``. Time is passed in; no processes, files or clocks here.

::

    STARTING ---Ready--> RUNNING ---all clients 0--> FINISHING ---services gone--> DONE
        |                   |                            | grace over: TERM
        +--- a failure, a signal, the timeout -----------+
                            v
                          SAVING      SIGUSR1 to the clients; until all ranks are over or the grace is
                            v
                        TERMINATING   SIGTERM to everybody
                            v
                          KILLING     SIGKILL to everybody ---all gone--> DONE

A client of which one rank has failed gets no time to save: MPI ends it, and if it does not within
``CLIENT_END_SECONDS``, we do.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional, Sequence, Union

from kvstore_mpi.errors import DeadlineError, InternalError

from .cause import SAVED, Failure, Reason, Verdict, root_cause
from .client_watch import ClientWatch

if TYPE_CHECKING:
    from .rank import ExitRecord, RankName

START_SECONDS = 60.0
"""How long the scheduler may take to say where it listens."""

CLIENT_END_SECONDS = 5.0
"""How long MPI may take to end a client of which one rank has failed; it takes milliseconds, but to disturb
Hydra at it loses the exit codes."""

TERMINATE_SECONDS = 3.0
"""From SIGTERM to SIGKILL. Hydra kills its ranks 1.1 s after SIGTERM, Open MPI 0.5 s."""

KILL_SECONDS = 5.0
"""How long to wait for processes that were killed, before the guard is left alone with them."""


class Stage(enum.Enum):
    """Where a job is in its life; see the picture above."""

    STARTING = enum.auto()
    RUNNING = enum.auto()
    FINISHING = enum.auto()
    SAVING = enum.auto()
    TERMINATING = enum.auto()
    KILLING = enum.auto()
    DONE = enum.auto()


# --- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The scheduler listens."""


@dataclass(frozen=True)
class RankOver:
    """A rank has left its record, or its process has gone without (``record=None``)."""

    name: RankName
    record: Optional[ExitRecord]
    pid: int = 0


@dataclass(frozen=True)
class Exited:
    """A process that we started has ended.

    ``rank_codes`` are the exit codes of a client's ranks, where its mpiexec tells them.
    """

    name: str
    code: int
    pid: int = 0
    rank_codes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Interrupted:
    """Somebody sent mpilaunch a signal."""

    signum: int


@dataclass(frozen=True)
class Tick:
    """The time that ``deadline`` named has come."""


Event = Union[Ready, RankOver, Exited, Interrupted, Tick]


# --- actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Start a process of the plan."""

    name: str


@dataclass(frozen=True)
class Send:
    """Send a signal to a process that we have started."""

    name: str
    signum: int


@dataclass(frozen=True)
class Tell:
    """Say something to the user."""

    text: str


Action = Union[Start, Send, Tell]


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
    """

    scheduler: bool
    servers: tuple[str, ...]
    clients: tuple[str, ...]
    client_size: int
    wrapped: bool
    host: str = ""


class Policy:
    """The life of one job."""

    def __init__(self, shape: Shape, grace: float, timeout: Optional[float], now: float) -> None:
        """Nothing runs yet."""
        self._shape = shape
        self._grace = grace
        self._job_deadline = None if timeout is None else now + timeout
        self._stage_deadline: Optional[float] = None
        self._client_deadlines: dict[str, float] = {}
        self._clients = {
            name: ClientWatch(number, name, shape.client_size, wrapped=shape.wrapped, host=shape.host)
            for number, name in enumerate(shape.clients)
        }
        self._running: list[str] = []
        self._told: set[str] = set()
        self._failures: list[Failure] = []
        self._reason = Reason.SUCCESS
        self._signum = 0
        self._unsaved: tuple[str, ...] = ()
        self.stage = Stage.STARTING

    # --- questions ---------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Nothing is left to wait for."""
        return self.stage is Stage.DONE

    @property
    def deadline(self) -> Optional[float]:
        """When ``Tick`` is to be handled next."""
        job = self._job_deadline if self._healthy else None
        times = [self._stage_deadline, job, *self._client_deadlines.values()]
        return min((time for time in times if time is not None), default=None)

    @property
    def _healthy(self) -> bool:
        return self.stage in (Stage.STARTING, Stage.RUNNING, Stage.FINISHING)

    def verdict(self) -> Verdict:
        """Return how the job has ended."""
        cause = root_cause(self._failures, self._grace)
        ordered = tuple(sorted(self._failures, key=lambda failure: failure.when))
        return Verdict(self._reason, self._code(cause), cause, ordered, self._signum, self._unsaved)

    def _code(self, cause: Optional[Failure]) -> int:
        if self._reason is Reason.TIMEOUT:
            return DeadlineError.exit_code
        if self._reason is Reason.SIGNAL:
            return self._code_after_signal()
        return cause.code if cause else 0

    def _code_after_signal(self) -> int:
        """The ranks' own verdict if all of them ended in time, by finishing or by saving."""
        codes = {code for client in self._clients.values() for code in client.over.values()}
        complete = all(client.all_over for client in self._clients.values())
        if complete and not self._unsaved and codes <= {0, SAVED}:
            return SAVED if SAVED in codes else 0
        return 128 + self._signum

    # --- events ------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Return what to start first."""
        if not self._shape.scheduler:
            return self._start_rest()
        self._stage_deadline = now + START_SECONDS
        return self._start(["scheduler"])

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take note of an event; return what to do, in order."""
        if self.done:
            return []
        if isinstance(event, Ready):
            actions = self._start_rest() if self.stage is Stage.STARTING else []
        elif isinstance(event, RankOver):
            actions = self._rank_over(event, now)
        elif isinstance(event, Exited):
            actions = self._exited(event, now)
        elif isinstance(event, Interrupted):
            actions = self._interrupted(event.signum, now)
        else:
            actions = self._tick(now)
        return actions + self._advance(now)

    def _start_rest(self) -> list[Action]:
        self.stage = Stage.RUNNING
        self._stage_deadline = None
        return self._start([*self._shape.servers, *self._shape.clients])

    def _start(self, names: Sequence[str]) -> list[Action]:
        self._running.extend(names)
        return [Start(name) for name in names]

    def _rank_over(self, event: RankOver, now: float) -> list[Action]:
        client = self._clients[self._shape.clients[event.name.client]]
        failure = client.rank_over(event.name.rank, event.record, event.pid, now)
        may_end = self._healthy or self.stage is Stage.SAVING
        if client.failed and may_end and client.name in self._running:
            self._client_deadlines.setdefault(client.name, now + CLIENT_END_SECONDS)
        if failure is not None:
            return self._fail(failure, now)
        return self._stop(Reason.FAILURE, now) if client.failed else []

    def _exited(self, event: Exited, now: float) -> list[Action]:
        if event.name in self._running:
            self._running.remove(event.name)
        self._client_deadlines.pop(event.name, None)
        if event.name in self._clients:
            failure = self._clients[event.name].exited(event.code, event.rank_codes, event.pid, now)
        else:
            failure = self._failure_of_service(event, now)
        return self._fail(failure, now) if failure is not None else []

    def _failure_of_service(self, event: Exited, now: float) -> Optional[Failure]:
        """Services end with 0 when all workers have left; anything else was not meant to happen."""
        if event.name in self._told:
            return None
        if event.code:
            return Failure(event.name, event.code, now, self._shape.host, event.pid)
        if self.stage is Stage.STARTING:
            text = "it ended before it said where it listens"
            return Failure(event.name, InternalError.exit_code, now, self._shape.host, event.pid, text=text)
        return None

    def _fail(self, failure: Failure, now: float) -> list[Action]:
        self._failures.append(failure)
        return self._stop(Reason.FAILURE, now)

    def _interrupted(self, signum: int, now: float) -> list[Action]:
        if self.stage is Stage.FINISHING:  # the ranks have ended well, and nothing is lost
            return self._terminate(now)
        if self._healthy:
            self._signum = signum
            return self._stop(Reason.SIGNAL, now)
        return self._kill(now) if signum == signal.SIGINT else []

    def _tick(self, now: float) -> list[Action]:
        late = [name for name, time in self._client_deadlines.items() if time <= now]
        for name in late:
            del self._client_deadlines[name]
        actions = self._send(late, signal.SIGTERM)
        if self._healthy and self._job_deadline is not None and self._job_deadline <= now:
            return actions + self._stop(Reason.TIMEOUT, now)
        if self._stage_deadline is not None and self._stage_deadline <= now:
            return actions + self._stage_over(now)
        return actions

    def _stage_over(self, now: float) -> list[Action]:
        """The stage has taken as long as it may."""
        if self.stage is Stage.STARTING:
            text = f"it did not say within {START_SECONDS:g} s where it listens"
            return self._fail(
                Failure("scheduler", DeadlineError.exit_code, now, self._shape.host, text=text), now
            )
        if self.stage is Stage.FINISHING:
            names = ", ".join(self._running)
            return [
                Tell(f"all workers have left, but {names} did not end; ending them"),
                *self._terminate(now),
            ]
        if self.stage is Stage.SAVING:
            return self._terminate(now)
        if self.stage is Stage.TERMINATING:
            return self._kill(now)
        self.stage = Stage.DONE
        return []

    # --- the way down ------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Action]:
        """Go on when there is nothing left to wait for in this stage."""
        clients = [self._clients[name] for name in self._running if name in self._clients]
        if not self._running:
            self.stage = Stage.DONE
        elif self.stage is Stage.RUNNING and not clients:
            self.stage = Stage.FINISHING
            self._stage_deadline = now + self._grace
        elif self.stage is Stage.SAVING and all(each.all_over and not each.failed for each in clients):
            return self._terminate(now)
        return []

    def _stop(self, reason: Reason, now: float) -> list[Action]:
        """Give the ranks of all clients that have not failed themselves the grace to save."""
        if not self._healthy:
            return []
        self._reason = reason
        self.stage = Stage.SAVING
        self._stage_deadline = now + self._grace
        names = [name for name in self._running if name in self._clients and not self._clients[name].failed]
        return self._send(names, signal.SIGUSR1)

    def _terminate(self, now: float) -> list[Action]:
        clients = [self._clients[name] for name in self._running if name in self._clients]
        self._unsaved = tuple(rank for client in clients if not client.failed for rank in client.not_over)
        self.stage = Stage.TERMINATING
        self._stage_deadline = now + TERMINATE_SECONDS
        names = [name for name in self._running if name not in self._client_deadlines]
        return self._send(names, signal.SIGTERM)

    def _kill(self, now: float) -> list[Action]:
        self.stage = Stage.KILLING
        self._client_deadlines.clear()
        self._stage_deadline = now + KILL_SECONDS
        return self._send(self._running, signal.SIGKILL)

    def _send(self, names: Sequence[str], signum: int) -> list[Action]:
        for name in names:
            self._told.add(name)
            if name in self._clients:
                self._clients[name].signals.add(signum)
        return [Send(name, signum) for name in names]
