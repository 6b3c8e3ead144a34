"""When each computation of a schedule begins and ends, given how long all of it takes. Pure.

A rank computes one thing at a time, in the order of its schedule. Transfers go on meanwhile, each on a link
of its own, and begin when what they carry is there. A rank that gives or takes a message does not
compute meanwhile: the overhead o of the LogP model (Culler et al., PPoPP 1993), beside the latency L.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.planner.pipelines.schedules import Action, Schedule, needs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.planner.pipelines.segments import Edge, SegmentGraph


class Times(NamedTuple):
    """How long things take, for one micro-batch; in seconds.

    Attributes:
        forward: Of each segment.
        backward: Of each segment.
        transfer: Of each edge's output or its gradient, if the ends are on two ranks, between these.
        handling: Of the same on each of the two ranks; nothing where it is empty.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    transfer: Sequence[float]
    handling: Sequence[float] = ()


class Timetable(NamedTuple):
    """When everything happens.

    Attributes:
        starts: Of each computation, in seconds from the beginning of the step.
        ends: Likewise.
        step: Seconds until everything is done.
        busy: Seconds for which each rank computes.
        waited: What each computation waited for last: the one before it on its rank, or one on another
            whose message came later. Those that begin a step are not in it.
        last: The one after which everything is done.
    """

    starts: dict[Action, float]
    ends: dict[Action, float]
    step: float
    busy: tuple[float, ...]
    waited: dict[Action, Action]
    last: Action

    @property
    def idle(self) -> float:
        """Share of the ranks' time in which they do not compute: the bubble."""
        return 1 - sum(self.busy) / (len(self.busy) * self.step)

    def longest_chain(self) -> list[Action]:
        """Return the computations that make the step as long as it is, each waited for by the next."""
        chain = [self.last]
        while before := self.waited.get(chain[-1]):
            chain.append(before)
        return chain[::-1]


def simulate(graph: SegmentGraph, schedule: Schedule, times: Times) -> Timetable:
    """Carry out a schedule that ``schedules.check`` accepts."""
    handling = times.handling or [0.0] * len(graph.edges)
    starts: dict[Action, float] = {}
    ends: dict[Action, float] = {}
    waited: dict[Action, Action] = {}
    there: dict[tuple[Action, int], float] = {}  # when the message of an action has come over an edge
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
                since = free[rank]
                if at[rank]:
                    waited[action] = actions[at[rank] - 1]
                for edge, source in _taken(graph, action):
                    if there[source, edge.number] > since or action not in waited:
                        waited[action] = source
                    since = max(since, there[source, edge.number]) + handling[edge.number]
                starts[action] = since
                until = ends[action] = since + _length(times, action)
                for edge in _given(graph, action):
                    until += handling[edge.number]
                    there[action, edge.number] = until + times.transfer[edge.number]
                free[rank] = until
                at[rank] += 1
                left -= 1
    busy = [sum(_length(times, action) for action in actions) for actions in schedule]
    last = schedule[free.index(max(free))][-1]
    return Timetable(starts, ends, max(free), tuple(busy), waited, last)


def _length(times: Times, action: Action) -> float:
    return (times.forward if action.forward else times.backward)[action.segment]


def _taken(graph: SegmentGraph, action: Action) -> Iterator[tuple[Edge, Action]]:
    """Yield the edges over which an action takes messages, each with whose message it is."""
    forward = action.forward
    for edge in graph.into(action.segment) if forward else graph.out_of(action.segment):
        if graph.crosses(edge):
            yield edge, Action(edge.source if forward else edge.target, action.micro_batch, forward)


def _given(graph: SegmentGraph, action: Action) -> Iterator[Edge]:
    """Yield the edges over which the message of an action goes."""
    edges = graph.out_of(action.segment) if action.forward else graph.into(action.segment)
    return filter(graph.crosses, edges)
