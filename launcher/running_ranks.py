"""The ranks of a job that run, and which of them a signal to their client goes to. Pure."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpilaunch.rank.record import RankName

_FOR_RANKS = (signal.SIGUSR1, signal.SIGKILL)
"""Signals that ranks get from us; SIGTERM is for mpiexec, which then ends its ranks."""


class Watched(NamedTuple):
    """A rank's process; the leader of its group, maybe a guard; and what tells of the leader's end.

    Attributes:
        is_over: The rank has told its end, and what runs has nothing to do but to be ended.
    """

    pid: int
    leader: int
    descriptor: int | None
    is_over: bool = False


class RunningRanks:
    """By name."""

    def __init__(self, clients: Sequence[str], client_size: int, *, shielded: bool) -> None:
        """None runs yet.

        Args:
            clients: Their names.
            client_size: Ranks in each.
            shielded: A workload manager sends SIGTERM to all ranks, which therefore do not end at it.
        """
        self._clients = clients
        self._client_size = client_size
        self._shielded = shielded
        self._running: dict[RankName, Watched] = {}
        self._num_started: Counter[str] = Counter()  # that have said who they are

    def __getitem__(self, rank: RankName) -> Watched:
        """Return one that runs."""
        return self._running[rank]

    def __contains__(self, rank: object) -> bool:
        """Tell whether one runs."""
        return rank in self._running

    def starts(self, client: str) -> None:
        """A client is started, maybe again."""
        self._num_started[client] = 0

    def add(self, rank: RankName, watched: Watched) -> None:
        """A rank has said who it is."""
        self._running[rank] = watched
        self._num_started[self._clients[rank.client]] += 1

    def is_watched(self, rank: RankName, descriptor: int) -> None:
        """Note what tells of its end."""
        self._running[rank] = self._running[rank]._replace(descriptor=descriptor)

    def is_over(self, rank: RankName) -> None:
        """A rank has told its end; it may have gone since."""
        if rank in self._running:
            self._running[rank] = self._running[rank]._replace(is_over=True)

    def remove(self, rank: RankName) -> Watched:
        """Its process has ended."""
        return self._running.pop(rank)

    def of(self, client: str) -> list[RankName]:
        """Return those of a client."""
        return [rank for rank in self._running if self._clients[rank.client] == client]

    def signalled(self, client: str, signum: int) -> Iterator[tuple[RankName, int, int]]:
        """Yield which of a client are signalled when it is: the rank, its leader, and the signal.

        They are not signalled through their mpiexec, which may be held. Who has saved waits for SIGTERM;
        where others send that, too, maybe before the rest of its client has saved, it waits for SIGKILL.
        """
        for rank in self.of(client):
            _, leader, _, is_over = self._running[rank]
            if signum in _FOR_RANKS:
                yield rank, leader, signum
            elif signum == signal.SIGTERM and self._shielded and is_over:
                yield rank, leader, signal.SIGKILL

    def signals_mpiexec(self, client: str, signum: int) -> bool:
        """Return whether its mpiexec is signalled, too: it passes on what ranks must hear that we lack."""
        return signum != signal.SIGUSR1 or self._num_started[client] < self._client_size
