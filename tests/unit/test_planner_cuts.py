"""Workers of several ranks in a plan: how a net is divided, and what a plan refuses to divide."""

from __future__ import annotations

import math

import msgspec
import pytest
from support.placement_twins import graph_of

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.planner import (
    Cluster,
    EpochsCurve,
    Link,
    ModelParallel,
    Net,
    NetLayer,
    plan,
    read_net,
    read_plan,
)
from kvstore_mpi.planner.cluster import Device
from kvstore_mpi.planner.cuts import (
    PIPELINE,
    PLACEMENT,
    Cut,
    Handling,
    Parts,
    read_cut,
    read_parts,
    write_parts,
)
from kvstore_mpi.planner.net import write_net
from kvstore_mpi.planner.pipelines.segments import Segment, SegmentGraph
from kvstore_mpi.planner.plan_file import job_of, write_plan
from kvstore_mpi.planner.predicted_step import predicted_step
from kvstore_mpi.planner.workers import divided

BENDS = EpochsCurve.of({8: 4, 16: 4, 32: 40})
TWO_HOSTS = Cluster(2, Link(1e12), 2, Link(1e12))


CHAIN = graph_of(["ab", "bc", "cd"], a=1.0, b=1.0, c=1.0, d=1.0)
TOWERS = graph_of(["al", "ar", "lt", "rt"], a=0.1, l=2.0, r=2.0, t=0.1)


def net_of(graph, kind, micro_batches=1, *, share=1.0, other_s=0.0):
    """Return a net with these parts; the whole takes this share of what they do, and ``other_s``."""
    forward = share * micro_batches * sum(each.forward_seconds for each in graph.operations)
    layer = NetLayer("w", 4000, forward, 2 * forward)
    return Net("small", 8, 800, (layer,), other_s, Parts(graph, kind, micro_batches))


def test_a_pipeline_is_cut_where_stages_are_equal():
    """Four micro-batches in two stages take five of their turns: 4 x 12 s in 5 x 6 s."""
    found = divided(Parts(CHAIN, PIPELINE, 4), TWO_HOSTS, 2)
    assert found.cut.forward == (("a", "b"), ("c", "d"))
    assert found.speedup == pytest.approx(48 / 30)
    quick = msgspec.structs.replace(TWO_HOSTS, devices=(Device("one"), Device("two", speed=2.0)))
    assert divided(Parts(CHAIN, PIPELINE, 1), quick, 2).speedup == pytest.approx(6 / 7.5)
    slow = msgspec.structs.replace(TWO_HOSTS, host=Link(1e3))
    assert divided(Parts(CHAIN, PIPELINE, 1), slow, 2).speedup == pytest.approx(12 / 14)


def test_towers_are_placed_and_timed_in_their_order():
    """Each on a device; with two micro-batches the other one hides some of what is not in a tower."""
    found = divided(Parts(TOWERS, PLACEMENT), TWO_HOSTS, 2)
    ranks = found.cut.rank_of
    assert ranks["l"] != ranks["r"]
    assert found.speedup == pytest.approx(12.6 / 6.6)
    assert found.speedup < divided(Parts(TOWERS, PLACEMENT, 2), TWO_HOSTS, 2).speedup < 2
    backward = [names for names in found.cut.backward if "t" in names]
    assert backward[0][0] == "t"


def boxes_of(parts, cluster, ways):
    """Return what the trace of a predicted step shows: place, name, begin and end in seconds."""
    events = predicted_step(parts, divided(parts, cluster, ways).cut, cluster.of_one_worker(ways)).trace()[
        "traceEvents"
    ]
    places = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return {
        (places[e["tid"]], e["name"]): (e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6)
        for e in events
        if e["ph"] == "X"
    }


def test_the_step_of_a_plan_can_be_seen():
    """Two stages, two micro-batches, and a link that takes a second for what is between them."""
    one, two = (device.name for device in TWO_HOSTS.of_one_worker(2).all_devices)
    slow = msgspec.structs.replace(TWO_HOSTS, host=Link(1e3))
    shown = boxes_of(Parts(CHAIN, PIPELINE, 2), slow, 2)
    assert shown == {
        (one, "forward stage0 0"): (0, 2),
        (f"{one} -> {two}", "output 0 of stage0"): (2, 3),
        (two, "forward stage1 0"): (3, 5),
        (one, "forward stage0 1"): (2, 4),
        (f"{one} -> {two}", "output 1 of stage0"): (4, 5),
        (two, "backward stage1 0"): (5, 9),
        (f"{two} -> {one}", "gradient 0 of stage0's output"): (9, 10),
        (one, "backward stage0 0"): (10, 14),
        (two, "forward stage1 1"): (9, 11),
        (two, "backward stage1 1"): (11, 15),
        (f"{two} -> {one}", "gradient 1 of stage0's output"): (15, 16),
        (one, "backward stage0 1"): (16, 20),
    }
    placed = boxes_of(Parts(TOWERS, PLACEMENT), TWO_HOSTS, 2)
    assert max(end for _, end in placed.values()) == pytest.approx(6.6)
    assert {name for place, name in placed if place in (one, two)} == {
        f"{kind} {name} 0" for kind in ("forward", "backward") for name in "alrt"
    }


def test_a_rank_that_gives_or_takes_a_message_computes_nothing_meanwhile():
    """Half a second at each end, besides the second on the link: the LogP model's o and L."""
    one, two = (device.name for device in TWO_HOSTS.of_one_worker(2).all_devices)
    slow = msgspec.structs.replace(TWO_HOSTS, host=Link(1e3))
    shown = boxes_of(Parts(CHAIN, PIPELINE, 2, Handling(0.25 / 1e3, 0.25)), slow, 2)
    assert shown == {
        (one, "forward stage0 0"): (0, 2),
        (f"{one} -> {two}", "output 0 of stage0"): (2, 4),
        (one, "forward stage0 1"): (2.5, 4.5),
        (two, "forward stage1 0"): (4, 6),
        (f"{one} -> {two}", "output 1 of stage0"): (4.5, 6.5),
        (two, "backward stage1 0"): (6, 10),
        (f"{two} -> {one}", "gradient 0 of stage0's output"): (10, 12),
        (two, "forward stage1 1"): (11, 13),
        (one, "backward stage0 0"): (12, 16),
        (two, "backward stage1 1"): (13, 17),
        (f"{two} -> {one}", "gradient 1 of stage0's output"): (17, 19),
        (one, "backward stage0 1"): (19, 23),
    }


def test_a_plan_has_the_cut_of_the_best_workers():
    """Where the curve bends, workers of two ranks; the plan says the cut, and sets the job."""
    net = net_of(CHAIN, PIPELINE, 4)
    assert read_net(write_net(net)) == net
    found = read_plan(write_plan(plan(net, TWO_HOSTS, BENDS)), net=net, cluster=TWO_HOSTS)
    assert (found.best.configuration.data, found.best.configuration.ways) == (2, 2)
    assert found.cut is not None
    assert read_cut(found.cut.to_json()) == found.cut
    assert job_of(found)["model_parallel"] == 2
    assert "each worker: rank 0 has a, b; rank 1 has c, d" in found.explain()
    flat = plan(net, TWO_HOSTS, EpochsCurve.of({8: 4, 32: 4}))
    assert (flat.best.configuration.ways, flat.cut) == (1, None)


@pytest.mark.parametrize("share", [0.6, 1.0, 1.2])
def test_a_step_is_as_long_as_its_longest_chain(share):
    """Whatever the whole takes beside its parts: with a micro-batch a device is less busy than with all."""
    net = net_of(CHAIN, PIPELINE, 4, share=share, other_s=3.0)
    found = plan(net, Cluster(1, None, 2, Link(1e9)), BENDS)
    (workers,) = found.workers
    step_s = {
        each.configuration.ways: each.step_s for each in found.options if each.configuration.data == 1
    }
    assert step_s[2] == pytest.approx(workers.chain.seconds + 3) == pytest.approx(30 + 3)
    assert step_s[1] == pytest.approx(workers.speedup * step_s[2]) == pytest.approx(48 * share + 3)


def test_only_workers_of_a_number_of_devices():
    """Whether they are the best or not; those that cannot be are told with their reason."""
    net = net_of(CHAIN, PIPELINE, 4, share=0.1)
    any_ways = plan(net, Cluster(1, None, 2, Link(1e9)), BENDS)
    found = plan(net, Cluster(1, None, 2, Link(1e9)), BENDS, ways=2)
    assert any_ways.best.configuration.ways == 1
    assert {each.configuration.ways for each in found.options} == {2}
    assert found.cut is not None
    assert "each worker: rank 0 has" in found.explain()
    with pytest.raises(UsageError, match=r"no workers of 3 devices: .* there are 2"):
        plan(net, Cluster(1, None, 2, Link(1e9)), BENDS, ways=3)


def test_two_devices_are_at_most_twice_as_fast():
    """Where the whole was measured on a busier machine than its parts, too; no idle time is negative."""
    net = net_of(CHAIN, PIPELINE, 4, share=5.0, other_s=3.0)
    found = plan(net, Cluster(1, None, 2, Link(1e9)), BENDS)
    (workers,) = found.workers
    assert workers.speedup == pytest.approx((240 + 3) / (120 + 3))
    assert min(each.idle for each in found.options) >= 0


def test_a_speed_up_that_devices_cannot_have_is_refused():
    """It would be ranked first, with idle time below zero; what rounding has left above M is none."""
    net, two = net_of(CHAIN, PIPELINE, 4), Cluster(1, None, 2, Link(1e9))
    with pytest.raises(UsageError, match="2-way 'pipeline' with speed-up 3: 2 devices are at most 2 times"):
        plan(net, two, BENDS, [ModelParallel(2, 3.0, PIPELINE)])
    for speedup in (2.0, 2.0 * (1 + 1e-15)):
        found = plan(net, two, BENDS, [ModelParallel(2, speedup, PIPELINE)])
        assert f"{min(each.idle for each in found.options):.1%}".lstrip("-") == "0.0%"


def test_workers_that_need_more_devices_than_there_are_are_told():
    """Beside those that are ranked, and where nobody asked for others."""
    net, two = net_of(CHAIN, PIPELINE, 4), Cluster(1, None, 2, Link(1e9))
    known = [ModelParallel(2, 1.5), ModelParallel(3, 1.5)]
    said = "3-way model (placement): it needs 3 devices, and 2 may be used"
    assert f"not ranked: {said}" in plan(net, two, BENDS, known).explain().splitlines()
    with pytest.raises(UsageError) as caught:
        plan(net, two, BENDS, known, ways=3)
    assert str(caught.value) == f"there are no workers of 3 devices: {said}"


def test_what_the_user_knows_of_workers_comes_before_what_is_computed():
    """A measured speed-up has no cut."""
    found = plan(net_of(CHAIN, PIPELINE, 4), TWO_HOSTS, BENDS, [ModelParallel(2, 1.9, PIPELINE)])
    assert [each.speedup for each in found.workers if each.ways == 2] == [1.9]
    assert found.cut is None


@pytest.mark.parametrize(
    ("graph", "kind", "cluster", "why"),
    [
        (CHAIN, PLACEMENT, TWO_HOSTS, "leaves 1 of 2 devices idle"),
        (
            msgspec.structs.replace(
                CHAIN,
                operations=tuple(msgspec.structs.replace(each, weights="w") for each in CHAIN.operations),
            ),
            PIPELINE,
            TWO_HOSTS,
            "share a weight stay together",
        ),
        (
            msgspec.structs.replace(
                CHAIN,
                operations=tuple(
                    msgspec.structs.replace(each, parameter_bytes=9) for each in CHAIN.operations
                ),
            ),
            PIPELINE,
            msgspec.structs.replace(TWO_HOSTS, devices=(Device("a", memory_bytes=8), Device("b"))),
            "fits into their devices (8 bytes, any): the layer a alone needs at least 9",
        ),
        (CHAIN, PIPELINE, Cluster(2, Link(1e9), 3), None),
    ],
)
def test_workers_that_cannot_be_are_left_out(graph, kind, cluster, why):
    """With the reason; the plan goes on without them."""
    found = plan(net_of(graph, kind), cluster, BENDS)
    reasons = {each.configuration: each.why for each in found.left_out}
    if why is None:
        assert reasons[f"4-way model ({kind})"] == "its workers do not fit on the hosts"
    else:
        assert why in reasons[f"2-way model ({kind})"]
        assert found.best.configuration.ways == 1


def test_more_stages_than_layers_are_refused():
    """By name of the numbers."""
    with pytest.raises(UsageError, match="8 stages cannot be made of 4 layers"):
        divided(Parts(CHAIN, PIPELINE), Cluster(1, None, 8, Link(1e9)), 8)


CUT = Cut(PIPELINE, CHAIN.structure, (("a", "b"), ("c", "d")), (("b", "a"), ("d", "c")))


def test_a_cut_is_for_one_net_one_trainer_and_one_number_of_ranks():
    """Times and sizes are no part of what a net is; names, weights and edges are."""
    again = msgspec.structs.replace(
        CHAIN,
        operations=tuple(msgspec.structs.replace(each, backward_seconds=0.5) for each in CHAIN.operations),
    )
    CUT.require(PIPELINE, again.structure, 2)
    other = msgspec.structs.replace(CHAIN, edges=CHAIN.edges[1:])
    for kind, graph, ranks, what in (
        (PLACEMENT, CHAIN, 2, "a pipeline, which is for a PipelineTrainer and not for a PartTrainer"),
        (PIPELINE, other, 2, f"for another net .{CHAIN.structure}; this one is {other.structure}"),
        (PIPELINE, CHAIN, 4, "for workers of 2 ranks, and these have 4"),
    ):
        with pytest.raises(UsageError, match=what):
            CUT.require(kind, graph.structure, ranks)


def test_stages_are_found_by_name():
    """And are runs of layers."""
    assert CUT.bounds(["a", "b", "c", "d"]) == (2,)
    with pytest.raises(UsageError, match="no consecutive layers"):
        CUT.bounds(["a", "c", "b", "d"])
    assert (
        str(Cut(PIPELINE, "", (tuple("abcdef"), ("g",)), ((), ()))) == "rank 0 has a to f (6); rank 1 has g"
    )


def test_the_order_of_a_cut_is_a_schedule():
    """Forward of all micro-batches and then backward of all, each in the order of the plan."""
    graph = SegmentGraph([Segment("a", 0), Segment("b", 1, ("a",)), Segment("c", 0, ("a", "b"))], 2)
    cut = Cut(PLACEMENT, "", (("a", "c"), ("b",)), (("c", "a"), ("b",)))
    ranks = cut.schedule(graph, 2)
    assert [str(action) for action in ranks[0]] == [
        *("F0 of segment 0", "F0 of segment 2", "F1 of segment 0", "F1 of segment 2"),
        *("B0 of segment 2", "B0 of segment 0", "B1 of segment 2", "B1 of segment 0"),
    ]
    assert [action.segment for action in ranks[1]] == [1] * 4


def test_texts_that_are_no_cut_and_no_parts_are_refused():
    """What was written is read again."""
    parts = Parts(TOWERS, PLACEMENT, 2)
    assert read_parts(write_parts(parts)) == parts
    with pytest.raises(ConfigurationError, match="no cut of a net"):
        read_cut("[]")
    with pytest.raises(ConfigurationError, match="no parts of a net"):
        read_parts(b"[]")


def graph_with(**changes):
    """Return the chain, with another ``b``."""
    operations = {each.name: each for each in CHAIN.operations}
    operations["b"] = msgspec.structs.replace(operations["b"], **changes)
    return msgspec.structs.replace(CHAIN, operations=tuple(operations.values()))


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (Parts(CHAIN, "foo"), "kind is 'foo'; it must be one of placement, pipeline"),
        (Parts(CHAIN, PIPELINE, 0), "micro_batches is 0"),
        (Parts(CHAIN, PIPELINE, 1, Handling(-1.0)), "handling: byte_s is -1"),
        (Parts(CHAIN, PIPELINE, 1, Handling(0.0, float("nan"))), "handling: message_s is nan"),
        (Parts(graph_with(forward_seconds=-1.0), PIPELINE), "operation 'b': forward_seconds is -1"),
        (Parts(graph_with(name="a"), PIPELINE), "two operations of the graph have the name 'a'"),
        (Parts(msgspec.structs.replace(CHAIN, edges=CHAIN.edges[1:]), PIPELINE), "look at a -> b"),
        (Parts(TOWERS, PIPELINE), "layers of a pipeline follow each other, .*: look at a -> r"),
        (Parts(msgspec.structs.replace(CHAIN, operations=(), edges=()), PLACEMENT), "at least one part"),
    ],
)
def test_parts_of_which_no_net_is_made_are_refused(parts, what):
    """In a profile, which somebody may have written, and in what a script has told."""
    net = msgspec.structs.replace(net_of(CHAIN, PIPELINE), parts=parts)
    with pytest.raises(UsageError, match=f"^net 'small': parts: .*{what}"):
        plan(net, TWO_HOSTS, BENDS)
    if not math.isnan(parts.handling.message_s):  # which JSON cannot say
        with pytest.raises(UsageError, match=f"^profile.json: parts: .*{what}"):
            read_net(write_net(net), "profile.json")
        with pytest.raises(UsageError, match=what):
            read_parts(write_parts(parts))
