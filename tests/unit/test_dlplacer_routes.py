"""Where two ways lead from device to device, each result takes the one that is faster for its size."""

from __future__ import annotations

import itertools
import random

import pytest
from support.placement_twins import MILLI, shortest

from kvstore_mpi.planner.cluster import Cluster, Device, Link
from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.placement.problem import NANO, Wishes, problem_of
from kvstore_mpi.planner.placement.simulate import simulate


def cluster_of(links, devices="ab"):
    """Return these devices, and routers for all else that links name."""
    names = sorted({name for link in links for name in (link.source, link.target)} - {*devices})
    return Cluster(devices=tuple(map(Device, devices)), routers=tuple(names), links=tuple(links)).checked()


def both(pair, rate, latency_s=0.0):
    """Return a link each way."""
    return [Link(rate, latency_s, source=one, target=other) for one, other in (pair, pair[::-1])]


QUICK = [*both("aq", 1e6), *both("qb", 1e6)]
WIDE = [*both("aw", 1e8, 1e-3), *both("wb", 1e8)]
QUICK_AND_WIDE = cluster_of([*QUICK, *WIDE])
"""By q 2 ms for each 1000 bytes; by w 1 ms and 0.02 ms for each 1000: as long for 505 bytes."""


def seconds_of_ways(cluster, source, target, num_bytes):
    """Return what each way takes: every order of every set of routers whose links there are."""
    links = {(link.source, link.target): link for link in cluster.all_links}
    found = []
    for number in range(len(cluster.all_routers) + 1):
        for between in itertools.permutations(cluster.all_routers, number):
            hops = list(itertools.pairwise((source, *between, target)))
            if all(hop in links for hop in hops):
                found.append(sum(num_bytes / links[hop].bytes_per_s + links[hop].latency_s for hop in hops))
    return found


@pytest.mark.parametrize(("num_bytes", "router"), [(1, "q"), (504, "q"), (506, "w"), (10**9, "w")])
def test_small_results_take_the_quick_way_and_large_ones_the_wide_one(num_bytes, router):
    """Either end may send."""
    for source, target in ("ab", "ba"):
        way = QUICK_AND_WIDE.route(source, target, num_bytes)
        assert [link.target for link in way] == [router, target]


@pytest.mark.parametrize("seed", range(20))
def test_no_way_is_faster_than_the_route(seed):
    """Among all ways over four routers with random links, for sizes over seven decades."""
    chance = random.Random(seed)
    links = [
        Link(10 ** chance.uniform(5, 9), 10 ** chance.uniform(-7, -3), source=one, target=other)
        for one, other in itertools.permutations("abpqrs", 2)
        if f"{one}{other}" in {"ap", "pb", "ba"} or chance.random() < 0.5
    ]
    cluster = cluster_of(links)
    for num_bytes in (1, 100, 10**4, 10**5, 10**7):
        way = cluster.route("a", "b", num_bytes)
        assert [link.source for link in way][1:] == [link.target for link in way][:-1]
        taken = sum(link.seconds(num_bytes) for link in way)
        assert taken == pytest.approx(min(seconds_of_ways(cluster, "a", "b", num_bytes)), rel=1e-12)


def test_devices_forward_nothing():
    """The way over the third device would be faster by a thousand."""
    links = [*both("ac", 1e9), *both("cb", 1e9), *QUICK]
    for num_bytes in (1, 10**6):
        way = cluster_of(links, "abc").route("a", "b", num_bytes)
        assert [link.target for link in way] == ["q", "b"]


def test_of_ways_that_take_equally_long_the_first_is_taken():
    """Two routers that are alike: the order of the links decides."""
    names = ("ap", "aq", "pb", "qb", "br", "ra")
    cluster = cluster_of([Link(1e6, source=one, target=other) for one, other in names])
    assert [link.target for link in cluster.route("a", "b", 100)] == ["p", "b"]


def test_a_placement_has_a_route_for_each_result():
    """One of 100 bytes and one of 100,000, from the same device to the same other."""
    graph = Graph(
        operations=tuple(
            Operation(name=name, forward_seconds=MILLI) for name in ("from", "small", "large")
        ),
        edges=(
            Edge(source="from", target="small", num_bytes=100),
            Edge(source="from", target="large", num_bytes=100_000),
        ),
    )
    wishes = Wishes(pinned={"from": "a", "small": "b", "large": "b"})
    found = place(graph, QUICK_AND_WIDE, wishes)
    assert {route.target: route.nodes for route in found.routes} == {
        "small": ("a", "q", "b"),
        "large": ("a", "w", "b"),
    }
    since = {run.task.operation: run.since for run in simulate(graph, QUICK_AND_WIDE, found).runs}
    assert since == {"from": 0, "small": 1_200_000, "large": 4_000_000}
    assert found.predicted_seconds == pytest.approx(5 * MILLI)
    assert round(found.predicted_seconds * NANO) == shortest(problem_of(graph, QUICK_AND_WIDE, wishes))
