"""What one client's ranks and its mpiexec tell about how it has ended. Pure.

A rank under our wrapper leaves a record of its end. One that was killed leaves none: that it is gone is
seen at once, its exit code only when its mpiexec ends and tells, unless it had a guard. Ranks that MPI
kills because another has failed explain nothing and are not failures.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import ConfigurationError, HostLostError, PeerError
from mpilaunch.events import Began, Joins, Met
from mpilaunch.outcome.root_cause import NO_RESOURCES, NO_STORE, SAVED, Failure, is_signal
from mpilaunch.rank.record import RankName, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpilaunch.events import RankDied, Shape
    from mpilaunch.rank.record import ExitRecord

_KILLED = 128 + signal.SIGKILL
_ASKED = 128 + signal.SIGUSR1
_CRASHED = {128 + each for each in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)}
_GAVE_UP = {*_CRASHED, 128 + signal.SIGABRT}
_FORCED = {signal.SIGTERM, signal.SIGKILL}
_ENDED = {0, *(128 + each for each in _FORCED)}
"""Exit codes of ranks, and of their mpiexec, when somebody ends those that wait for it."""
_NOT_STARTED = 255
"""Exit code of Hydra's mpiexec when it cannot start its own process on a host."""
_MPIEXEC_LOST = {_KILLED, 255}
"""Exit codes of an mpiexec that was killed, or (Hydra) has lost the process that looks after its ranks."""
_END_WELL = (
    "end ranks by an exception, sys.exit or the end of the script: only then exit handlers run, the worker "
    "leaves the job, and the others of its client save"
)
_LOOK_AFTER_MPIEXEC = (
    "mpiexec, or a process of its own such as hydra_pmi_proxy or prted, was killed or has failed; its last "
    "lines may say why. If it was killed, memory may have run out (dmesg tells): use fewer workers per host"
)
_LOOK_AT_HOSTS = (
    "is the same MPI at the same path on {hosts}, with its helpers such as hydra_pmi_proxy or prted? The "
    "last lines may say why; mpilaunch doctor --hosts starts two ranks"
)
_NO_MPI = "it has not come out of MPI_Init: MPI could not start"
_LOOK_AT_MPI = (
    "its last lines say why, if it has said anything; often /dev/shm is too small or cannot be written "
    "(in a container: --shm-size=1g). mpilaunch doctor shows its size and starts two ranks"
)

_SILENT = "mpilaunch has killed it, since nothing was heard of it for its lease"
_LOOK_AT_SILENT = (
    "it was stopped (SIGSTOP, Ctrl-Z) or cut off, or native code has kept the interpreter for longer than "
    "--lease"
)


class Lost(NamedTuple):
    """A rank that has gone without a record."""

    rank: int
    when: float
    pid: int


class ClientExit:
    """One client.

    Attributes:
        name: As the plan has it.
        failed: Something has gone wrong in it that was not our doing.
        ending: MPI ends all its ranks because of that, so that none of them can save.
        incarnation: How often it has been restarted.
        over: Exit codes of the ranks that have ended; ``None`` while a code is not known.
        began: Ranks that have been started.
        met: Ranks that have come out of MPI_Init.
        joined: Ranks that have opened a store.
        signals: What we have sent to its mpiexec.
    """

    def __init__(
        self,
        number: int,
        name: str,
        size: int,
        *,
        wrapped: bool,
        host: str,
        incarnation: int = 0,
        rank_hosts: Sequence[str] = (),
    ) -> None:
        """Nothing has ended yet.

        ``wrapped`` ranks leave records; ``host`` is where the mpiexec is, and ranks that are on no other.
        """
        self._number = number
        self._size = size
        self._wrapped = wrapped
        self._host = host
        self._rank_hosts = rank_hosts or [host] * size
        self._is_spread = bool(rank_hosts)
        self.began: set[int] = set()
        self._lost: list[Lost] = []
        self.name = name
        self.incarnation = incarnation
        self.failed = False
        self.ending = False
        self.over: dict[int, int | None] = {}
        self._gone: set[int] = set()
        self.met: set[int] = set()
        self.joined: set[int] = set()
        self.signals: set[int] = set()

    @classmethod
    def of(cls, shape: Shape, number: int, incarnation: int = 0) -> ClientExit:
        """Return the start of a client of a job, or of its next incarnation."""
        return cls(
            number,
            shape.clients[number],
            shape.client_size,
            wrapped=shape.wrapped,
            host=shape.host,
            incarnation=incarnation,
            rank_hosts=shape.rank_hosts[number] if shape.rank_hosts else (),
        )

    @property
    def all_over(self) -> bool:
        """Every rank has ended, or has saved and waits to be ended."""
        return len(self.over) == self._size

    @property
    def finished(self) -> bool:
        """Every rank has left the record that all is well; then nothing that its mpiexec does matters."""
        return self._wrapped and self.all_over and set(self.over.values()) == {0}

    @property
    def not_over(self) -> list[str]:
        """Names of the ranks that have not ended."""
        return [self._rank(rank) for rank in range(self._size) if rank not in self.over]

    @property
    def held(self) -> str:
        """What is the matter when its mpiexec does nothing."""
        return (
            f"the mpiexec of {self.name} does not answer. It is stopped, or held by a connection to its "
            "port, which whoever reaches this host can make (docs/security.md)"
        )

    @property
    def missing(self) -> str:
        """Which ranks have not opened a store, and why that may be."""
        not_met = [self._placed(rank) for rank in range(self._size) if rank not in self.met]
        if self._wrapped and not_met:
            return f"{', '.join(not_met)} has not come out of MPI_Init; maybe {self.held}"
        late = [self._placed(rank) for rank in range(self._size) if rank not in self.joined]
        return f"{', '.join(late)} has not joined the job: {NO_STORE}"

    @property
    def not_joined(self) -> list[str]:
        """Names of the ranks that have not opened a store."""
        return [self._rank(rank) for rank in range(self._size) if rank not in self.joined]

    @property
    def _starting(self) -> set[int]:
        """The ranks that have begun and not come out of MPI_Init."""
        return self.began - self.met

    def reached(self, event: Began | Met | Joins) -> None:
        """Note how far a rank has come."""
        ranks = {Began: self.began, Met: self.met, Joins: self.joined}[type(event)]
        ranks.add(event.name.rank)

    def rank_over(self, rank: int, record: ExitRecord | None, pid: int, now: float) -> Failure | None:
        """Note the end of a rank; return a failure if its record tells one. Sets ``failed``."""
        if rank in self.over:
            return None
        self.over[rank] = record.code if record else None
        if record is None:
            self._vanished(Lost(rank, now, pid))
            return None
        if record.code == 0 or (record.code == SAVED and signal.SIGUSR1 in self.signals):
            return None
        failure = Failure(
            self._rank(rank),
            record.code,
            record.monotonic,
            record.host,
            record.pid,
            record.error,
            record.text,
        )
        # Who has lost others, or was lost himself, waits to be ended, so that the other ranks can save.
        self.failed = self.failed or not (record.code == SAVED or failure.is_secondary)
        self.ending = self.ending or record.code not in (SAVED, PeerError.exit_code)
        return failure

    def rank_gone(self, rank: int) -> bool:
        """Note that the process of a rank has ended; return whether all have, and all well."""
        self._gone.add(rank)
        return self.finished and len(self._gone) == self._size

    def rank_died(self, event: RankDied, now: float) -> Failure | None:
        """Note the end of a rank of which MPI does not hear; return a failure if it was not our doing."""
        rank, code = event.name.rank, event.code
        if rank in self.over:
            return None
        self.over[rank] = code
        asked = code == _ASKED and signal.SIGUSR1 in self.signals
        if asked or self.ending or self.signals & _FORCED:
            return None
        self.failed = True
        failure = self._without_record(Lost(rank, now, event.pid), code, quiet=[])
        if event.is_silent:
            failure = replace(failure, text=_SILENT, remedy=_LOOK_AT_SILENT)
        return failure

    def _vanished(self, lost: Lost) -> None:
        """Keep the ranks that have gone by themselves, or because MPI ended them with such a one."""
        if (self._lost or not self.failed) and not self.signals & _FORCED:
            self._lost.append(lost)
            self.failed = self.ending = self._wrapped

    def exited(
        self, code: int, rank_codes: tuple[int, ...], pid: int, now: float, lost: str = ""
    ) -> Failure | None:
        """Note the end of mpiexec; return the failure that it tells beyond the records, if any.

        ``lost`` says which host of it or its ranks is lost, and why.
        """
        if not self._wrapped:
            self.over = dict.fromkeys(range(self._size), code)
        if self._lost and self.failed:
            if code == _NOT_STARTED and not rank_codes and self._silent_hosts:
                # It has ended the ranks that it had started.
                return self._blame(code, rank_codes, pid, now, lost)
            return self._explain(code, rank_codes)
        if code == 0 and not self._wrapped and self.not_joined and not self.signals:
            return self._apart(now)
        if self.failed or code == 0 or self.signals & _FORCED or self._as_asked(code, rank_codes):
            return None
        if self.finished and code in _MPIEXEC_LOST and not rank_codes:
            return None
        self.failed = self.ending = True
        return self._blame(code, rank_codes, pid, now, lost)

    def _as_asked(self, code: int, rank_codes: tuple[int, ...]) -> bool:
        """Return whether it has ended because it was told to save and end."""
        if signal.SIGUSR1 not in self.signals:
            return False
        # Hydra cannot pass on what it is told before it has reached all hosts.
        still_starting = code == _NOT_STARTED and not self.began and not rank_codes
        # Who has saved waits for us; a workload manager that ends the job may be quicker.
        was_waiting = self.all_over and {code, *rank_codes} <= _ENDED
        # A rank that had not come to handle the signal has died of it, as its own code tells.
        return code in (SAVED, _ASKED) or _ASKED in rank_codes or still_starting or was_waiting

    def _explain(self, code: int, rank_codes: tuple[int, ...]) -> Failure | None:
        """Name the first rank that has gone without a record and by itself, and its exit code.

        Ranks that Hydra has killed after another one stand in its list with 9 or with 0, and may be seen
        to go before one that crashed: a core dump takes its time.
        """
        told_of = {each.rank: code for each in self._lost}
        told_of.update(enumerate(rank_codes))
        ended = [each for each in self._lost if told_of[each.rank]] or self._lost
        lost = next((each for each in ended if told_of[each.rank] in _CRASHED), ended[0])
        told = told_of[lost.rank]
        if told == _ASKED and signal.SIGUSR1 in self.signals:
            return None
        if not rank_codes and len(self._lost) > 1 and not is_signal(told):
            text, remedy = _NO_MPI, _LOOK_AT_MPI
            if not {each.rank for each in self._lost} <= self._starting:
                text = "one of its ranks ended without a record: MPI_Abort, os._exit, or exit in C code"
                remedy = _END_WELL
            name = named(self.name, self.incarnation)
            return Failure(name, told or 1, lost.when, self._host, text=text, remedy=remedy)
        # Of a rank that has ended by itself with 0 Hydra kills the others, and of one that was killed it
        # lists the others with 0: which of the two it was, nobody can tell.
        quiet = [self._rank(each.rank) for each in self._lost if not told_of[each.rank]]
        return self._without_record(lost, told, quiet if told == _KILLED else [])

    def _without_record(self, lost: Lost, code: int, quiet: list[str]) -> Failure:
        text = remedy = ""
        if quiet:
            text = (
                f"{', '.join(quiet)} ended with exit code 0 and without a record, as by os._exit: if that "
                "was before, MPI has killed this rank for it; if not, somebody did, most often the kernel, "
                "when memory runs out"
            )
            remedy = _END_WELL
        if lost.rank in self._starting and (code in _GAVE_UP or not is_signal(code)):
            text, remedy = _NO_MPI, _LOOK_AT_MPI
        elif not is_signal(code):
            text, remedy = "it ended without a record: os._exit, or exit in C code", _END_WELL
            text += "" if code else "; its own exit code was 0"
        return Failure(
            self._rank(lost.rank),
            code or 1,
            lost.when,
            self._rank_hosts[lost.rank],
            lost.pid,
            text=text,
            remedy=remedy,
        )

    def _apart(self, now: float) -> Failure:
        """Ranks of a program that is not ours to wrap have ended well, and were never part of the job."""
        self.failed = True
        text = (
            f"{', '.join(self.not_joined)} ended without ever having joined the job: {NO_STORE}. A program "
            "after -- has to import kvstore_mpi.mxnet itself, or MXNet does not know these names"
        )
        name = named(self.name, self.incarnation)
        error = ConfigurationError
        return Failure(name, error.exit_code, now, self._host, error=error.__name__, text=text)

    def _blame(self, code: int, rank_codes: tuple[int, ...], pid: int, now: float, lost: str) -> Failure:
        """Name the rank that mpiexec blames, the host that is lost, or mpiexec itself."""
        pids = {each.rank: each.pid for each in self._lost}
        likely = sorted(range(len(rank_codes)), key=lambda rank: rank_codes[rank] == _KILLED)
        for rank in [*pids, *likely]:
            if rank < len(rank_codes) and rank_codes[rank]:
                host = self._rank_hosts[rank]
                return Failure(self._rank(rank), rank_codes[rank], now, host, pids.get(rank, 0))
        name = named(self.name, self.incarnation)
        if lost:
            error = HostLostError
            return Failure(name, error.exit_code, now, self._host, pid, error.__name__, lost)
        if code == NO_RESOURCES:  # there was none
            return Failure(name, code, now, self._host)
        text, remedy = "its mpiexec ended so", _LOOK_AFTER_MPIEXEC
        if self._silent_hosts:
            hosts = ", ".join(self._silent_hosts)
            text, remedy = f"its mpiexec has started no rank on {hosts}", _LOOK_AT_HOSTS.format(hosts=hosts)
        return Failure(name, code, now, self._host, pid, text=text, remedy=remedy)

    @property
    def _silent_hosts(self) -> list[str]:
        """The hosts of ranks that have not begun, if there are several and ranks tell that they begin."""
        if not (self._is_spread and self._wrapped):
            return []
        silent = [host for rank, host in enumerate(self._rank_hosts) if rank not in self.began]
        return list(dict.fromkeys(silent))

    def _placed(self, rank: int) -> str:
        place = f" on {self._rank_hosts[rank]}" if self._is_spread else ""
        return f"{self._rank(rank)}{place}"

    def _rank(self, rank: int) -> str:
        return str(RankName(self._number, rank, self.incarnation))
