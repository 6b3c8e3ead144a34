"""Until when a client's mpiexec may stay once ranks have ended or failed, and what it gets then. Pure."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from mpilaunch.stages import CLIENT_END_SECONDS, RANK_END_SECONDS, TERMINATE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpilaunch.outcome.client_exit import ClientExit


class ClientDeadlines:
    """The deadlines of the clients that have one, by name."""

    def __init__(self, grace: float) -> None:
        """Start with none; a rank that has failed has the ``grace`` for its exit handlers."""
        self._failed_s = max(grace, CLIENT_END_SECONDS)
        self._due: dict[str, tuple[float, int]] = {}  # when which signal is due

    def __iter__(self) -> Iterator[str]:
        """Go over the names of the clients."""
        return iter(self._due)

    @property
    def times(self) -> list[float]:
        """When something is due."""
        return [time for time, _ in self._due.values()]

    def begin(self, client: ClientExit, now: float) -> None:
        """A client has failed, or its ranks have recorded that all is well; the first time counts."""
        failed = client.failed
        due = now + (self._failed_s if failed else RANK_END_SECONDS)
        self._due.setdefault(client.name, (due, signal.SIGTERM if failed else signal.SIGKILL))

    def ranks_gone(self, client: ClientExit, now: float) -> None:
        """The processes of all its ranks have ended well: its mpiexec has nothing to wait for."""
        self._due[client.name] = (now + CLIENT_END_SECONDS, signal.SIGKILL)

    def end(self, name: str) -> None:
        """Its mpiexec has ended."""
        self._due.pop(name, None)

    def clear(self) -> None:
        """All get the same signals now."""
        self._due.clear()

    def take(self, now: float) -> list[tuple[str, int]]:
        """Return which clients are to be sent which signals now."""
        due = [(name, signum) for name, (time, signum) in self._due.items() if time <= now]
        for name, signum in due:
            del self._due[name]
            if signum == signal.SIGTERM:  # which it does not hear if it is held
                self._due[name] = (now + TERMINATE_SECONDS, signal.SIGKILL)
        return due
