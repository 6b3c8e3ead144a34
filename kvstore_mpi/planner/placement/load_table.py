"""The loads of devices that go on from one ideal to another, for all of them at once, in arrays. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from kvstore_mpi.planner.placement.ideals import Groups
    from kvstore_mpi.planner.placement.stages import Pipeline

Array = np.ndarray[Any, Any]

ROUNDING = 1e-9
"""By what share sums that should be equal may differ."""

_WORD = 64


class Costs(NamedTuple):
    """What groups take, in arrays by group.

    Attributes:
        work: Seconds on an accelerator.
        host: Seconds on a processor.
        memory: Bytes on an accelerator.
        barred: Whether no accelerator takes them: they have nodes for a processor, or too much memory.
        least: Seconds on whichever device is faster, of those that take them.
    """

    work: Array
    host: Array
    memory: Array
    barred: Array
    least: Array


def costs_of(pipeline: Pipeline, groups: Groups) -> Costs:
    """Return what groups take."""
    nodes = pipeline.nodes
    work, host, memory, fixed = (np.zeros(len(groups.before)) for _ in range(4))
    np.add.at(work, groups.of, [node.accelerator_seconds * node.accelerated for node in nodes])
    np.add.at(host, groups.of, [node.processor_seconds for node in nodes])
    np.add.at(memory, groups.of, [node.memory_bytes for node in nodes])
    np.add.at(fixed, groups.of, [not node.accelerated for node in nodes])
    barred = (fixed > 0) | (memory > pipeline.memory_bytes * (1 + ROUNDING))
    least = np.where(barred, host, np.minimum(work, host)) if pipeline.processors else work
    return Costs(work, host, memory, barred, least)


def results_of(pipeline: Pipeline, groups: Groups) -> dict[tuple[int, frozenset[int]], float]:
    """Return seconds of a transfer by group and groups that read it; results of one kind are one."""
    found: dict[tuple[int, frozenset[int]], float] = {}
    home = groups.of
    for each, readers in enumerate(pipeline.readers()):
        others = frozenset(home[reader] for reader in readers) - {home[each]}
        if others and pipeline.nodes[each].transfer_seconds:
            key = home[each], others
            found[key] = found.get(key, 0.0) + pipeline.nodes[each].transfer_seconds
    return found


class LoadTable:
    """What is known of each ideal, in arrays by ideal; an ideal comes behind all that it contains.

    Attributes:
        rest: Seconds that what is not in an ideal takes at least, without transfers.
    """

    def __init__(
        self, pipeline: Pipeline, groups: Groups, ideals: list[int], *, by_memory: bool = False
    ) -> None:
        """Sort the ideals by accelerators' work for them, or by their memory, and set what is known."""
        self._pipeline = pipeline
        self._groups = groups
        count = len(groups.before)
        self._takes = costs_of(pipeline, groups)
        work, host, memory, barred, least = self._takes
        inside = inside_of(ideals, count)
        key = memory if by_memory else work
        self._order = np.lexsort((_sums(inside, np.ones(count)), _sums(inside, key)))
        self._ideals = [ideals[place] for place in self._order]
        inside = np.ascontiguousarray(inside[:, self._order])
        self._work, self._host = _sums(inside, work), _sums(inside, host)
        self._memory, self._barred = _sums(inside, memory), _sums(inside, barred)
        self._words = _words(self._ideals, count)
        self.rest = float(least.sum()) - _sums(inside, least)
        self._set_results(inside)

    def _set_results(self, inside: Array) -> None:
        """Set what is known of results that groups read from each other; those of one kind count as one."""
        cost = results_of(self._pipeline, self._groups)
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

    # ``i`` is an ideal, ``lo`` and ``hi`` bound those that it is compared with.

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of ideals, accelerators and processors."""
        return len(self._ideals), self._pipeline.accelerators, self._pipeline.processors

    def larger(self, i: int, places: Array) -> Array:
        """Return which of the ideals at some places contain ``i``."""
        outside = self._words[:, i, None] & ~self._words[:, places]
        return np.asarray(~outside.any(0))

    def accelerator(self, i: int, lo: int, hi: int) -> Array:
        """Return the load of an accelerator with what each ideal has beyond ``i``; infinite if barred."""
        read, own = self._read[:, i], self._own[:, i]
        load = self._work[lo:hi] - self._work[i] + self._until[lo:hi] + self._since[i]
        for row in np.flatnonzero(own & (read < self._degree)).tolist():
            now, cost = self._read[row, lo:hi], self._cost[row]
            load += cost * (now == self._degree[row])
            load += cost * (now > read[row])
        early = np.flatnonzero(~own & (read > 0))
        if len(early):
            now, within = self._read[early, lo:hi], self._own[early, lo:hi]
            load += self._cost[early] @ (
                (within & (now == self._degree[early, None])).astype(np.float64)
                - (~within & (now == read[early, None]))
            )
        bad = self._memory[lo:hi] - self._memory[i] > self._pipeline.memory_bytes * (1 + ROUNDING)
        bad |= self._barred[lo:hi] > self._barred[i]
        load[bad] = math.inf
        return np.asarray(load)

    def processor(self, i: int, lo: int, hi: int) -> Array:
        """Return the load of a processor with what each ideal has beyond ``i``."""
        return np.asarray(self._host[lo:hi] - self._host[i])

    def nodes(self, i: int, j: int) -> tuple[int, ...]:
        """Return the nodes that the ideal ``j`` has beyond ``i``."""
        inside = self._ideals[j] & ~self._ideals[i]
        return tuple(each for each, group in enumerate(self._groups.of) if inside >> group & 1)


def inside_of(ideals: list[int], count: int) -> Array:
    """Return which group is in which ideal, by group and ideal, as booleans."""
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
