"""Stages of pipelines: as good as trying everything, checked by the definition; published forms."""

from __future__ import annotations

import json
import math

import pytest
from support.placement_twins import best_load, least_sum, random_pipeline

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.placement.formats import from_dnn_partitioning, from_pipedream
from kvstore_mpi.planner.placement.in_turn import best_in_turn
from kvstore_mpi.planner.placement.max_load import best_stages
from kvstore_mpi.planner.placement.stages import (
    ACCELERATOR,
    PROCESSOR,
    Node,
    Pipeline,
    Stage,
    check_stages,
    load_of,
)


def assert_best(pipeline, *, in_turn=False):
    """Check an answer, or that there is none, against trying everything."""
    best = least_sum(pipeline) if in_turn else best_load(pipeline)
    find = best_in_turn if in_turn else best_stages
    if best == math.inf:
        with pytest.raises(UsageError, match="no way to share out"):
            find(pipeline)
        return
    found = find(pipeline)
    assert found.load == pytest.approx(best)
    assert found.load == check_stages(pipeline, found.stages, in_turn=in_turn)
    assert found.gap == 0


def test_random_pipelines_are_cut_as_well_as_can_be():
    """With nodes that take no time, colors, backward passes, short memory, and a processor."""
    for seed in (
        *range(24),
        392,
        583,
    ):  # in the last two, joining a neighbour too soon would cost transfers
        assert_best(random_pipeline(seed))


@pytest.mark.slow
@pytest.mark.thorough
def test_larger_random_pipelines_are_cut_as_well_as_can_be():
    """Up to seven nodes."""
    for seed in range(60):
        assert_best(random_pipeline(seed, 6))
    for seed in range(4):
        assert_best(random_pipeline(seed, 7))


def test_a_single_sample_waits_as_little_as_can_be():
    """Devices take turns; the same random pipelines against trying everything."""
    for seed in (*range(24), 392, 583):
        assert_best(random_pipeline(seed), in_turn=True)


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("edges", [(), ((0, 1), (1, 2))])
def test_a_pipeline_that_takes_no_time_is_cut(edges, in_turn):
    """Whether it would have something to send or not; memory may still ask for two devices."""
    for memory in (1, 2, 3):
        nodes = tuple(Node(name=name, transfer_seconds=name == "c", memory_bytes=1) for name in "abc")
        row = Pipeline(nodes=nodes, edges=edges, accelerators=2, memory_bytes=memory)
        assert_best(row, in_turn=in_turn)


def test_a_processor_takes_several_turns_and_an_accelerator_one():
    """Of five nodes in a row the second and the fourth are slow on a processor; one accelerator has one."""
    slow = {1: 8.0, 3: 9.0}
    nodes = tuple(
        Node(name=str(i), accelerator_seconds=1, processor_seconds=slow.get(i, 1), memory_bytes=1)
        for i in range(5)
    )
    row = Pipeline(
        nodes=nodes, edges=tuple((i, i + 1) for i in range(4)), accelerators=1, processors=1, memory_bytes=1
    )
    found = best_in_turn(row)
    assert found.stages == (Stage(PROCESSOR, (0, 1, 2)), Stage(ACCELERATOR, (3,)), Stage(PROCESSOR, (4,)))
    assert found.load == 12
    with pytest.raises(UsageError, match="2 stages are for processors, of which there are 1"):
        check_stages(row, found.stages)
    twice = (Stage(ACCELERATOR, (0,)), Stage(PROCESSOR, (1, 2, 3)), Stage(ACCELERATOR, (4,)))
    with pytest.raises(UsageError, match="2 stages are for accelerators, of which there are 1"):
        check_stages(row, twice, in_turn=True)


def test_of_a_single_sample_a_gap_is_stated_too():
    """The answer follows one order of twelve nodes that nothing orders; no transfers, so it is the best."""
    nodes = tuple(Node(name=str(i), accelerator_seconds=1, memory_bytes=1 + i % 3) for i in range(12))
    pipeline = Pipeline(nodes=nodes, edges=(), accelerators=8, memory_bytes=4)
    cut_short = best_in_turn(pipeline, most_ideals=100)
    assert (cut_short.load, cut_short.bound, cut_short.gap) == (12, 12, 0)
    crossing = tuple(
        Node(name=n.name, accelerator_seconds=1, memory_bytes=1, transfer_seconds=1) for n in nodes
    )
    chain = Pipeline(nodes=crossing, edges=((0, 1),), accelerators=12, memory_bytes=1)
    cut_short = best_in_turn(chain, most_ideals=100)
    assert (cut_short.load, cut_short.bound) == (14, 12)
    assert cut_short.gap == pytest.approx(1 / 7)
    barred = tuple(Node(name=str(i), processor_seconds=3, accelerated=i > 0) for i in range(12))
    on_processor = Pipeline(nodes=barred, edges=(), accelerators=1, processors=1)
    assert best_in_turn(on_processor, most_ideals=100).bound == 3  # of the one that no accelerator takes


def test_a_result_is_paid_for_once_by_each_accelerator_that_it_leaves_or_enters():
    """However many read it there."""
    nodes = tuple(Node(name=name, accelerator_seconds=1, transfer_seconds=0.25) for name in "abc")
    pipeline = Pipeline(nodes=nodes, edges=((0, 1), (0, 2)), accelerators=2)
    assert load_of(pipeline, Stage(ACCELERATOR, (0,))) == 1.25
    assert load_of(pipeline, Stage(ACCELERATOR, (1, 2))) == 2.25


def test_with_too_many_ideals_a_gap_is_stated():
    """Twelve nodes that nothing orders have 4096 ideals; the answer follows one order of them."""
    nodes = tuple(Node(name=str(i), accelerator_seconds=1 + i % 3) for i in range(12))
    pipeline = Pipeline(nodes=nodes, edges=(), accelerators=3)
    assert best_stages(pipeline).load == 8
    cut_short = best_stages(pipeline, most_ideals=100)
    assert cut_short.bound == pytest.approx(8)
    assert cut_short.load >= 8
    assert cut_short.gap == pytest.approx(1 - 8 / cut_short.load)


def test_an_answer_that_breaks_a_rule_is_refused():
    """The error says which."""
    nodes = tuple(Node(name=name, memory_bytes=2, color=i % 2) for i, name in enumerate("abc"))
    pipeline = Pipeline(nodes=nodes, edges=((0, 1),), accelerators=2, memory_bytes=5)
    for stages, message in (
        ([(0, 1)], "'c' is in no stage"),
        ([(0, 2), (1, 2)], "'c' is in two stages"),
        ([(0, 1, 2)], "needs 6.0 bytes, an accelerator has 5"),
        ([(0,), (1, 2)], "color 0 is on two devices"),
        ([(1,), (0, 2)], "'b' reads 'a', which is in a later stage"),
        ([(0, 2), (1,), ()], "3 stages are for accelerators, of which there are 2"),
    ):
        with pytest.raises(UsageError, match=message):
            check_stages(pipeline, tuple(Stage(ACCELERATOR, nodes) for nodes in stages))


def test_an_instance_of_dnn_partitioning_is_read():
    """With its own unit of time."""
    node = {"fpgaLatency": 2.0, "cpuLatency": 9, "size": 4.0, "supportedOnFpga": 1, "isBackwardNode": 0}
    text = json.dumps(
        {
            "maxFPGAs": 1,
            "maxCPUs": 1,
            "maxSizePerFPGA": 8,
            "nodes": [{"id": 7, "name": "x", **node}, {"id": 3, **node, "colorClass": 5}],
            "edges": [{"sourceId": 7, "destId": 3, "cost": 0.5}],
        }
    )
    pipeline = from_dnn_partitioning(text)
    assert pipeline.edges == ((0, 1),)
    assert [node.transfer_seconds for node in pipeline.nodes] == [0.5, 0]
    assert best_stages(pipeline).load == 4
    with pytest.raises(UsageError, match="no instance of dnn-partitioning"):
        from_dnn_partitioning("{}")
    with pytest.raises(UsageError, match="names 4, which is no node"):
        from_dnn_partitioning(text.replace('"destId": 3', '"destId": 4'))


def test_a_profile_of_pipedream_is_read():
    """Milliseconds and bytes; what a node gives travels to each that reads it."""
    times = "forward_compute_time=1.5, backward_compute_time=2.000"
    graph = from_pipedream(
        f"node1 -- Conv2d(3, 4, kernel_size=(3, 3)) -- {times}, activation_size=10.0, parameter_size=8\n"
        f"node2 -- ReLU -- {times}, activation_size=4.0, parameter_size=0.000\n"
        "\tnode1 -- node2"
    )
    first, second = graph.operations
    assert (first.forward_seconds, first.backward_seconds, first.memory_bytes) == (1.5e-3, 2e-3, 18)
    assert (graph.edges[0].target, graph.edges[0].num_bytes) == (second.name, 10)
    with pytest.raises(UsageError, match="line 1 of the profile"):
        from_pipedream("no node")
