"""Cuts a problem at operations through which everything passes, and solves the pieces. Pure.

If every operation is before or after c, and no edge leads past c, then c divides the step in time: the
forward pass of all before it ends before c begins, and the backward pass mirrors that. With the devices of
two such neighbours given, what lies between them is a problem of its own, and the best placement of the net
is the cheapest way through a chain. This is exact unless memory is short, which joins the pieces again.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.planner.placement.placement import FORWARD
from kvstore_mpi.planner.placement.problem import Arc, Problem, Solution

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Solve = Callable[[Problem], Solution]

Ends = tuple[int | None, int | None]


class Piece(NamedTuple):
    """What lies between two cuts.

    Attributes:
        problem: With both cuts as operations that take no time.
        operations: Of the whole problem, for each of its own.
        tasks: The same for tasks.
        ends: Indices of the cuts among its own operations; ``None`` at the ends of the net.
    """

    problem: Problem
    operations: tuple[int, ...]
    tasks: tuple[int, ...]
    ends: Ends


def cuts(problem: Problem) -> list[int]:
    """Return the operations at which a problem can be cut, from first to last; operations are in order."""
    count = len(problem.operations)
    edges = _edges(problem)
    before, reach = [0] * count, 0
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        before[target] |= before[source] | 1 << source
    after = [0] * count
    for source, target in sorted(edges, key=lambda edge: -edge[0]):
        after[source] |= after[target] | 1 << target
    farthest = list(range(count))
    for source, target in edges:
        farthest[source] = max(farthest[source], target)
    inside = _inside_groups(problem)
    found = []
    for each in range(count):
        comparable = before[each].bit_count() + after[each].bit_count() == count - 1
        if comparable and reach <= each and each not in inside:
            found.append(each)
        reach = max(reach, farthest[each])
    return found


def pieces(problem: Problem, at: Sequence[int]) -> list[Piece]:
    """Return what lies before, between and after the cuts; the first and the last may be empty."""
    ends = [None, *at, None]
    return [_piece(problem, low, high) for low, high in itertools.pairwise(ends)]


def solve_by_pieces(problem: Problem, solve: Solve) -> Solution:
    """Return a solution of the whole, memory left out of account, from solutions of its pieces.

    Args:
        problem: Its operations are in order.
        solve: Gives a solution of a piece with its bound. It is called once for pieces that are equal.
    """
    at = cuts(problem)
    chain = _Chain(problem, at, pieces(problem, at), solve)
    value, _ = chain.cheapest(lambda solution: solution.bound)
    bound = value
    _, devices = chain.cheapest(lambda solution: solution.length)
    return dataclasses.replace(chain.joined(devices), bound=bound)


def _edges(problem: Problem) -> list[tuple[int, int]]:
    return [
        (problem.owner[arc.before], problem.owner[arc.after])
        for arc in problem.arcs
        if problem.tasks[arc.after].phase == FORWARD
    ]


def _inside_groups(problem: Problem) -> set[int]:
    """Return the operations that lie between members of one group, which must stay in one piece."""
    first: dict[int, int] = {}
    inside: set[int] = set()
    for each, group in enumerate(problem.group):
        inside.update(range(first.setdefault(group, each) + 1, each))
    return inside


def _piece(problem: Problem, low: int | None, high: int | None) -> Piece:
    """Return what lies between two operations, these included."""
    since = 0 if low is None else low
    until = len(problem.operations) if high is None else high + 1
    operations = tuple(range(since, until))
    tasks = tuple(task for task, owner in enumerate(problem.owner) if since <= owner < until)
    new_task = {task: i for i, task in enumerate(tasks)}
    groups: dict[int, int] = {}
    for each in operations:
        groups.setdefault(problem.group[each], len(groups))
    nothing = (0,) * len(problem.capacity)
    piece = Problem(
        operations=problem.operations[since:until],
        tasks=tuple(problem.tasks[task] for task in tasks),
        owner=tuple(problem.owner[task] - since for task in tasks),
        durations=tuple(
            nothing if problem.owner[task] in (low, high) else problem.durations[task] for task in tasks
        ),
        arcs=tuple(
            Arc(new_task[arc.before], new_task[arc.after], arc.delays)
            for arc in problem.arcs
            if arc.before in new_task and arc.after in new_task
        ),
        group=tuple(groups[problem.group[each]] for each in operations),
        allowed=tuple(problem.allowed[group] for group in groups),
        memory=(0,) * len(groups),
        capacity=nothing,
    )
    ends = (None if low is None else 0, None if high is None else high - since)
    return Piece(piece, operations, tasks, ends)


class _Chain:
    """Pieces one after another, and the solutions of each for the devices of its ends."""

    def __init__(self, problem: Problem, at: Sequence[int], pieces: Sequence[Piece], solve: Solve) -> None:
        self._problem = problem
        self._pieces = pieces
        self._at = at
        self._solve = solve
        self._known: dict[object, Solution] = {}
        self._devices = range(len(problem.capacity))
        self._choices: list[Sequence[int | None]] = [
            [None],
            *(problem.allowed[problem.group[cut]] for cut in at),
            [None],
        ]
        self._found: dict[tuple[int, int | None, int | None], Solution] = {}

    def cheapest(self, cost: Callable[[Solution], int]) -> tuple[int, list[int | None]]:
        """Return the cheapest way through the chain: its cost, and the device of each cut."""
        best: dict[int | None, tuple[int, list[int | None]]] = {None: (0, [])}
        for number in range(len(self._pieces)):
            best = {
                there: min(
                    (
                        (value + cost(self.solution(number, here, there)), [*way, there])
                        for here, (value, way) in best.items()
                    ),
                    key=lambda found: found[0],
                )
                for there in self._choices[number + 1]
            }
            if number < len(self._at):
                best = {
                    there: (value + self._own(number, there), way) for there, (value, way) in best.items()
                }
        value, way = best[None]
        return value, way[:-1]

    def _own(self, cut: int, device: int | None) -> int:
        """Return what a cut itself takes, in all its passes."""
        assert device is not None
        return sum(
            self._problem.durations[task][device]
            for task, owner in enumerate(self._problem.owner)
            if owner == self._at[cut]
        )

    def solution(self, number: int, here: int | None, there: int | None) -> Solution:
        """Return the solution of a piece whose ends have these devices."""
        key = number, here, there
        if key not in self._found:
            piece = self._pieces[number]
            names = list(self._devices)  # the device that stands for each
            if _uniform(piece.problem):
                names.sort(key=lambda device: (device != here, device != there))
            fixed = _fixed(piece, [None if end is None else names.index(end) for end in (here, there)])
            solved = self._solved(fixed)
            self._found[key] = dataclasses.replace(
                solved, device=[names[device] for device in solved.device]
            )
        return self._found[key]

    def _solved(self, problem: Problem) -> Solution:
        key = problem.durations, problem.arcs, problem.owner, problem.group, problem.allowed
        if key not in self._known:
            self._known[key] = self._solve(problem)
        return self._known[key]

    def joined(self, devices: Sequence[int | None]) -> Solution:
        """Return the solution of the whole for these devices of the cuts."""
        problem = self._problem
        device = [allowed[0] for allowed in problem.allowed]
        starts = [0] * len(problem.tasks)
        turn = [None, *devices, None]
        clock = 0
        mirrored = []  # what the backward passes of pieces still need, from the last piece to the first
        for number, piece in enumerate(self._pieces):
            solved = self.solution(number, turn[number], turn[number + 1])
            for own, each in enumerate(piece.operations):
                device[problem.group[each]] = solved.device[piece.problem.group[own]]
            middle = self._middle(piece, solved)
            mirrored.append((piece, solved, middle))
            self._place(piece, solved, starts, clock, forward=True)
            clock += middle
            if number < len(self._at):
                clock += self._cut_time(number, turn[number + 1], starts, clock, forward=True)
        for number in reversed(range(len(self._pieces))):
            piece, solved, middle = mirrored[number]
            if number < len(self._at):
                clock += self._cut_time(number, turn[number + 1], starts, clock, forward=False)
            self._place(piece, solved, starts, clock - middle, forward=False)
            clock += solved.length - middle
        return Solution(device, starts, clock)

    def _middle(self, piece: Piece, solved: Solution) -> int:
        """Return when the forward passes of a piece are over: its last cut begins, or it ends."""
        end = piece.ends[1]
        if end is None:
            return solved.length
        return next(
            solved.starts[own]
            for own, task in enumerate(piece.problem.tasks)
            if task.phase == FORWARD and piece.problem.owner[own] == end
        )

    def _place(
        self, piece: Piece, solved: Solution, starts: list[int], since: int, *, forward: bool
    ) -> None:
        for own, task in enumerate(piece.tasks):
            if piece.problem.owner[own] in piece.ends:
                continue
            late = piece.ends[1] is not None and piece.problem.tasks[own].phase != FORWARD
            if late != forward:
                starts[task] = since + solved.starts[own]

    def _cut_time(
        self, cut: int, device: int | None, starts: list[int], clock: int, *, forward: bool
    ) -> int:
        """Set when a cut's pass begins, and return what it takes."""
        assert device is not None
        taken = 0
        for task, owner in enumerate(self._problem.owner):
            if owner == self._at[cut] and (self._problem.tasks[task].phase == FORWARD) == forward:
                starts[task] = clock + taken
                taken += self._problem.durations[task][device]
        return taken


def _uniform(problem: Problem) -> bool:
    """Return whether the devices of a piece are interchangeable."""
    everywhere = tuple(range(len(problem.capacity)))
    if any(allowed != everywhere for allowed in problem.allowed):
        return False
    if any(len(set(durations)) > 1 for durations in problem.durations):
        return False
    return all(
        len(
            {delay for one, row in enumerate(arc.delays) for other, delay in enumerate(row) if one != other}
        )
        <= 1
        for arc in problem.arcs
    )


def _fixed(piece: Piece, devices: Sequence[int | None]) -> Problem:
    """Return a piece's problem with the devices of its ends given."""
    allowed = list(piece.problem.allowed)
    for end, device in zip(piece.ends, devices):
        if end is not None and device is not None:
            allowed[piece.problem.group[end]] = (device,)
    return dataclasses.replace(piece.problem, allowed=tuple(allowed))
