"""A search without a solver: placements tried one after another, each with list-scheduled times. Pure.

All placements of a small problem are tried, and the bound is the smallest of what each takes at least; of a
large one, neighbours of the best so far, and the bound is that of the longest path and of the work.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from functools import lru_cache
from typing import TYPE_CHECKING

from kvstore_mpi.planner.placement.baselines import earliest_first, heft
from kvstore_mpi.planner.placement.list_schedule import schedule, tails_with_delays
from kvstore_mpi.planner.placement.problem import Problem, Solution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TRIES_PER_SECOND = 5000
"""Placements that count as a second of work, whatever the machine."""

REMEMBERED = 2000
"""Placements whose times are kept while others are tried."""


def solve(problem: Problem, seconds: float) -> tuple[Solution, float]:
    """Return the best placement found with an effort of about ``seconds``, with a bound; and the effort.

    Memory is respected where ``problem.capacity`` limits it. If no placement is found for which there is
    enough, the answer is one without, which takes longer than the best that may be found yet.
    """
    tries = max(1, int(seconds * TRIES_PER_SECOND))
    count = math.prod(map(len, problem.allowed))
    floor = simple_bound(problem)
    best, bound = _all(problem) if count <= tries else (_climb(problem, tries, floor), 0)
    best = best or _last_resort(problem)
    best.bound = min(best.length, max(floor, bound))
    return best, min(count, tries) / TRIES_PER_SECOND


def _all(problem: Problem) -> tuple[Solution | None, int]:
    """Return the best of all placements, and the smallest of what each takes at least.

    Of those left out, a device's work alone takes as long as the best.
    """
    best: Solution | None = None
    bounds = []
    for device in itertools.product(*problem.allowed):
        if fits(problem, device) and (best is None or _most_work(problem, device) < best.length):
            tails = tails_with_delays(problem, device)
            bounds.append(placement_bound(problem, device, tails))
            if best is None or bounds[-1] < best.length:
                best = better(best, schedule(problem, device, tails))
    return best, min(bounds, default=0)


def _most_work(problem: Problem, device: Sequence[int]) -> int:
    """Return what the busiest device computes in a placement."""
    work = [0] * len(problem.capacity)
    for durations, group in zip(problem.durations, problem.group_of_task):
        work[device[group]] += durations[device[group]]
    return max(work)


def better(one: Solution | None, other: Solution) -> Solution:
    """Return the shorter of two solutions, the first of equals."""
    return other if one is None or other.length < one.length else one


def fits(problem: Problem, device: Sequence[int]) -> bool:
    """Return whether memory suffices: equation (13)."""
    used = [0] * len(problem.capacity)
    for group, here in enumerate(device):
        used[here] += problem.memory[group]
    return all(not have or need <= have for need, have in zip(used, problem.capacity))


def simple_bound(problem: Problem) -> int:
    """Return what any solution takes: the longest path without transfers, and the work shared evenly."""
    work = sum(problem.least(task) for task in range(len(problem.tasks)))
    return max(max(problem.tails, default=0), -(-work // len(problem.capacity)))


def placement_bound(problem: Problem, device: Sequence[int], tails: Sequence[int]) -> int:
    """Return what a placement takes at least, in whatever order.

    The longest path with its transfers; and for each device its tasks alone, each with what comes before
    and after it, which may be interrupted (Jackson's schedule).
    """
    place = [device[group] for group in problem.group_of_task]
    heads = [0] * len(place)
    for task in problem.order:
        end = heads[task] + problem.durations[task][place[task]]
        for arc in problem.outputs[task]:
            heads[arc.after] = max(heads[arc.after], end + arc.delays[place[task]][place[arc.after]])
    bound = max((head + tail for head, tail in zip(heads, tails)), default=0)
    for here in set(place):
        jobs = [
            (heads[task], problem.durations[task][here], tails[task] - problem.durations[task][here])
            for task in range(len(place))
            if place[task] == here and problem.durations[task][here]
        ]
        bound = max(bound, _jackson(jobs))
    return bound


def _jackson(jobs: list[tuple[int, int, int]]) -> int:
    """Return the length of the best schedule of (head, duration, tail) on one device with interruptions."""
    jobs.sort()
    waiting: list[tuple[int, int]] = []
    now = length = 0
    for (head, duration, tail), following in itertools.zip_longest(jobs, jobs[1:]):
        now = max(now, head)
        heapq.heappush(waiting, (-tail, duration))
        until = following[0] if following else math.inf
        while waiting and now < until:
            after, left = heapq.heappop(waiting)
            done = min(left, until - now)
            now += int(done)
            if done < left:
                heapq.heappush(waiting, (after, left - int(done)))
            else:
                length = max(length, now - after)
    return length


def first_fit(problem: Problem) -> Solution:
    """Return some placement that memory allows: large groups first, each where most is left.

    If none is found this way, everything is where it may be, whatever its size.
    """
    left = [have or math.inf for have in problem.capacity]
    device = [allowed[0] for allowed in problem.allowed]
    for group in sorted(range(len(device)), key=lambda group: -problem.memory[group]):
        device[group] = max(problem.allowed[group], key=lambda here: left[here])
        left[device[group]] -= problem.memory[group]
    return schedule(problem, device, problem.tails)


def _last_resort(problem: Problem) -> Solution:
    """Return the placement of ``first_fit``; if memory does not allow it, longer than the best can be."""
    found = first_fit(problem)
    if not fits(problem, found.device):
        found.length = sum(map(max, problem.durations))
        found.length += sum(max(map(max, arc.delays)) for arc in problem.arcs)
    return found


def _climb(problem: Problem, tries: int, floor: int) -> Solution | None:
    return climb(
        problem,
        tries,
        floor,
        _starts(problem),
        lambda device: schedule(problem, device, tails_with_delays(problem, device)),
    )


def or_listed(problem: Problem, found: Solution) -> Solution:
    """Return what is found or what list schedulers find, if that is shorter.

    A search begins with theirs as well, but with little effort their turn does not come.
    """
    best = found
    for listed in (heft(problem), earliest_first(problem)):
        if fits(problem, listed.device):
            best = better(best, listed)
    best.bound = found.bound
    return best


def climb(
    problem: Problem,
    tries: int,
    floor: int,
    starts: Iterator[list[int]],
    timed: Callable[[tuple[int, ...]], Solution],
) -> Solution | None:
    """Return the best of placements that are reached by moving one group, or exchanging two.

    Args:
        problem: What is placed.
        tries: How many placements are timed, at most.
        floor: Nothing is shorter.
        starts: Devices of the groups to begin with, one after the other; then the best is shaken.
        timed: Gives devices of the groups their times; the same ones come back often.
    """
    timed = lru_cache(REMEMBERED)(timed)
    chance = random.Random(0)  # noqa: S311 - it only has to be the same each time
    best: Solution | None = None
    current: Solution | None = None
    stale = 0
    for _ in range(tries):
        if current is None or stale > 4 * len(problem.allowed):
            device = next(starts, None) or _shaken(problem, best, chance)
            current, stale = None, 0
        else:
            device = _neighbour(problem, current.device, chance)
        if not fits(problem, device):
            stale += 1
            continue
        found = timed(tuple(device))
        if current is None or found.length <= current.length:
            stale = 0 if current is None or found.length < current.length else stale + 1
            current = found
            best = better(best, found)
            if best.length <= floor:
                break
        else:
            stale += 1
    return best


def _starts(problem: Problem) -> Iterator[list[int]]:
    """Yield placements to begin with: all on one device, those of list schedulers, memory spread evenly."""
    for here in range(len(problem.capacity)):
        yield [here if here in allowed else allowed[0] for allowed in problem.allowed]
    yield heft(problem).device
    yield earliest_first(problem).device
    yield first_fit(problem).device


def _neighbour(problem: Problem, device: Sequence[int], chance: random.Random) -> list[int]:
    changed = list(device)
    movable = [group for group, allowed in enumerate(problem.allowed) if len(allowed) > 1]
    if not movable:
        return changed
    one = chance.choice(movable)
    used = set(device)
    idle = [here for here in problem.allowed[one] if here not in used]  # often alike: one of them is tried
    choices = [here for here in problem.allowed[one] if here in used and here != device[one]]
    choices += [chance.choice(idle)] if idle else []
    changed[one] = chance.choice(choices)
    if chance.random() < 0.5:  # noqa: PLR2004 - even chances
        other = chance.choice(movable)
        if device[one] in problem.allowed[other]:
            changed[other] = device[one]
    return changed


def _shaken(problem: Problem, best: Solution | None, chance: random.Random) -> list[int]:
    if best is None:
        return [chance.choice(allowed) for allowed in problem.allowed]
    share = chance.choice((0.1, 0.3, 1.0))
    return [
        chance.choice(allowed) if chance.random() < share else here
        for here, allowed in zip(best.device, problem.allowed)
    ]
