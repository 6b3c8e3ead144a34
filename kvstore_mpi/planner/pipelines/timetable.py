"""When each computation of a schedule begins and ends, given how long all of it takes. Pure.

A rank computes one thing at a time, in the order of its schedule; transfers go on meanwhile, each on a link
of its own, and begin when what they carry is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.planner.pipelines.schedules import Action, Schedule, needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.planner.pipelines.segments import SegmentGraph


class Times(NamedTuple):
    """How long things take, for one micro-batch; in seconds.

    Attributes:
        forward: Of each segment.
        backward: Of each segment.
        transfer: Of each edge's output or its gradient, if the ends are on two ranks.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    transfer: Sequence[float]


class Timetable(NamedTuple):
    """When everything happens.

    Attributes:
        starts: Of each computation, in seconds from the beginning of the step.
        ends: Likewise.
        step: Seconds until everything is done.
        busy: Seconds for which each rank computes.
    """

    starts: dict[Action, float]
    ends: dict[Action, float]
    step: float
    busy: tuple[float, ...]

    @property
    def idle(self) -> float:
        """Share of the ranks' time in which they do not compute: the bubble."""
        return 1 - sum(self.busy) / (len(self.busy) * self.step)


def simulate(graph: SegmentGraph, schedule: Schedule, times: Times) -> Timetable:
    """Carry out a schedule that ``schedules.check`` accepts."""
    delay = {
        (edge.source, edge.target): times.transfer[edge.number] if graph.crosses(edge) else 0.0
        for edge in graph.edges
    }
    starts: dict[Action, float] = {}
    ends: dict[Action, float] = {}
    at = [0] * len(schedule)
    free = [0.0] * len(schedule)
    left = sum(map(len, schedule))
    while left:
        for rank, actions in enumerate(schedule):
            while at[rank] < len(actions):
                action = actions[at[rank]]
                before = needs(graph, action)
                if any(each not in ends for each in before):
                    break
                arrivals = [ends[each] + _delay(delay, each, action) for each in before]
                starts[action] = max([free[rank], *arrivals])
                ends[action] = free[rank] = starts[action] + _length(times, action)
                at[rank] += 1
                left -= 1
    busy = [sum(_length(times, action) for action in actions) for actions in schedule]
    return Timetable(starts, ends, max(free), tuple(busy))


def _length(times: Times, action: Action) -> float:
    return (times.forward if action.forward else times.backward)[action.segment]


def _delay(delay: dict[tuple[int, int], float], before: Action, after: Action) -> float:
    if before.segment == after.segment:
        return 0.0
    pair = (before.segment, after.segment) if after.forward else (after.segment, before.segment)
    return delay[pair]
