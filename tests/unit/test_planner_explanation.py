"""What a plan says of itself, in numbers that are computed by hand."""

from __future__ import annotations

import pytest
from support.placement_twins import graph_of, series_parallel

from kvstore_mpi.planner import Cluster, EpochsCurve, Link, ModelParallel, Net, NetLayer, plan
from kvstore_mpi.planner.cuts import PIPELINE, PLACEMENT, Handling, Parts
from kvstore_mpi.planner.predicted_step import Chain
from kvstore_mpi.planner.workers import divided

NET = Net("small", 10, 1000, (NetLayer("a", 2000, 0.1, 0.2), NetLayer("b", 6000, 0.2, 0.4)), 0.1)
"""A step of a second, and 8000 bytes."""

CLUSTER = Cluster(2, Link(1e4), 2, Link(4e4))
"""Two hosts sum all values in 0.8 s, two devices of a host in 0.2 s."""

TWO_WAYS = [ModelParallel(2, 1.6, "pipeline")]
BENDS = EpochsCurve.of({10: 4, 20: 5, 40: 12})
FLAT = EpochsCurve.of({10: 4, 40: 4})


def after(words, text):
    """Return what follows these words on their line."""
    [line] = [line for line in text.splitlines() if line.startswith(words)]
    return line.removeprefix(words)


def test_a_worker_of_two_devices_is_best():
    """1 s / 1.6 a step, 100 steps, 4 epochs; two workers take 1.05 s, 50 steps, 5 epochs.

    For two workers wait 0.05 s for the 2000 bytes of the first layer; those of both need 0.2 s, and the
    first layer takes 0.3 s meanwhile.
    """
    found = plan(NET, CLUSTER, BENDS, TWO_WAYS)
    one, two = found.options[:2]
    assert (one.step_s, one.steps, one.epochs, one.total_s) == (pytest.approx(0.625), 100, 4, 250)
    assert (two.step_s, two.steps, two.epochs) == (pytest.approx(1.05), 50, 5)
    text = found.explain()
    assert text.splitlines()[0] == "small: 1-way data x 2-way model (pipeline), 250 s = T x S x E"
    assert text.splitlines()[3].split()[-6:] == ["1050.00", "50.0", "5.00", "262.5", "4.8%", "1.050"]
    assert after("critical path: ", text) == "compute alone, 625.00 ms; nothing is sent"
    assert after("idle: ", text) == "20.0% of the devices' time"  # 1 - 1.6 / 2
    assert after("next best: ", text) == "2-way data x 1-way model, allreduce, 12.5 s more (5.0%)"
    assert after("why not data parallelism alone: ", text) == (
        "its best, 2-way data x 1-way model, allreduce, costs 5.0% more"
    )
    assert after("equation (6), 2 devices: ", text) == (  # 2 x (1 / 1.05) x (4 / 5)
        "SU^2 = 1.600 > 1.524 = 2 x 0.952 (SE) x 0.800 (E 4.00 / 5.00)"
    )


def test_plain_data_parallelism_is_best():
    """Four workers: 1.8 s a step, 25 steps, 4 epochs; a worker of two devices takes 250 s.

    8000 bytes cross between two hosts in 0.8 s, and 0.3 s of that are hidden at best, by the first layer.
    But 5.3 slices are under way by then, so that nothing is.
    """
    found = plan(NET, CLUSTER, FLAT, TWO_WAYS)
    assert (found.best.configuration.data, found.best.total_s) == (4, pytest.approx(180))
    text = found.explain()
    assert after("critical path: ", text) == (
        "backward to b, then 800.00 ms in which its forward pass waits for its values and those of all "
        "layers before it; the network link is busy for 800.00 ms of it"
    )
    assert after("idle: ", text) == "44.4% of the devices' time"  # 1 - 1 / 1.8
    # Servers' messages have a header, 8000 bytes 80 of these; and each of two slices takes 40 us.
    assert after("next best: ", text) == (
        "4-way data x 1-way model, servers, 2 clients, 1 servers, 0.808 s more (0.4%)"
    )
    assert after("plain data parallelism is best: ", text) == (  # 250 / 180
        "1-way data x 2-way model (pipeline) would cost 38.9% more"
    )


@pytest.mark.parametrize(("rate", "late"), [(1e4, " but for 100.00 ms: what is under way"), (1e9, "")])
def test_what_is_hidden_is_said_to_be(rate, late):
    """The first layer has no parameters and takes 0.3 s, while those of the next cross, or are late."""
    layers = (NetLayer("a", 0, 0.1, 0.2), NetLayer("b", 1000, 0.2, 0.4))
    found = plan(Net("small", 10, 1000, layers, 0.1), Cluster(2, Link(rate)), FLAT)
    text = after("critical path: ", found.explain())
    busy = 1e3 * 1000 / rate
    expected = (
        f"compute, 1000.00 ms; the network link is busy for {busy:.2f} ms of it, hidden behind it{late}"
    )
    assert text.startswith(expected)
    assert (text == expected) == (not late)


def net_of(parts):
    """Return a net that has these parts."""
    operations = parts.graph.operations
    forward, backward = (
        sum(getattr(each, name) for each in operations) for name in ("forward_seconds", "backward_seconds")
    )
    return Net("parts", 8, 800, (NetLayer("w", 4000, forward, backward),), parts=parts)


STEEP = EpochsCurve.of({8: 4, 16: 400})
"""Two data-parallel workers are never best."""

PAIR = graph_of(["ab"], a=2.0, b=2.0)
SLOW = Cluster(1, None, 2, Link(1e3))
"""What is sent between two parts takes a second."""


@pytest.mark.parametrize(("handling", "seconds", "between"), [(0.0, 20.0, 2.0), (0.5, 23.0, 5.0)])
def test_the_longest_chain_of_a_pipeline_is_named(handling, seconds, between):
    """Two micro-batches: rank 0, then all of rank 1, then rank 0; two messages of a second.

    Each end of a message takes half a second more, and so does that which rank 1 gives in between.
    """
    chain = divided(Parts(PAIR, PIPELINE, 2, Handling(0.0, handling)), SLOW, 2).chain
    assert chain.runs == (
        "forward stage0",
        "forward stage1, backward stage1, forward stage1, backward stage1",
        "backward stage0",
    )
    assert (chain.seconds, chain.between_s) == (pytest.approx(seconds), pytest.approx(between))


def test_the_longest_chain_goes_through_the_slower_tower():
    """0.1 + 1 there, and a tenth of a second for each of four messages; the other tower takes 0.5."""
    graph = graph_of(["al", "ar", "lt", "rt"], a=0.1, l=0.5, r=1.0, t=0.1)
    found = plan(net_of(Parts(graph, PLACEMENT)), Cluster(1, None, 2, Link(1e4)), STEEP)
    assert (found.best.configuration.ways, found.best.configuration.data) == (2, 1)
    assert after("its longest chain: ", found.explain()) == (
        "forward a, r, t, backward t, r, a: 3600.00 ms, 0.00 ms of them between ranks"
    )


@pytest.mark.parametrize(("seconds", "said"), [(0.0, "; another placement may take up to "), (10.0, "")])
def test_a_placement_that_is_not_proven_says_so(seconds, said):
    """Without any effort nothing is; with what is usual, all but the largest nets are."""
    if not said:
        pytest.importorskip("ortools", reason="the extra planner installs it")
    parts = Parts(series_parallel(3, joints=1, branches=5), PLACEMENT)
    cluster = Cluster(1, Link(1e6), 2, Link(1e6, 1e-3))
    [workers] = plan(net_of(parts), cluster, STEEP, seconds=seconds).workers
    assert workers == divided(parts, cluster, 2, seconds, alone_s=net_of(parts).step_s)
    assert (workers.gap > 0) == bool(said)
    text = after("each worker: ", plan(net_of(parts), cluster, STEEP, seconds=seconds).explain())
    assert text.startswith(str(workers.cut))
    gap = f"{said}{workers.gap:.1%} less" if said else ""
    assert text.removeprefix(str(workers.cut)) == gap


def test_micro_batches_in_a_row_are_counted():
    """The first rank is the slow one: it has begun with the second when the first comes back."""
    parts = Parts(graph_of(["ab"], a=4.0, b=1.0), PIPELINE, 2)
    chain = divided(parts, SLOW, 2).chain
    assert chain.runs == ("forward stage0", "forward stage1, backward stage1", "backward stage0 x 2")
    assert chain.seconds == pytest.approx(4 + 1 + 1 + 2 + 1 + 8 + 8)


def test_the_middle_of_a_long_chain_is_left_out():
    """Six ranks' worth of it are shown at either end."""
    assert str(Chain(tuple("abcdefghijkl"), 1.0, 0.0)).startswith("a -> b -> c -> d -> e -> f -> g -> h")
    assert str(Chain(tuple("abcdefghijklmn"), 1.5, 0.25)) == (
        "a -> b -> c -> d -> e -> f -> (2 more) -> i -> j -> k -> l -> m -> n: "
        "1500.00 ms, 250.00 ms of them between ranks"
    )
