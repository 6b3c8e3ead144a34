"""Two list schedulers of the literature, to compare with: HEFT and m-ETF. Pure.

HEFT (Topcuoglu et al., 2002) takes tasks by what follows them on average and gives each the device on which
it ends first, in a gap if there is one. m-ETF (Baechi, SoCC 2020) takes, of all pairs of a ready task and
a device with memory for it, the one that begins first. An operation's first pass chooses for all of them.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from kvstore_mpi.planner.placement.problem import Arc, Problem, Solution

if TYPE_CHECKING:
    from collections.abc import Sequence


def heft(problem: Problem) -> Solution:
    """Return HEFT's placement; memory is respected where a device has room."""
    state = _State(problem)
    ranks = _ranks(problem)
    for task in sorted(
        range(len(problem.tasks)), key=lambda task: (-ranks[task], problem.order.index(task))
    ):
        begins = {device: state.gap(task, device) for device in state.choices(task)}
        device = min(begins, key=lambda here: (begins[here] + problem.durations[task][here], here))
        state.put(task, device, begins[device])
    return state.solution()


def earliest_first(problem: Problem) -> Solution:
    """Return m-ETF's placement; memory is respected where a device has room."""
    state = _State(problem)
    missing = [len(each) for each in problem.inputs]
    ready = {task for task, count in enumerate(missing) if not count}
    while ready:
        begin, task, device = min(
            (state.append(task, device), task, device) for task in ready for device in state.choices(task)
        )
        state.put(task, device, begin)
        ready.remove(task)
        for arc in problem.outputs[task]:
            missing[arc.after] -= 1
            if not missing[arc.after]:
                ready.add(arc.after)
    return state.solution()


def _ranks(problem: Problem) -> list[float]:
    """Return what follows each task, itself included, with average times and transfers."""
    devices = len(problem.capacity)
    ranks = [0.0] * len(problem.tasks)
    for task in reversed(problem.order):
        after = max((_mean_delay(arc) + ranks[arc.after] for arc in problem.outputs[task]), default=0.0)
        ranks[task] = sum(problem.durations[task]) / devices + after
    return ranks


def _mean_delay(arc: Arc) -> float:
    count = len(arc.delays)
    return sum(map(sum, arc.delays)) / (count * (count - 1)) if count > 1 else 0.0


class _State:
    """What has been placed so far."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._device: list[int | None] = [None] * len(problem.allowed)
        self._left = [have or sum(problem.memory) for have in problem.capacity]
        self._ends: dict[int, int] = {}
        self._starts = [0] * len(problem.tasks)
        self._busy: list[list[tuple[int, int]]] = [[] for _ in problem.capacity]

    def choices(self, task: int) -> Sequence[int]:
        """Return the devices that a task may have."""
        group = self._problem.group_of_task[task]
        chosen = self._device[group]
        if chosen is not None:
            return [chosen]
        allowed = self._problem.allowed[group]
        return [here for here in allowed if self._problem.memory[group] <= self._left[here]] or [
            max(allowed, key=lambda here: self._left[here])
        ]

    def _inputs_at(self, task: int, device: int) -> int:
        """Return when all results that a task needs are on a device."""
        at = 0
        for arc in self._problem.inputs[task]:
            origin = self._device[self._problem.group_of_task[arc.before]]
            assert origin is not None
            at = max(at, self._ends[arc.before] + arc.delays[origin][device])
        return at

    def append(self, task: int, device: int) -> int:
        """Return when a task can begin after all that its device already has."""
        last = self._busy[device][-1][1] if self._busy[device] else 0
        return max(last, self._inputs_at(task, device))

    def gap(self, task: int, device: int) -> int:
        """Return when a task can begin on a device, in the first gap that is long enough."""
        begin = self._inputs_at(task, device)
        for since, until in self._busy[device]:
            if begin + self._problem.durations[task][device] <= since:
                break
            begin = max(begin, until)
        return begin

    def put(self, task: int, device: int, begin: int) -> None:
        """Give a task a device and a time."""
        group = self._problem.group_of_task[task]
        if self._device[group] is None:
            self._device[group] = device
            self._left[device] -= self._problem.memory[group]
        self._starts[task] = begin
        self._ends[task] = begin + self._problem.durations[task][device]
        insort(self._busy[device], (begin, self._ends[task]))

    def solution(self) -> Solution:
        """Return all of it."""
        devices = [0 if device is None else device for device in self._device]
        return Solution(devices, self._starts, max(self._ends.values(), default=0))
