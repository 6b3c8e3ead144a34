"""Devices that take turns: as good as the shortest of all chains of ideals, by the definition of loads."""

from __future__ import annotations

import math
import random

import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.placement.cuts import Cuts
from kvstore_mpi.planner.placement.ideals import groups_of, ideals_of
from kvstore_mpi.planner.placement.in_turn import best_in_turn
from kvstore_mpi.planner.placement.stages import ACCELERATOR, PROCESSOR, Node, Pipeline, Stage, load_of


def shortest_chain(pipeline):
    """Return the smallest sum of loads over all chains of ideals, each difference being one device's."""
    groups = groups_of(pipeline)
    ideals = sorted(ideals_of(groups, 10**6), key=lambda ideal: (ideal.bit_count(), ideal))
    best = [{0: 0.0}, *({} for _ in range(pipeline.accelerators))]
    for place, ideal in enumerate(ideals):
        for larger in ideals[place + 1 :]:
            if ideal & ~larger:
                continue
            nodes = tuple(n for n, group in enumerate(groups.of) if (larger & ~ideal) >> group & 1)
            inside = [pipeline.nodes[each] for each in nodes]
            host = load_of(pipeline, Stage(PROCESSOR, nodes)) if pipeline.processors else math.inf
            fits = sum(node.memory_bytes for node in inside) <= pipeline.memory_bytes
            load = math.inf
            if fits and all(node.accelerated for node in inside):
                load = load_of(pipeline, Stage(ACCELERATOR, nodes))
            for used, sums in enumerate(best):
                since = sums.get(ideal, math.inf)
                sums[larger] = min(sums.get(larger, math.inf), since + host)
                if used < pipeline.accelerators:
                    then = best[used + 1]
                    then[larger] = min(then.get(larger, math.inf), since + load)
    return min(sums.get(groups.full, math.inf) for sums in best)


def long_pipeline(seed, count=9):
    """Return a row of nodes with branches, edges that skip some, nodes nobody reads, and short memory."""
    chance = random.Random(seed)
    edges = [
        (i, j)
        for i in range(count)
        for j in range(i + 1, count)
        if chance.random() < (0.8 if j == i + 1 else 0.25)
    ]
    nodes = tuple(
        Node(
            name=str(i),
            accelerator_seconds=(work := chance.choice((0, 0, 1, 4))),
            processor_seconds=chance.choice((0, 0.25, 1, 40)) + work,
            transfer_seconds=chance.choice((0.5, 1, 3)),
            memory_bytes=chance.choice((0, 1, 2, 4)),
            accelerated=chance.random() < 0.95,
        )
        for i in range(count)
    )
    memory = max(4.0, sum(node.memory_bytes for node in nodes) / chance.choice((1.5, 2.5, 4)))
    return Pipeline(
        nodes=nodes,
        edges=tuple(edges),
        accelerators=chance.randint(2, 6),
        processors=seed % 4 > 0,
        memory_bytes=memory,
    )


def assert_shortest(pipeline):
    """Check an answer, or that there is none, and the bound that needs no search."""
    best = shortest_chain(pipeline)
    if best == math.inf:
        with pytest.raises(UsageError, match="no way to share out"):
            best_in_turn(pipeline)
        return
    found = best_in_turn(pipeline)
    assert found.load == pytest.approx(best, rel=1e-12)
    assert found.gap == 0
    assert Cuts(pipeline, groups_of(pipeline)).floor <= best * (1 + 1e-9)


def test_the_chain_is_the_shortest():
    """Of rows with branches, skips and leaves in short memory: a bound that is too high would lose it."""
    for seed in (*range(10), 14, 27, 75, 113, 131, 155):
        assert_shortest(long_pipeline(seed, 7))


@pytest.mark.thorough
def test_longer_chains_are_the_shortest():
    """Eight and nine nodes."""
    for seed in (*range(12), 88, 121, 155):
        assert_shortest(long_pipeline(seed, 8))
    for seed in (*range(12), 98, 111, 124, 157):
        assert_shortest(long_pipeline(seed, 9))


def test_short_memory_makes_further_cuts():
    """A row of nine nodes, three of which fit: two cuts at least, and the search is not needed to know."""
    nodes = tuple(
        Node(name=str(i), accelerator_seconds=1, processor_seconds=100, transfer_seconds=1, memory_bytes=1)
        for i in range(9)
    )
    edges = tuple((i, i + 1) for i in range(8))
    row = Pipeline(nodes=nodes, edges=edges, accelerators=4, processors=1, memory_bytes=3)
    cuts = Cuts(row, groups_of(row))
    assert cuts.floor == 13  # 9 for the nodes, and a write and a read for each cut
    assert not cuts.list_to(13, 3)
    assert cuts.list_to(14, 100)
    assert cuts.within(13)[0] == [0, 0b111, 0b111111, 0b111111111]
    assert best_in_turn(row).load == 13


def test_what_fits_no_accelerator_counts_as_a_processor_takes_it():
    """The middle one of three nodes has more memory than an accelerator."""
    nodes = tuple(
        Node(
            name=str(i),
            accelerator_seconds=1,
            processor_seconds=10,
            transfer_seconds=1,
            memory_bytes=memory,
        )
        for i, memory in enumerate((1, 4, 1))
    )
    row = Pipeline(nodes=nodes, edges=((0, 1), (1, 2)), accelerators=2, processors=1, memory_bytes=3)
    assert Cuts(row, groups_of(row)).floor == 12
    assert best_in_turn(row).load == 14  # with a write before it and a read behind it


def test_the_bound_holds_with_few_ideals_listed(monkeypatch):
    """What is not listed counts as much as the last that is."""
    best = {seed: shortest_chain(long_pipeline(seed, 7)) for seed in range(12)}
    for most in (4, 8, 16):
        monkeypatch.setattr("kvstore_mpi.planner.placement.cuts.MOST_NEAR", most)
        for seed, seconds in best.items():
            pipeline = long_pipeline(seed, 7)
            assert Cuts(pipeline, groups_of(pipeline)).floor <= seconds * (1 + 1e-9)
