"""Which rounds have their quorum and wait for late clients only until a certain moment.

Pure. With a quorum a round is closed when all clients that are alive have pushed, or when the quorum has
and the grace period since then has passed; who comes later takes part in the next round. The scheme is
that of Decoupled DiLoCo's synchroniser (arXiv 2604.21428) with a fixed window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore_mpi.server.records import Unit


class GracePeriods:
    """The moments at which rounds are to be closed."""

    def __init__(self) -> None:
        """Start without any."""
        self._due: dict[Unit, float] = {}

    def begin(self, unit: Unit, due: float) -> None:
        """A round has its quorum, and is closed at ``due``; a moment that was set before stays."""
        self._due.setdefault(unit, due)

    def end(self, unit: Unit) -> None:
        """A round is closed."""
        self._due.pop(unit, None)

    def next(self) -> float | None:
        """Return the earliest moment at which a round is to be closed, if there is one."""
        return min(self._due.values()) if self._due else None

    def over(self, now: float) -> list[Unit]:
        """Return the rounds that are to be closed now."""
        return [unit for unit, due in self._due.items() if due <= now]
