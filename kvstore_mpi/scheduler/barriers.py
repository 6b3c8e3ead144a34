"""Barriers over the workers of a job: by number, and over the workers that are there.

A worker's n-th barrier is everybody's n-th. A worker that is lost is not waited for. One that was restarted
runs its script from the start: barriers that have been passed are open to it, and it is waited for from the
first one on that it comes to before the others have passed it. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.records import NodeId

if TYPE_CHECKING:
    from collections.abc import Iterable

Opened = list[tuple[int, list[NodeId]]]
"""Numbers of barriers that have opened, and who is let through."""


class Barriers:
    """Who waits where."""

    def __init__(self, workers: Iterable[NodeId]) -> None:
        """Wait for all these workers."""
        self._members = set(workers)
        self._waiting: dict[int, set[NodeId]] = {}
        self._passed = 0

    @property
    def waiting(self) -> dict[int, set[NodeId]]:
        """Who waits, by number of the barrier."""
        return self._waiting

    def arrive(self, worker: NodeId, number: int) -> Opened:
        """A worker has come to a barrier."""
        if number <= self._passed:
            return [(number, [worker])]
        self._members.add(worker)
        self._waiting.setdefault(number, set()).add(worker)
        return self._open()

    def drop(self, workers: Iterable[NodeId]) -> Opened:
        """These workers are lost, or start anew."""
        self._members.difference_update(workers)
        for arrived in self._waiting.values():
            arrived.difference_update(workers)
        return self._open()

    def _open(self) -> Opened:
        complete = [n for n, here in sorted(self._waiting.items()) if here and here >= self._members]
        self._passed = max([self._passed, *complete])
        return [(number, sorted(self._waiting.pop(number))) for number in complete]
