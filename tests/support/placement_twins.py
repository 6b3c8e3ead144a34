"""Dumb twins of the solvers of placements, and random nets to compare them on."""

from __future__ import annotations

import itertools
import math
import operator
import random
from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cluster import Cluster, Device, Link, uniform
from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.placement.problem import NANO, Solution, Wishes, problem_of
from kvstore_mpi.planner.placement.stages import (
    ACCELERATOR,
    PROCESSOR,
    Node,
    Pipeline,
    Stage,
    check_stages,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.planner.placement.problem import Problem

MILLI = 1e-3
NO_WISHES = Wishes()
ALIKE = uniform(2, 1e6, 1e-3)
UNLIKE = Cluster(
    devices=(Device(name="fast", speed=2.0, memory_bytes=20), Device(name="slow", memory_bytes=40)),
    routers=("switch",),
    links=(
        Link(source="fast", target="switch", bytes_per_s=2e6),
        Link(source="switch", target="fast", bytes_per_s=1e6, latency_s=5e-4),
        Link(source="slow", target="switch", bytes_per_s=1e6),
        Link(source="switch", target="slow", bytes_per_s=4e6, latency_s=5e-4),
    ),
)
"""Two devices that differ in all that can differ; some nets of five operations do not fit the fast one."""
THREE = Cluster(
    devices=(Device("a", 2.0, 12), Device("b"), Device("c", 0.5)),
    routers=("r",),
    links=tuple(
        Link(rate, latency_s, source=one, target=other)
        for (one, other), rate, latency_s in (
            ("ar", 4e6, 0.0),
            ("ra", 1e6, 2e-4),
            ("br", 2e6, 0.0),
            ("rb", 2e6, 5e-4),
            ("cr", 8e6, 0.0),
            ("rc", 1e6, 1e-4),
            ("ab", 1e6, 1e-5),
        )
    ),
)
"""Three devices that differ; from a to b, small results go directly and large ones by the router."""

CLUSTERS = (ALIKE, UNLIKE, uniform(3, 1e6, 1e-3), THREE)


def graph_of(edges: Sequence[tuple[str, str]], **seconds: float) -> Graph:
    """Return operations whose backward pass takes twice as long as their forward pass."""
    return Graph(
        operations=tuple(
            Operation(name=name, forward_seconds=each, backward_seconds=2 * each, weights=(f"{name}_w",))
            for name, each in seconds.items()
        ),
        edges=tuple(Edge(source=one, target=other, num_bytes=1000) for one, other in edges),
    )


def shortest(problem: Problem) -> int:
    """Return the length of the best solution: every placement, and for each every order of tasks.

    An order is followed by giving each task in turn the earliest time after what its device already has;
    some best solution comes from some order. An order is left when a device's work after what it has done
    would be as long as the best so far, or when another has led to the same times.
    """
    best = math.inf
    for device in itertools.product(*problem.allowed):
        used = [0] * len(problem.capacity)
        for group, here in enumerate(device):
            used[here] += problem.memory[group]
        if all(not have or need <= have for need, have in zip(used, problem.capacity)):
            best = _shortest_order(problem, [device[group] for group in problem.group_of_task], best)
    return int(best)


def _shortest_order(problem: Problem, place: Sequence[int], best: float) -> float:
    ends: dict[int, int] = {}
    seen: set[frozenset[tuple[int, int]]] = set()

    def follow(free: tuple[int, ...], left: tuple[int, ...]) -> None:
        nonlocal best
        so_far = frozenset(ends.items())
        if so_far in seen or max(map(operator.add, free, left)) >= best:
            return
        seen.add(so_far)
        if len(ends) == len(place):
            best = max(free)
            return
        for task, here in enumerate(place):
            arcs = problem.inputs[task]
            if task in ends or any(arc.before not in ends for arc in arcs):
                continue
            begin = max(
                [free[here], *(ends[arc.before] + arc.delays[place[arc.before]][here] for arc in arcs)]
            )
            took = problem.durations[task][here]
            ends[task] = begin + took
            follow(
                (*free[:here], ends[task], *free[here + 1 :]),
                (*left[:here], left[here] - took, *left[here + 1 :]),
            )
            del ends[task]

    work = [0] * len(problem.capacity)
    for task, here in enumerate(place):
        work[here] += problem.durations[task][here]
    follow((0,) * len(work), tuple(work))
    return best


def best_load(pipeline: Pipeline) -> float:
    """Return the smallest largest load: every assignment of nodes to every sequence of devices."""
    kinds = [ACCELERATOR] * pipeline.accelerators + [PROCESSOR] * pipeline.processors
    best = math.inf
    for turn in set(itertools.permutations(kinds)):
        for home in itertools.product(range(len(turn)), repeat=len(pipeline.nodes)):
            stages = tuple(
                Stage(kind, tuple(each for each, at in enumerate(home) if at == number))
                for number, kind in enumerate(turn)
            )
            if _allowed(pipeline, stages):
                best = min(best, check_stages(pipeline, stages))
    return best


def least_sum(pipeline: Pipeline) -> float:
    """Return the smallest sum of loads: every assignment of nodes to devices that take turns."""
    between = [PROCESSOR] * bool(pipeline.processors)
    turn = [*between, *([ACCELERATOR, *between] * pipeline.accelerators)]
    best = math.inf
    for home in itertools.product(range(len(turn)), repeat=len(pipeline.nodes)):
        stages = tuple(
            Stage(kind, tuple(each for each, at in enumerate(home) if at == number))
            for number, kind in enumerate(turn)
        )
        if _allowed(pipeline, stages, in_turn=True):
            best = min(best, check_stages(pipeline, stages, in_turn=True))
    return best


def _allowed(pipeline: Pipeline, stages: tuple[Stage, ...], *, in_turn: bool = False) -> bool:
    try:
        check_stages(pipeline, stages, in_turn=in_turn)
    except UsageError:
        return False
    return True


def slowest(problem: Problem) -> Solution:
    """Return a bad start for a solver: one thing after another, as if all were as slow as can be.

    Nothing feasible takes longer, and nothing is known of a bound.
    """
    starts, end = [0] * len(problem.tasks), 0
    longest = max((max(map(max, arc.delays)) for arc in problem.arcs), default=0)
    for task in problem.order:
        starts[task] = end
        end += max(problem.durations[task]) + longest
    return Solution([allowed[-1] for allowed in problem.allowed], starts, end)


def assert_best(graph: Graph, cluster: Cluster, wishes: Wishes = NO_WISHES) -> None:
    """Check that the answer of the solver is the best, and says so."""
    found = place(graph, cluster, wishes, method="cp")
    assert round(found.predicted_seconds * NANO) == shortest(problem_of(graph, cluster, wishes))
    assert found.gap == 0


def assert_feasible(problem: Problem, solution: Solution) -> None:
    """Check times by the definition."""
    place_of = [solution.device[group] for group in problem.group_of_task]
    ends = [start + problem.durations[task][place_of[task]] for task, start in enumerate(solution.starts)]
    assert max(ends) == solution.length
    for arc in problem.arcs:
        delay = arc.delays[place_of[arc.before]][place_of[arc.after]]
        assert solution.starts[arc.after] >= ends[arc.before] + delay
    for one, other in itertools.combinations(range(len(ends)), 2):
        if place_of[one] == place_of[other]:
            assert ends[one] <= solution.starts[other] or ends[other] <= solution.starts[one]


def all_graphs(count: int) -> Iterator[Graph]:
    """Yield every net of ``count`` operations, up to the names: each set of edges from lower to higher."""
    pairs = list(itertools.combinations(range(count), 2))
    for chosen in itertools.product((False, True), repeat=len(pairs)):
        yield graph_with([pair for pair, has in zip(pairs, chosen) if has], count)


def graph_with(
    pairs: Sequence[tuple[int, int]], count: int, seed: int = 0, *, trains: bool = False
) -> Graph:
    """Return a net with these edges, and times and sizes from a seed."""
    chance = random.Random(seed)
    return Graph(
        operations=tuple(
            Operation(
                name=f"op{i}",
                forward_seconds=chance.randint(1, 9) * MILLI,
                backward_seconds=chance.randint(1, 9) * MILLI * trains,
                parameter_bytes=chance.randint(1, 9),
            )
            for i in range(count)
        ),
        edges=tuple(
            Edge(source=f"op{one}", target=f"op{other}", num_bytes=chance.choice((0, 1000, 4000)))
            for one, other in pairs
        ),
    )


def random_graph(count: int, seed: int, *, trains: bool = False, share: float = 0.4) -> Graph:
    """Return a net with a share of all possible edges."""
    chance = random.Random(seed)
    pairs = [pair for pair in itertools.combinations(range(count), 2) if chance.random() < share]
    return graph_with(pairs, count, seed, trains=trains)


def series_parallel(seed: int, joints: int = 2, branches: int = 2, *, trains: bool = True) -> Graph:
    """Return a net of joints, one after another, with branches of one or two operations between them."""
    chance = random.Random(seed)
    pairs: list[tuple[int, int]] = []
    count, joint = 1, 0
    for _ in range(joints):
        ends = []
        for _ in range(branches):
            last = joint
            for _ in range(chance.randint(1, 2)):
                pairs.append((last, count))
                last, count = count, count + 1
            ends.append(last)
        pairs += [(end, count) for end in ends]
        joint, count = count, count + 1
    return graph_with(pairs, count, seed, trains=trains)


def random_pipeline(seed: int, count: int = 5) -> Pipeline:
    """Return a pipeline of a few nodes, some of which take no time, belong together, or go backward."""
    chance = random.Random(seed)
    trains = chance.random() < 0.5
    forward = count - 2 if trains else count
    pairs = [pair for pair in itertools.combinations(range(forward), 2) if chance.random() < 0.5]
    mates = chance.sample(range(forward), count - forward)
    if trains:
        back = {mate: forward + i for i, mate in enumerate(mates)}
        pairs += [(back[b], back[a]) for a, b in pairs if a in back and b in back]
        pairs += list(back.items())
    nodes = tuple(
        Node(
            name=f"n{i}",
            accelerator_seconds=chance.choice((0, 1, 2, 5)),
            processor_seconds=chance.choice((0, 5, 9)),
            transfer_seconds=chance.choice((0, 0.25, 1, 3)),
            memory_bytes=chance.randint(0, 4),
            backward=i >= forward,
            color=mates[i - forward] if i >= forward else i,
            accelerated=chance.random() < 0.9,
        )
        for i in range(count)
    )
    return Pipeline(
        nodes=nodes,
        edges=tuple(pairs),
        accelerators=2,
        processors=1,
        memory_bytes=chance.choice((6, 100)),
    )
