"""What to do about each thing that happens to a job: who is started, who is ended, when and how.

Pure: ``handle(event, now) -> [action]``. Time is passed in; no processes, files or clocks here. The stages
have a picture in ``stages``.

A client of which one rank has failed by an error of its own gets no time to save: MPI ends it when that
rank's exit handlers have run, and if it does not within the grace, we do. ``CLIENT_END_SECONDS`` its
mpiexec has when the processes of all its ranks have ended well: it may be stopped, or held. A
rank that only reports that somebody else has failed, and the guard of one that has died, wait to be ended,
and the others of the client save. While restarts are left, a client or a server that has failed is started
again once it has ended, unless its host is lost or it only says that somebody else has failed; it gets no
time to save.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from kvstore_mpi.errors import DeadlineError
from mpilaunch.events import (
    Began,
    Exited,
    Inform,
    Interrupted,
    Joins,
    Met,
    RankDied,
    RankGone,
    RankOver,
    Ready,
    Send,
    Start,
    Tell,
)
from mpilaunch.outcome.client_deadlines import ClientDeadlines
from mpilaunch.outcome.client_exit import ClientExit
from mpilaunch.outcome.exit_codes import STAY_WRONG
from mpilaunch.outcome.root_cause import (
    SAVED,
    Failure,
    Reason,
    Restart,
    Verdict,
    describe_code,
    describe_restart,
    explanation,
)
from mpilaunch.outcome.service_exit import NOT_SAVED, failure_of
from mpilaunch.stages import KILL_SECONDS, START_SECONDS, TERMINATE_SECONDS, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpilaunch.events import Action, Event, Limits, Shape


class Policy:
    """The life of one job."""

    def __init__(self, shape: Shape, limits: Limits, now: float) -> None:
        """Nothing runs yet."""
        self._shape = shape
        self._limits = limits
        self._job_deadline = None if limits.timeout is None else now + limits.timeout
        self._stage_deadline: float | None = None
        self._client_deadlines = ClientDeadlines(limits.grace)
        self._join_deadlines: dict[str, float] = {}
        self._clients = {name: ClientExit.of(shape, number) for number, name in enumerate(shape.clients)}
        self._running: list[str] = []
        self._told: set[str] = set()
        self._saving: set[str] = set()  # servers that write their last snapshot
        self._failures: list[Failure] = []
        self._restarts: list[Restart] = []
        self._held: dict[str, list[Failure]] = {}  # of clients that may be restarted once they have ended
        self._reason, self._signum = Reason.SUCCESS, 0
        self._unsaved: tuple[str, ...] = ()
        self.stage = Stage.STARTING

    # --- questions ---------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Nothing is left to wait for."""
        return self.stage is Stage.DONE

    @property
    def deadline(self) -> float | None:
        """When ``Tick`` is to be handled next."""
        job = [self._job_deadline, *self._join_deadlines.values()] if self._healthy else []
        times = [self._stage_deadline, *job, *self._client_deadlines.times]
        return min((time for time in times if time is not None), default=None)

    @property
    def _healthy(self) -> bool:
        return self.stage in (Stage.STARTING, Stage.RUNNING, Stage.FINISHING)

    @property
    def cause(self) -> str | None:
        """What has failed, for the ranks, if the job ends because of that; ``None`` until it ends."""
        if self._healthy:
            return None
        if self._reason is not Reason.FAILURE:
            return ""
        told = [f"{each.who} has failed ({describe_code(each.code)})" for each in self._failures]
        return told[0] if told else f"{', '.join(self._failed_clients)} has lost a rank"

    @property
    def _failed_clients(self) -> list[str]:
        return [client.name for client in self._clients.values() if client.failed]

    def verdict(self) -> Verdict:
        """Return how the job has ended."""
        failures = [*self._failures, *(each for held in self._held.values() for each in held)]
        cause = explanation(failures, self._restarts, self._limits.grace)
        return Verdict(
            Reason.FAILURE if cause and self._reason is Reason.SUCCESS else self._reason,
            self._code(cause),
            cause,
            tuple(sorted(failures, key=lambda failure: failure.when)),
            self._signum,
            self._unsaved,
            tuple(self._restarts),
        )

    def _code(self, cause: Failure | None) -> int:
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
            if any(map(self._lacks_snapshot, self._failures)):
                return NOT_SAVED
            return SAVED if SAVED in codes else 0
        return 128 + self._signum

    # --- events ------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Return what to start first."""
        if not self._shape.scheduler:
            return self._start_rest(now)
        self._stage_deadline = now + START_SECONDS
        return self._start(["scheduler"], now)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take note of an event; return what to do, in order."""
        if self.done:
            return []
        if isinstance(event, Ready):
            actions = self._start_rest(now) if self.stage is Stage.STARTING else []
        elif isinstance(event, (Began, Met, Joins)):
            actions = self._progress(event)
        elif isinstance(event, (RankOver, RankDied)):
            actions = self._rank_over(event, now)
        elif isinstance(event, RankGone):
            actions = self._rank_gone(event, now)
        elif isinstance(event, Exited):
            actions = self._exited(event, now)
        elif isinstance(event, Interrupted):
            actions = self._interrupted(event.signum, now)
        else:
            actions = self._tick(now)
        return actions + self._advance(now)

    def _start_rest(self, now: float) -> list[Action]:
        self.stage = Stage.RUNNING
        self._stage_deadline = None
        return self._start([*self._shape.servers, *self._shape.clients], now)

    def _start(self, names: Sequence[str], now: float, incarnation: int = 0) -> list[Action]:
        self._running.extend(names)
        clients = [name for name in names if name in self._clients]
        self._join_deadlines.update(dict.fromkeys(clients, now + self._limits.join_warning))
        return [Start(name, incarnation) for name in names]

    def _progress(self, event: Began | Met | Joins) -> list[Action]:
        client = self._clients[self._shape.clients[event.name.client]]
        if event.name.incarnation == client.incarnation:
            client.reached(event)
            if not client.not_joined:
                self._join_deadlines.pop(client.name, None)
        return []

    def _rank_over(self, event: RankOver | RankDied, now: float) -> list[Action]:
        client = self._clients[self._shape.clients[event.name.client]]
        if event.name.incarnation != client.incarnation:
            return []
        if isinstance(event, RankDied):
            failure = client.rank_died(event, now)
        else:
            failure = client.rank_over(event.name.rank, event.record, event.pid, now)
        may_end = self._healthy or self.stage is Stage.SAVING
        is_left = client.name in self._running and signal.SIGKILL not in client.signals
        if is_left and ((client.ending and may_end) or client.finished):
            self._client_deadlines.begin(client, now)
        if client.failed and self._restarts_left and not (failure and failure.host_is_lost):
            self._held.setdefault(client.name, []).extend([failure] if failure else [])
            return self._end_at_once(client)
        # Where no rank has come out of MPI_Init none has anything to save, and they would wait there.
        ended = self._end_at_once(client) if client.failed and may_end and not client.met else []
        if failure is not None:
            return ended + self._fail(failure, now)
        return ended + (self._stop(Reason.FAILURE, now) if client.failed else [])

    def _rank_gone(self, event: RankGone, now: float) -> list[Action]:
        client = self._clients[self._shape.clients[event.name.client]]
        is_ours = event.name.incarnation == client.incarnation and client.name in self._running
        if is_ours and client.rank_gone(event.name.rank) and signal.SIGKILL not in client.signals:
            self._client_deadlines.ranks_gone(client, now)
        return []

    def _end_at_once(self, client: ClientExit) -> list[Action]:
        """End a client whose ranks have nothing to save, or shall not; MPI may have heard of no failure."""
        if client.ending:
            return []
        client.ending = True
        return self._send([client.name], signal.SIGKILL)

    def _exited(self, event: Exited, now: float) -> list[Action]:
        if event.name in self._running:
            self._running.remove(event.name)
        self._client_deadlines.end(event.name)
        self._join_deadlines.pop(event.name, None)
        client = self._clients.get(event.name)
        told = event.code, event.rank_codes, event.pid, now, event.text
        failure = client.exited(*told) if client else self._failure_of_service(event, now)
        failures = [*self._held.pop(event.name, []), *([failure] if failure else [])]
        if not event.text and self._may_restart(event.name, failures):
            return self._restart(event.name, failures, now)
        return [action for each in failures for action in self._fail(each, now)]

    @property
    def _restarts_left(self) -> bool:
        return self.stage is Stage.RUNNING and len(self._restarts) < self._limits.max_restarts

    def _may_restart(self, name: str, failures: Sequence[Failure]) -> bool:
        """Restart who failed by himself, and not of what he was told, in a job that is not over."""
        own = any(not each.is_secondary and each.code not in STAY_WRONG for each in failures)
        over = self._shape.scheduler and "scheduler" not in self._running
        return own and self._restarts_left and name != "scheduler" and not over

    def _restart(self, name: str, failures: Sequence[Failure], now: float) -> list[Action]:
        incarnation = 1 + sum(1 for each in self._restarts if each.name == name)
        restart = Restart(name, incarnation, tuple(failures))
        self._restarts.append(restart)
        if name in self._clients:
            self._clients[name] = ClientExit.of(self._shape, self._shape.clients.index(name), incarnation)
        why = describe_restart(restart)
        return [
            Inform(name, incarnation - 1, why),
            Tell(f"restart {len(self._restarts)} of at most {self._limits.max_restarts}: {why}"),
            *self._start([name], now, incarnation),
        ]

    def _failure_of_service(self, event: Exited, now: float) -> Failure | None:
        return failure_of(
            event,
            now,
            self._shape.host,
            self.stage,
            told=event.name in self._told,
            saves=event.name in self._saving,
            ranks_save=self.stage is Stage.SAVING and self._reason is not Reason.FAILURE,
        )

    def _lacks_snapshot(self, failure: Failure) -> bool:
        return failure.code == NOT_SAVED and failure.who in self._shape.servers

    def _fail(self, failure: Failure, now: float) -> list[Action]:
        self._failures.append(failure)
        # A server that could not save when all was over ends nobody: the others may still be saving.
        return [] if self._lacks_snapshot(failure) else self._stop(Reason.FAILURE, now)

    def _interrupted(self, signum: int, now: float) -> list[Action]:
        if self.stage is Stage.FINISHING:  # the ranks have ended well, and servers may be saving
            return self._save_servers(now)
        if self._healthy:
            self._signum = signum
            return self._stop(Reason.SIGNAL, now)
        return self._kill(now) if signum == signal.SIGINT else []

    def _tick(self, now: float) -> list[Action]:
        actions = [*self._end_late_clients(now), *self._warn_of_unjoined(now)]
        if self._healthy and self._job_deadline is not None and self._job_deadline <= now:
            return actions + self._stop(Reason.TIMEOUT, now)
        if self._stage_deadline is not None and self._stage_deadline <= now:
            return actions + self._stage_over(now)
        return actions

    def _end_late_clients(self, now: float) -> list[Action]:
        """End clients that have failed, or finished, and whose mpiexec is still there."""
        actions: list[Action] = []
        for name, signum in self._client_deadlines.take(now):
            if signum == signal.SIGKILL and self._clients[name].finished:
                text = f"all ranks of {name} have ended well, but {self._clients[name].held}"
                actions.append(Tell(f"{text}. It is killed"))
            actions += self._send([name], signum)
        return actions

    def _warn_of_unjoined(self, now: float) -> list[Action]:
        """Name the workers that have not begun, or may be training alone."""
        late = [name for name, time in self._join_deadlines.items() if self._healthy and time <= now]
        for name in late:
            del self._join_deadlines[name]
        after = f"after {self._limits.join_warning:g} s (--join-warning)"
        return [Tell(f"{after} {self._clients[name].missing}") for name in late]

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
            return self._save_servers(now)
        if self.stage is Stage.SNAPSHOTS:
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
            self._stage_deadline = now + self._limits.grace
            self._saving.update(self._serving if self._limits.snapshots else ())
        elif self.stage is Stage.SAVING and all(each.all_over and not each.ending for each in clients):
            return self._save_servers(now)
        elif self.stage is Stage.SNAPSHOTS and not self._serving:
            return self._terminate(now)
        return []

    def _stop(self, reason: Reason, now: float) -> list[Action]:
        """Give the ranks of all clients that MPI does not end the grace to save."""
        if not self._healthy:
            return []
        self._reason = reason
        self.stage = Stage.SAVING
        self._stage_deadline = now + self._limits.grace
        names = [name for name in self._running if name in self._clients and not self._clients[name].ending]
        return self._send(names, signal.SIGUSR1)

    @property
    def _serving(self) -> list[str]:
        return [name for name in self._shape.servers if name in self._running]

    def _save_servers(self, now: float) -> list[Action]:
        """Have the servers save, too; after a failure their values may be those that others never saw."""
        if not (self._limits.snapshots and self._serving) or self._reason is Reason.FAILURE:
            return self._terminate(now)
        self.stage = Stage.SNAPSHOTS
        self._stage_deadline = now + self._limits.grace
        self._saving.update(self._serving)
        self._told.add("scheduler")  # it takes them for lost, and ends
        return self._send(self._serving, signal.SIGUSR1)

    def _terminate(self, now: float) -> list[Action]:
        clients = [self._clients[name] for name in self._running if name in self._clients]
        self._unsaved = tuple(rank for client in clients if not client.ending for rank in client.not_over)
        self.stage = Stage.TERMINATING
        self._stage_deadline = now + TERMINATE_SECONDS
        held = [client.name for client in clients if signal.SIGKILL in client.signals]
        names = [name for name in self._running if name not in (*self._client_deadlines, *held)]
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
