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
from kvstore_mpi.planner.placement.ideals import Groups, groups_of, ideals_of
from kvstore_mpi.planner.placement.stages import (
    ACCELERATOR,
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

_WORD = 64
_ROUNDING = 1e-9


def best_stages(pipeline: Pipeline, most_ideals: int = MOST_IDEALS) -> Stages:
    """Return the stages with the smallest largest load, stages being in the order of the forward pass.

    Raises:
        UsageError: No way to share out the nodes is allowed.
    """
    groups = groups_of(pipeline)
    ideals = ideals_of(groups, most_ideals)
    table = _Table(pipeline, groups, ideals or _prefixes(groups))
    floor = table.floor()
    slack = FIRST_SLACK
    most = table.ceiling()
    while True:
        trial = min(floor * (1 + slack), most) if floor else most
        found = table.chain(trial * (1 + _ROUNDING))
        if found is not None:
            break
        if trial >= most:
            raise UsageError(
                "no way to share out the nodes is allowed: memory, or nodes that need a processor"
            )
        slack *= 2
    stages = tuple(Stage(kind, nodes) for kind, nodes in found)
    load = check_stages(pipeline, stages)
    return Stages(stages, load, load if ideals else min(floor, load))


def _prefixes(groups: Groups) -> list[int]:
    """Return the ideals along one order of the groups."""
    return [(1 << count) - 1 for count in range(len(groups.before) + 1)]


class _Table:
    """What is known of each ideal, in arrays by ideal; ideals are sorted by their work."""

    def __init__(self, pipeline: Pipeline, groups: Groups, ideals: list[int]) -> None:
        self._pipeline = pipeline
        self._groups = groups
        nodes = pipeline.nodes
        count = len(groups.before)
        home = np.array(groups.of)
        work, host, memory, fixed = (np.zeros(count) for _ in range(4))
        np.add.at(work, home, [node.accelerator_seconds * node.accelerated for node in nodes])
        np.add.at(host, home, [node.processor_seconds for node in nodes])
        np.add.at(memory, home, [node.memory_bytes for node in nodes])
        np.add.at(fixed, home, [not node.accelerated for node in nodes])
        self._group_work, self._group_host, self._group_fixed = work, host, fixed
        inside = _inside(ideals, count)
        order = np.lexsort((_sums(inside, np.ones(count)), _sums(inside, work)))
        self._ideals = [ideals[place] for place in order]
        inside = np.ascontiguousarray(inside[:, order])
        self._work, self._host = _sums(inside, work), _sums(inside, host)
        self._memory, self._fixed = _sums(inside, memory), _sums(inside, fixed)
        self._words = _words(self._ideals, count)
        self._set_results(inside)

    def _set_results(self, inside: Array) -> None:
        """Set what is known of results that groups read from each other; those of one kind count as one."""
        cost: dict[tuple[int, frozenset[int]], float] = {}
        home = self._groups.of
        for each, readers in enumerate(self._pipeline.readers()):
            others = frozenset(home[reader] for reader in readers) - {home[each]}
            if others and self._pipeline.nodes[each].transfer_seconds:
                key = home[each], others
                cost[key] = cost.get(key, 0.0) + self._pipeline.nodes[each].transfer_seconds
        self._cost = np.array(list(cost.values()))
        self._degree = np.array([len(others) for _, others in cost], np.uint16)
        self._read = np.zeros((len(cost), inside.shape[1]), np.uint16)  # readers of a result in an ideal
        for row, (_, others) in enumerate(cost):
            for group in others:
                self._read[row] += inside[group]
        self._own = inside[[group for group, _ in cost]] if cost else np.zeros((0, inside.shape[1]), bool)
        full = (self._read == self._degree[:, None]) & self._own
        early = (self._read > 0) & ~self._own
        self._since = _sums(full, self._cost) - _sums(self._own, self._cost)
        self._until = _sums(early, self._cost) - self._since

    def floor(self) -> float:
        """Return a load that some device has in any answer: that of an even share, or of one group."""
        least = np.where(
            self._group_fixed > 0,
            self._group_host,
            np.minimum(self._group_work, self._group_host)
            if self._pipeline.processors
            else self._group_work,
        )
        low, high = 0.0, max(self.ceiling(), 1e-300)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if self._capacity(middle) >= self._work[-1] else (middle, high)
        return max(low, float(least.max(initial=0.0)))

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
        free = self._group_host <= 0
        done += float(self._group_work[free].sum())
        if not budget:
            return done if self._pipeline.processors else 0.0
        work, host = self._group_work[~free], self._group_host[~free]
        order = np.argsort(-(work / host))
        spent = np.minimum(np.maximum(budget - (np.cumsum(host[order]) - host[order]), 0), host[order])
        return done + float((work[order] * (spent / host[order])).sum())

    def chain(self, most: float) -> list[tuple[str, tuple[int, ...]]] | None:
        """Return the best stages with loads up to ``most``, or ``None`` if there are none."""
        return _Search(self, most).run()

    # What a search asks; ``i`` is an ideal, ``lo`` and ``hi`` bound those that it is compared with.

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of ideals, accelerators and processors."""
        return len(self._ideals), self._pipeline.accelerators, self._pipeline.processors

    def least_work(self, most: float) -> Array:
        """Return the work that must be done by then, by the accelerators and processors used."""
        _, accelerators, processors = self.sizes
        rest = [
            [self._capacity(most, accelerators - a, processors - p) for p in range(processors + 1)]
            for a in range(accelerators + 1)
        ]
        return float(self._work[-1]) - np.array(rest) - _ROUNDING * float(self._work[-1])

    def at(self, work: float) -> int:
        """Return the first ideal with at least this much work."""
        return int(np.searchsorted(self._work, work))

    def work(self, i: int) -> float:
        """Return the work of an ideal."""
        return float(self._work[i])

    def larger(self, i: int, lo: int, hi: int) -> Array:
        """Return which of the ideals contain ``i``."""
        outside = self._words[:, i, None] & ~self._words[:, lo:hi]
        return np.asarray(~outside.any(0))

    def accelerator(self, i: int, lo: int, hi: int) -> Array:
        """Return the load of an accelerator with what each ideal has beyond ``i``; infinite if barred."""
        read, own = self._read[:, i], self._own[:, i]
        load = self._work[lo:hi] - self._work[i] + self._until[lo:hi] + self._since[i]
        open_ = np.flatnonzero(own & (read < self._degree))
        if len(open_):
            now = self._read[open_, lo:hi]
            load += self._cost[open_] @ (
                (now > read[open_, None]).astype(np.float64) + (now == self._degree[open_, None])
            )
        early = np.flatnonzero(~own & (read > 0))
        if len(early):
            now, within = self._read[early, lo:hi], self._own[early, lo:hi]
            load += self._cost[early] @ (
                (within & (now == self._degree[early, None])).astype(np.float64)
                - (~within & (now == read[early, None]))
            )
        bad = self._memory[lo:hi] - self._memory[i] > self._pipeline.memory_bytes * (1 + _ROUNDING)
        bad |= self._fixed[lo:hi] > self._fixed[i]
        load[bad] = math.inf
        return np.asarray(load)

    def processor(self, i: int, lo: int, hi: int) -> Array:
        """Return the load of a processor with what each ideal has beyond ``i``."""
        return np.asarray(self._host[lo:hi] - self._host[i])

    def nodes(self, i: int, j: int) -> tuple[int, ...]:
        """Return the nodes that the ideal ``j`` has beyond ``i``."""
        inside = self._ideals[j] & ~self._ideals[i]
        return tuple(each for each, group in enumerate(self._groups.of) if inside >> group & 1)


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
        limit = self._table.work(i) + self._most * (1 + _ROUNDING)
        more = [(a, p) for a, p in states.tolist() if a < accelerators]
        if more:
            lo = self._first(i, [(a + 1, p) for a, p in more])
            hi = self._table.at(limit)
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
        keep = keep[self._table.larger(i, lo, lo + len(loads))[keep]]
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


def _inside(ideals: list[int], count: int) -> Array:
    """Return which group is in which ideal, as booleans."""
    size = max(1, -(-count // 8))
    raw = np.frombuffer(b"".join(ideal.to_bytes(size, "little") for ideal in ideals), np.uint8)
    bits = np.unpackbits(raw.reshape(len(ideals), size), axis=1, bitorder="little")
    return np.ascontiguousarray(bits[:, :count].T).astype(bool)


def _sums(rows: Array, values: Array) -> Array:
    """Return the sum of the values of the rows that are true, by column; no large array is made for it."""
    total = np.zeros(rows.shape[1])
    for row, value in zip(rows, values):
        if value:
            total += row * value
    return total


def _words(ideals: list[int], count: int) -> Array:
    """Return the ideals' bits as words, by word and ideal."""
    size = max(1, -(-count // _WORD)) * (_WORD // 8)
    raw = np.frombuffer(b"".join(ideal.to_bytes(size, "little") for ideal in ideals), np.uint64)
    return np.ascontiguousarray(raw.reshape(len(ideals), -1).T)
