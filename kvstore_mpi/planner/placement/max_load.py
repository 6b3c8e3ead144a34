"""The best stages of a pipeline: a dynamic program over ideals, pruned by a bound that is raised. Pure.

An answer is a chain of ideals from the empty one to the full one; the difference of two neighbours is the
part of one device. For a trial value, only differences with at most that load are followed, and only ideals
from which the rest can still be shared among the devices that are left. If the full ideal is reached, the
best chain is the best of all; if not, the value is a lower bound, and a larger one is tried.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.placement.ideals import groups_of, ideals_of, prefixes_of
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

Array = np.ndarray[Any, Any]

MOST_IDEALS = 400_000
FIRST_SLACK = 0.002
"""The first trial is this share above the bound; each next one has twice the slack."""


def best_stages(pipeline: Pipeline, most_ideals: int = MOST_IDEALS) -> Stages:
    """Return the stages with the smallest largest load, stages being in the order of the forward pass.

    Raises:
        UsageError: No way to share out the nodes is allowed.
    """
    groups = groups_of(pipeline)
    ideals = ideals_of(groups, most_ideals)
    table = _Table(pipeline, groups, ideals or prefixes_of(groups))
    floor = table.floor()
    slack = FIRST_SLACK
    most = table.ceiling()
    while True:
        trial = min(floor * (1 + slack), most) if floor else most
        found = _Search(table, trial * (1 + ROUNDING)).run()
        if found is not None:
            break
        if trial >= most:
            raise UsageError(NO_WAY)
        slack *= 2
    stages = tuple(Stage(kind, nodes) for kind, nodes in found)
    load = check_stages(pipeline, stages)
    return Stages(stages, load, load if ideals else min(floor, load))


class _Table(LoadTable):
    """Ideals sorted by their work, and how much of it must be done by then."""

    def floor(self) -> float:
        """Return a load that some device has in any answer: that of an even share, or of one group."""
        low, high = 0.0, max(self.ceiling(), 1e-300)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if self._capacity(middle) >= self._work[-1] else (middle, high)
        return max(low, float(self._takes.least.max(initial=0.0)))

    def ceiling(self) -> float:
        """Return a load that no device can exceed."""
        return float(max(self._work[-1], self._host[-1])) + 2 * float(self._cost.sum())

    def _capacity(
        self, load: float, accelerators: int | None = None, processors: int | None = None
    ) -> float:
        """Return how much accelerators' work devices do at a load; processors take what suits them best."""
        accelerators = self._pipeline.accelerators if accelerators is None else accelerators
        processors = self._pipeline.processors if processors is None else processors
        return accelerators * load + self._absorbed(processors * load)

    def _absorbed(self, budget: float) -> float:
        """Return the most accelerators' work that processors do in a time, groups being divisible."""
        done = 0.0
        free = self._takes.host <= 0
        done += float(self._takes.work[free].sum())
        if not budget:
            return done if self._pipeline.processors else 0.0
        work, host = self._takes.work[~free], self._takes.host[~free]
        order = np.argsort(-(work / host))
        spent = np.minimum(np.maximum(budget - (np.cumsum(host[order]) - host[order]), 0), host[order])
        return done + float((work[order] * (spent / host[order])).sum())

    def least_work(self, most: float) -> Array:
        """Return the work that must be done by then, by the accelerators and processors used."""
        _, accelerators, processors = self.sizes
        rest = [
            [self._capacity(most, accelerators - a, processors - p) for p in range(processors + 1)]
            for a in range(accelerators + 1)
        ]
        return float(self._work[-1]) - np.array(rest) - ROUNDING * float(self._work[-1])

    def at(self, work: float) -> int:
        """Return the first ideal with at least this much work."""
        return int(np.searchsorted(self._work, work))

    def beyond(self, work: float) -> int:
        """Return the first ideal with more than this much work, or their number."""
        return int(np.searchsorted(self._work, work, side="right"))

    def work(self, i: int) -> float:
        """Return the work of an ideal."""
        return float(self._work[i])


class _Search:
    """One trial: the smallest largest load with which each ideal is reached, by devices used."""

    def __init__(self, table: _Table, most: float) -> None:
        self._table = table
        self._most = most
        count, accelerators, processors = table.sizes
        shape = (accelerators + 1, processors + 1, count)
        self._load = np.full(shape, math.inf)
        self._load[0, 0, 0] = 0.0
        self._reached = np.zeros(count, bool)
        self._from = np.full(shape, -1, np.int32)
        self._by_processor = np.zeros(shape, bool)
        self._least = table.least_work(most)

    def run(self) -> list[tuple[str, tuple[int, ...]]] | None:
        """Return the stages of the best chain."""
        last = self._load.shape[2] - 1
        i = 0
        while i < last:
            states = np.argwhere(self._load[:, :, i] <= self._most)
            if len(states):
                self._follow(i, states)
            i += 1 + int(np.argmax(self._reached[i + 1 :]))
            if not self._reached[i]:
                return None
        ends = self._load[:, :, last]
        a, p = np.unravel_index(int(np.argmin(ends)), ends.shape)
        if ends[a, p] > self._most:
            return None
        return list(reversed(list(self._back(int(a), int(p), last))))

    def _follow(self, i: int, states: Array) -> None:
        """Go on from an ideal by one device, in each state in which it was reached."""
        last, accelerators, processors = self._table.sizes
        limit = self._table.work(i) + self._most * (1 + ROUNDING)
        more = [(a, p) for a, p in states.tolist() if a < accelerators]
        if more:
            lo = self._first(i, [(a + 1, p) for a, p in more])
            hi = self._table.beyond(limit)
            self._reach(i, more, lo, self._table.accelerator(i, lo, max(lo, hi)), processor=False)
        more = [(a, p) for a, p in states.tolist() if p < processors]
        if more:
            lo = self._first(i, [(a, p + 1) for a, p in more])
            self._reach(i, more, lo, self._table.processor(i, lo, last), processor=True)

    def _first(self, i: int, used: list[tuple[int, int]]) -> int:
        """Return the first ideal from which the rest can still be shared."""
        return max(i + 1, self._table.at(min(float(self._least[a, p]) for a, p in used)))

    def _reach(
        self, i: int, states: list[tuple[int, int]], lo: int, loads: Array, *, processor: bool
    ) -> None:
        """Note the ideals from ``lo`` on that one more device reaches, with its load for each."""
        keep = np.flatnonzero(loads <= self._most)
        if not len(keep):
            return
        keep = keep[self._table.larger(i, keep + lo)]
        for a, p in states:
            after = (a, p + 1) if processor else (a + 1, p)
            largest = np.maximum(loads[keep], self._load[a, p, i])
            where = keep + lo
            better = largest < self._load[after][where]
            where = where[better]
            self._reached[where] = True
            self._load[after][where] = largest[better]
            self._from[after][where] = i
            self._by_processor[after][where] = processor

    def _back(self, a: int, p: int, last: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        while last:
            i = int(self._from[a, p, last])
            processor = bool(self._by_processor[a, p, last])
            yield (PROCESSOR if processor else ACCELERATOR), self._table.nodes(i, last)
            a, p, last = a - (not processor), p - processor, i
