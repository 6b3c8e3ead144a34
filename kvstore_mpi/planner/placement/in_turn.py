"""The best stages for one sample: devices take turns, and the sum of their loads is what it waits. Pure.

A chain of ideals as in ``max_load``, whose differences are what devices do. Each accelerator has one of
them, because its memory keeps the parameters; a processor shares the host's memory and has as many as it
likes, one group at a time. The shortest chain is found in the order of the ideals' memory, so that those
that an accelerator could reach from one are neighbours. Ideals are only those that a chain can pass through
that is no longer than a trial value, which is raised: a chain that is no longer is the shortest of all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.placement.cuts import Cuts
from kvstore_mpi.planner.placement.ideals import groups_of, prefixes_of
from kvstore_mpi.planner.placement.load_table import ROUNDING, LoadTable
from kvstore_mpi.planner.placement.stages import (
    ACCELERATOR,
    NO_WAY,
    PROCESSOR,
    Pipeline,
    Stage,
    Stages,
    check_stages,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.planner.placement.ideals import Groups

Array = np.ndarray[Any, Any]

MOST_IDEALS = 100_000
TRIALS = tuple(2.0**-halved for halved in range(8, -1, -2))
"""Shares of what lies between the bound and the first answer, which are tried one after the other."""


def best_in_turn(pipeline: Pipeline, most_ideals: int = MOST_IDEALS) -> Stages:
    """Return the stages with the smallest sum of loads, in the order of the forward pass.

    Raises:
        UsageError: No way to share out the nodes is allowed.
    """
    groups = groups_of(pipeline)
    prefixes = prefixes_of(groups)
    table = _Table(pipeline, groups, prefixes, np.zeros(len(prefixes)))
    found = _Search(table, table.ceiling()).run()
    cuts = Cuts(pipeline, groups)
    most = first = found.seconds if found else table.ceiling()
    cuts.list_to(first, most_ideals)
    bound, known = cuts.floor, 0
    for share in TRIALS:
        trial = min(cuts.floor + share * (first - cuts.floor), most)
        if (found and most <= bound * (1 + ROUNDING)) or not cuts.list_to(trial, most_ideals):
            break
        ideals, behind = cuts.within(trial)
        if len(ideals) > known:  # else they are those of the trial before
            found = _Search(_Table(pipeline, groups, ideals, behind), most * (1 + ROUNDING)).run() or found
        most = found.seconds if found else most
        bound, known = trial, len(ideals)
    if not found:
        raise UsageError(NO_WAY)
    stages = _joined(found.parts)
    seconds = check_stages(pipeline, stages, in_turn=True)
    return Stages(stages, seconds, seconds if seconds <= bound * (1 + ROUNDING) else bound)


class _Found(NamedTuple):
    """The seconds of a chain, and what devices do, processors one group at a time."""

    seconds: float
    parts: list[tuple[str, tuple[int, ...]]]


def _joined(found: list[tuple[str, tuple[int, ...]]]) -> tuple[Stage, ...]:
    """Return the stages; what a processor does one after the other is one."""
    stages: list[Stage] = []
    for kind, nodes in found:
        before = stages.pop().nodes if stages and kind == stages[-1].kind == PROCESSOR else ()
        stages.append(Stage(kind, tuple(sorted((*before, *nodes)))))
    return tuple(stages)


class _Table(LoadTable):
    """Ideals sorted by their memory."""

    def __init__(self, pipeline: Pipeline, groups: Groups, ideals: list[int], ahead: Array) -> None:
        """Add what is paid for transfers behind each ideal to what is known."""
        super().__init__(pipeline, groups, ideals, by_memory=True)
        self.rest += ahead[self._order]
        self._place = {ideal: place for place, ideal in enumerate(self._ideals)}
        self._end = np.searchsorted(
            self._memory, self._memory + pipeline.memory_bytes * (1 + ROUNDING), side="right"
        )

    def ceiling(self) -> float:
        """Return a sum that no chain exceeds."""
        slowest = np.maximum(self._takes.work, self._takes.host)
        return float(slowest.sum() + self._cost @ (self._degree + 1.0))

    def fits(self, i: int) -> int:
        """Return behind which place no ideal has few enough bytes more than ``i`` for an accelerator."""
        return int(self._end[i])

    def one_more(self, i: int) -> tuple[Array, Array]:
        """Return the ideals with one group more, and what a processor takes for that."""
        ideal = self._ideals[i]
        found = [
            (place, group)
            for group, before in enumerate(self._groups.before)
            if not ideal >> group & 1 and not before & ~ideal
            if (place := self._place.get(ideal | 1 << group)) is not None
        ]
        places, groups = np.array(found, int).reshape(-1, 2).T
        return places, self._takes.host[groups]


class _Search:
    """The smallest sum with which each ideal is reached, by accelerators used."""

    def __init__(self, table: _Table, most: float) -> None:
        """Look for chains of ``most`` seconds or less."""
        self._table = table
        self._most = most
        count, accelerators, self._processors = table.sizes
        self._sum = np.full((accelerators + 1, count), math.inf)
        self._sum[0, 0] = 0.0
        self._from = np.full(self._sum.shape, -1, np.int32)
        self._by_processor = np.zeros(self._sum.shape, bool)

    def run(self) -> _Found | None:
        """Return the best chain; ``None`` if there is no way."""
        last = self._sum.shape[1] - 1
        for i in range(last):
            states = self._worth_following(i)
            if len(states):
                self._follow(i, states)
        used = int(np.argmin(self._sum[:, last]))
        seconds = float(self._sum[used, last])
        return _Found(seconds, list(self._back(used, last))[::-1]) if seconds < math.inf else None

    def _worth_following(self, i: int) -> Array:
        """Return with how many accelerators an ideal is reached sooner than with fewer, and soon enough."""
        sums = self._sum[:, i]
        sooner = np.ones(len(sums), bool)
        sooner[1:] = sums[1:] < np.minimum.accumulate(sums)[:-1]
        return np.flatnonzero(sooner & (sums + self._table.rest[i] <= self._most) & (sums < math.inf))

    def _follow(self, i: int, states: Array) -> None:
        """Go on from an ideal by one device, in each state in which it was reached."""
        if self._processors:
            self._reach(states, states, i, *self._table.one_more(i))
        states = states[states + 1 < len(self._sum)]
        lo, hi = i + 1, self._table.fits(i)
        if not len(states) or hi <= lo:
            return
        loads = self._table.accelerator(i, lo, hi)
        soonest = float(self._sum[states, i].min())
        keep = np.flatnonzero(loads + self._table.rest[lo:hi] + soonest <= self._most)
        keep = keep[np.isfinite(loads[keep])]
        keep = keep[self._table.larger(i, keep + lo)]
        self._reach(states, states + 1, i, keep + lo, loads[keep])

    def _reach(self, states: Array, after: Array, i: int, where: Array, seconds: Array) -> None:
        """Note the ideals that one more device reaches."""
        for used, then in zip(states.tolist(), after.tolist()):
            sums = self._sum[used, i] + seconds
            better = sums < self._sum[then, where]
            places = where[better]
            self._sum[then, places] = sums[better]
            self._from[then, places] = i
            self._by_processor[then, places] = used == then

    def _back(self, used: int, place: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        while place:
            i = int(self._from[used, place])
            processor = bool(self._by_processor[used, place])
            yield (PROCESSOR if processor else ACCELERATOR), self._table.nodes(i, place)
            used, place = used - (not processor), i
