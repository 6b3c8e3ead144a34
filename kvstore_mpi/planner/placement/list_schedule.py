"""Times for tasks whose devices are known, or chosen one after another: list scheduling. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.planner.placement.problem import Problem, Solution

if TYPE_CHECKING:
    from collections.abc import Sequence


def schedule(problem: Problem, device: Sequence[int], urgency: Sequence[int]) -> Solution:
    """Return times for a placement: of the tasks that can begin first, the most urgent one is next.

    Args:
        problem: What is placed.
        device: Of each group.
        urgency: Of each task; what follows it, for example.
    """
    place = [device[group] for group in problem.group_of_task]
    missing = [len(each) for each in problem.inputs]
    free = [0] * len(problem.capacity)
    ready_at = [0] * len(missing)
    starts = [0] * len(missing)
    ready = {task for task, count in enumerate(missing) if not count}
    length = 0
    while ready:
        task = min(ready, key=lambda t: (max(ready_at[t], free[place[t]]), -urgency[t], t))
        ready.remove(task)
        here = place[task]
        starts[task] = max(ready_at[task], free[here])
        end = free[here] = starts[task] + problem.durations[task][here]
        length = max(length, end)
        for arc in problem.outputs[task]:
            there = end + arc.delays[here][place[arc.after]]
            ready_at[arc.after] = max(ready_at[arc.after], there)
            missing[arc.after] -= 1
            if not missing[arc.after]:
                ready.add(arc.after)
    return Solution(list(device), starts, length)


def tails_with_delays(problem: Problem, device: Sequence[int]) -> list[int]:
    """Return what follows each task at least in a placement, itself and transfers included."""
    place = [device[group] for group in problem.group_of_task]
    tails = [0] * len(place)
    for task in reversed(problem.order):
        here = place[task]
        after = max(
            (arc.delays[here][place[arc.after]] + tails[arc.after] for arc in problem.outputs[task]),
            default=0,
        )
        tails[task] = problem.durations[task][here] + after
    return tails
