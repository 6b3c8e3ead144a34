"""A job of the launcher whose events a test makes up: no process is started, no time passes."""

from __future__ import annotations

import math
import signal
from typing import TYPE_CHECKING

from mpilaunch.events import Exited, Joins, Limits, Met, RankDied, RankGone, RankOver, Ready, Shape, Tick
from mpilaunch.policy import Policy
from mpilaunch.rank.record import ExitRecord, RankName

if TYPE_CHECKING:
    from mpilaunch.events import Action, Event
    from mpilaunch.outcome.root_cause import Verdict

USR1, TERM, KILL, INT = signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL, signal.SIGINT
SHAPE = Shape(True, ("server0",), ("client0", "client1"), client_size=2, wrapped=True, host="here")
ALL = ["server0", "client0", "client1"]
GRACE = 25.0


class History:
    """One job whose events the test makes up."""

    def __init__(
        self,
        shape: Shape = SHAPE,
        *,
        timeout: float | None = None,
        running: bool = True,
        max_restarts: int = 0,
        join_warning: float = math.inf,
        snapshots: bool = False,
    ) -> None:
        self.now = 100.0
        limits = Limits(GRACE, timeout, max_restarts, join_warning, snapshots)
        self.policy = Policy(shape, limits, self.now)
        self.actions = self.policy.start(self.now)
        if running and shape.scheduler:
            self(Ready())

    def __call__(self, event: Event, after: float = 0.0) -> list[Action]:
        self.now += after
        self.actions = self.policy.handle(event, self.now)
        return self.actions

    def wait(self) -> list[Action]:
        """Let the time pass that the policy waits for."""
        assert self.policy.deadline is not None
        self.now = self.policy.deadline
        return self(Tick())

    def rank(
        self,
        client: int,
        rank: int,
        code: int,
        *,
        after: float = 0.0,
        error: str = "",
        incarnation: int = 0,
    ) -> list[Action]:
        self.now += after
        record = ExitRecord(client, rank, "here", 7, code, error, monotonic=self.now)
        return self(RankOver(RankName(client, rank, incarnation), record))

    def lost(self, client: int, rank: int, incarnation: int = 0) -> list[Action]:
        return self(RankOver(RankName(client, rank, incarnation), None, 7))

    def gone(self, client: int, rank: int, *, after: float = 0.0, incarnation: int = 0) -> list[Action]:
        self.now += after
        return self(RankGone(RankName(client, rank, incarnation)))

    def died(self, client: int, rank: int, code: int, incarnation: int = 0) -> list[Action]:
        """Let a rank die, which its guard keeps from MPI."""
        return self(RankDied(RankName(client, rank, incarnation), code, 7))

    def meets(self, client: int, rank: int) -> list[Action]:
        return self(Met(RankName(client, rank)))

    def joins(self, client: int, rank: int, incarnation: int = 0) -> list[Action]:
        return self(Joins(RankName(client, rank, incarnation)))

    def client_ends(self, client: int, code: int = 0, rank_code: int = 0) -> list[Action]:
        for rank in range(2):
            self.rank(client, rank, rank_code)
        return self(Exited(f"client{client}", code))

    @property
    def verdict(self) -> Verdict:
        return self.policy.verdict()
