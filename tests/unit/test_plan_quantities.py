"""Numbers of a plan that cannot be, or surely have another unit, are named and refused."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner import Cluster, EpochsCurve, Link, Net, NetLayer, plan, read_cluster
from kvstore_mpi.planner.cluster import uniform
from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.quantities import MOST_BYTES, MOST_SECONDS

NET = Net("small", 8, 800, (NetLayer("w", 4000, 4.0, 8.0),), 3.0)
CURVE = EpochsCurve.of({8: 4, 64: 4})

TWO = "hosts = 2\n[network]\nbytes_per_s = 1e8\n"
CARD = "flops_per_s = 1e12\nbytes_per_s = 1e11\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            f"{TWO}[device]\nflops_per_s = {value}\nbytes_per_s = 1e11",
            rf"\[device\]: flops_per_s is {value}",
        )
        for value in ("0", "1e-300", "-1", "nan", "inf")
    ]
    + [
        (f"{TWO}[device]\nflops_per_s = 1e12\nbytes_per_s = 0", r"\[device\]: bytes_per_s is 0"),
        (f"{TWO}[device]\n{CARD}launch_s = -1", r"\[device\]: launch_s is -1"),
        (f"{TWO}[device]\n{CARD}item_bytes = 0", r"\[device\]: item_bytes is 0"),
        (f"{TWO}[rows_servers]\nstep_s = nan", r"\[rows_servers\]: step_s is nan"),
        (f"{TWO}[rows_allreduce]\nstep_s = inf", r"\[rows_allreduce\]: step_s is inf"),
        (f"{TWO}latency_s = 1e10", r"\[network\]: latency_s is 1e\+10; it must be 0 to 1e\+09 seconds"),
        (f"{TWO}message_s = nan", r"\[network\]: message_s is nan"),
        ("hosts = 2\n[network]\nbytes_per_s = 1e-300", r"\[network\]: bytes_per_s is 1e-300"),
        (f"slice_s = nan\n{TWO}", "slice_s is nan"),
        (f'{TWO}[[devices]]\nname = "card"\nspeed = 1e-300', "device 'card': speed is 1e-300"),
        (f'{TWO}[[devices]]\nname = "card"\nspeed = 1e300', r"device 'card': speed is 1e\+300"),
    ],
)
def test_what_a_cluster_cannot_have_is_named(text, what):
    """By its table and field, before anything is made of it."""
    with pytest.raises(UsageError, match=f"^cluster.toml describes no cluster: {what}"):
        read_cluster(text, "cluster.toml")


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (NetLayer("w", 4000, 1e308, 1e308), r"layer 'w': forward_s is 1e\+308"),
        (NetLayer("w", 4000, 1.0, float("nan")), "layer 'w': backward_s is nan"),
        (NetLayer("w", 10**30, 1.0, 1.0), "layer 'w': num_bytes is 1000000"),
        (NetLayer("w", -1, 1.0, 1.0), "layer 'w': num_bytes is -1"),
        (NetLayer("w", 4000, 1.0, 1.0, 5, 1.5), "layer 'w' needs .* shares of rows between 0 and 1"),
        (NetLayer("w", 4000, 1.0, 1.0, 5, 0.1, -0.1), "layer 'w' needs .* shares of rows between 0 and 1"),
        (NetLayer("w", 4000, 1.0, 1.0, 5, 0.5, 0.25), "touched_by_all is 0.25, and one .* touches 0.5"),
        (NetLayer("w", 4000, 1e-320, 0.0), "a step that takes time"),
    ],
)
def test_what_a_layer_cannot_have_is_named(layer, what):
    """By the net's name and its own."""
    net = msgspec.structs.replace(NET, layers=(layer,), other_s=0.0)
    with pytest.raises(UsageError, match=f"^net 'small': .*{what}"):
        plan(net, Cluster(2, Link(1e8)), CURVE)


def chain_of(operations, num_bytes=0):
    """Return operations that read each other."""
    names = [each.name for each in operations]
    edges = (Edge(source=one, target=other, num_bytes=num_bytes) for one, other in pairwise(names))
    return Graph(operations=tuple(operations), edges=tuple(edges))


@pytest.mark.parametrize(
    ("operation", "num_bytes", "what"),
    [
        ({"forward_seconds": 1e300}, 0, r"operation 'a0': forward_seconds is 1e\+300"),
        ({"parameter_bytes": 10**20}, 0, "operation 'a0': parameter_bytes is 1000000"),
        ({"forward_seconds": 1.0}, 10**20, "the edge a0 -> a1: num_bytes is 1000000"),
        ({"forward_seconds": MOST_SECONDS}, 0, r"the net may take 1e\+10 seconds"),
        ({"forward_seconds": 1.0}, MOST_BYTES, r"the net may take 9e\+15 seconds"),
    ],
)
def test_what_no_solver_counts_is_refused(operation, num_bytes, what):
    """Of one thing, and of all together."""
    graph = chain_of([Operation(name=f"a{i}", **operation) for i in range(10)], num_bytes)
    with pytest.raises(UsageError, match=what):
        place(graph, uniform(2, 1.0))


def test_memory_that_no_solver_counts_is_refused():
    """Each operation's could be, and that of all is more than 64 bits say."""
    graph = chain_of([Operation(name=f"a{i}", parameter_bytes=MOST_BYTES) for i in range(4700)])
    with pytest.raises(UsageError, match=r"the net needs 4.7e\+18 bytes"):
        place(graph, uniform(2, 1e9, memory_bytes=10**19))
