"""The order in which each rank of a worker computes its segments for the micro-batches of one step.

Schedules are data, and ``check`` says whether one can be carried out. Pure.

A pipeline of S stages and m micro-batches of equal times is idle for (S - 1)/(m + S - 1) of a step, by
fill and drain (GPipe, section 2.3) and by 1F1B (PipeDream, section 3.2, with a flush after each step)
alike. What differs is how many micro-batches a stage holds: fill and drain all m, 1F1B at most S - i on
stage i.
"""

from __future__ import annotations

from typing import NamedTuple

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.pipelines.segments import SegmentGraph


class Action(NamedTuple):
    """One computation.

    Attributes:
        segment: Number of the segment.
        micro_batch: Number of the micro-batch.
        forward: Forward, or backward.
    """

    segment: int
    micro_batch: int
    forward: bool

    def __str__(self) -> str:
        """Write it as in ``F2 of segment 0``."""
        return f"{'F' if self.forward else 'B'}{self.micro_batch} of segment {self.segment}"


Schedule = tuple[tuple[Action, ...], ...]
"""For each rank, what it computes, in order."""


def fill_drain(graph: SegmentGraph, micro_batches: int) -> Schedule:
    """Return the schedule in which all go forward before any goes backward, for any graph.

    Each rank computes its segments in the graph's order forward, and in the opposite order backward.
    """
    _check_count(micro_batches)
    numbers = range(len(graph.segments))

    def of(rank: int) -> tuple[Action, ...]:
        own = [number for number in numbers if graph.rank_of(number) == rank]
        forward = [Action(number, batch, True) for batch in range(micro_batches) for number in own]
        backward = [Action(number, batch, False) for batch in range(micro_batches) for number in own[::-1]]
        return (*forward, *backward)

    return tuple(of(rank) for rank in range(graph.num_ranks))


def one_f_one_b(num_stages: int, micro_batches: int) -> Schedule:
    """Return 1F1B: stage i goes forward S - 1 - i times ahead, then forward and backward in turns.

    Args:
        num_stages: S, one on each rank.
        micro_batches: m.
    """
    _check_count(micro_batches)

    def of(stage: int) -> tuple[Action, ...]:
        ahead = min(num_stages - 1 - stage, micro_batches)
        actions = [Action(stage, batch, True) for batch in range(ahead)]
        for batch in range(micro_batches):
            if batch + ahead < micro_batches:
                actions.append(Action(stage, batch + ahead, True))
            actions.append(Action(stage, batch, False))
        return tuple(actions)

    return tuple(of(stage) for stage in range(num_stages))


def needs(graph: SegmentGraph, action: Action) -> list[Action]:
    """Return what must be computed before an action."""
    segment, batch, forward = action
    if forward:
        return [Action(edge.source, batch, True) for edge in graph.into(segment)]
    later = [Action(edge.target, batch, False) for edge in graph.out_of(segment)]
    return [Action(segment, batch, True), *later]


def check(graph: SegmentGraph, schedule: Schedule, micro_batches: int) -> None:
    """Make sure that a schedule does everything once, on the right rank, and that none waits for ever.

    Raises:
        UsageError: It does not; the text says what is wrong.
    """
    every = {
        Action(segment, batch, forward)
        for segment in range(len(graph.segments))
        for batch in range(micro_batches)
        for forward in (True, False)
    }
    listed = [action for actions in schedule for action in actions]
    if len(listed) != len(every) or set(listed) != every:
        odd = sorted(set(listed) ^ every) or sorted(each for each in listed if listed.count(each) > 1)
        raise UsageError(f"a schedule has each computation once, and this one not {odd[0]}")
    for rank, actions in enumerate(schedule):
        for action in actions:
            if graph.rank_of(action.segment) != rank:
                raise UsageError(f"rank {rank} is to compute {action}, which is on another rank")
    _check_progress(graph, schedule)


def _check_progress(graph: SegmentGraph, schedule: Schedule) -> None:
    done: set[Action] = set()
    at = [0] * len(schedule)
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule):
            while at[rank] < len(actions) and done.issuperset(needs(graph, actions[at[rank]])):
                done.add(actions[at[rank]])
                at[rank] += 1
                moved = True
    stuck = [actions[at[rank]] for rank, actions in enumerate(schedule) if at[rank] < len(actions)]
    if stuck:
        raise UsageError(f"by this schedule ranks would wait for each other for ever: at {stuck[0]}")


def most_held(actions: tuple[Action, ...]) -> int:
    """Return how many outputs a rank keeps at most for the way back, counted by segment and micro-batch."""
    held = most = 0
    for action in actions:
        held += 1 if action.forward else -1
        most = max(most, held)
    return most


def _check_count(micro_batches: int) -> None:
    if micro_batches < 1:
        raise UsageError(f"a step has at least one micro-batch, not {micro_batches}")
