"""Stages against all cuts, and what every schedule must keep."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cluster import Device, Link
from kvstore_mpi.planner.pipelines.schedules import (
    Action,
    check,
    fill_drain,
    most_held,
    needs,
    one_f_one_b,
)
from kvstore_mpi.planner.pipelines.segments import Segment, SegmentGraph, chain
from kvstore_mpi.planner.pipelines.stages import Layer, cut_at, partition
from kvstore_mpi.planner.pipelines.timetable import Times, simulate

small = st.integers(0, 9)


@st.composite
def chains(draw):
    """Up to eight layers, of which some may share a weight."""
    count = draw(st.integers(1, 8))
    layers = []
    for index in range(count):
        shared = ("shared",) if draw(st.booleans()) and draw(st.booleans()) else ()
        parts = (draw(small) + 1, draw(small), draw(small), draw(small))
        layers.append(Layer(f"layer{index}", *parts, parameters=(f"own{index}", *shared)))
    return layers


def fit(stages, devices):
    """Return whether each stage has the memory that it needs."""
    return all(
        need <= each.memory_bytes or not each.memory_bytes for need, each in zip(stages.memory, devices)
    )


def brute_force(layers, num_stages, **options):
    """Return the smallest time of all cuts that fit, or nothing."""
    found = []
    for bounds in itertools.combinations(range(1, len(layers)), num_stages - 1):
        try:
            stages = cut_at(layers, bounds, **options)
        except UsageError:
            continue
        if fit(stages, options["devices"]):
            found.append(stages.step)
    return min(found, default=None)


DEVICES = st.builds(
    Device, st.just("any"), st.sampled_from([1.0, 0.5, 2.0, 4.0]), st.one_of(st.just(0), st.integers(1, 40))
)
"""Of speeds by which whole numbers are divided without rounding, and with little memory or any."""


@given(chains(), st.lists(DEVICES, min_size=1, max_size=4), st.integers(1, 5), small, st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_cut_is_better_than_the_best(layers, devices, micro_batches, latency, equal):
    """Dynamic programming finds what a look at all cuts finds, and nothing exactly if there is nothing."""
    num_stages = len(devices)
    if equal:
        devices = devices[:1] * num_stages
    options = {"micro_batches": micro_batches, "link": Link(2.0, latency), "devices": devices}
    expected = brute_force(layers, num_stages, **options)
    if expected is None or num_stages > len(layers):
        with pytest.raises(UsageError):
            partition(layers, num_stages, **options)
        return
    stages = partition(layers, num_stages, **options)
    assert stages.step == expected
    assert cut_at(layers, stages.bounds, **options) == stages
    assert fit(stages, devices)


def test_cheap_cuts_count_beside_quick_stages():
    """Of two cuts of the first layers the one with a slower stage is best, for its cuts cost nothing."""
    layers = [Layer(f"layer{index}", 1.0, num_bytes) for index, num_bytes in enumerate((0, 0, 2))]
    layers.append(Layer("last", 2.0))
    stages = partition(layers, 3, link=Link(2.0))
    assert (stages.bounds, stages.step) == ((1, 2), 5.0)


@given(st.integers(1, 6), st.integers(1, 8))
@settings(deadline=None)
def test_pipelines_keep_their_promises(num_stages, micro_batches):
    """Both schedules can be carried out, with the bubble of the papers; 1F1B holds few micro-batches."""
    graph = chain([()] * num_stages)
    times = Times([1.0] * num_stages, [2.0] * num_stages, [0.0] * (num_stages - 1))
    bubble = (num_stages - 1) / (micro_batches + num_stages - 1)
    for schedule in (fill_drain(graph, micro_batches), one_f_one_b(num_stages, micro_batches)):
        check(graph, schedule, micro_batches)
        assert simulate(graph, schedule, times).idle == pytest.approx(bubble)
    for stage, actions in enumerate(one_f_one_b(num_stages, micro_batches)):
        assert most_held(actions) == min(num_stages - stage, micro_batches)
    for actions in fill_drain(graph, micro_batches):
        assert most_held(actions) == micro_batches


@st.composite
def graphs(draw):
    """Segments of any shape with one output, on one to three ranks that all have some."""
    count = draw(st.integers(1, 6))
    num_ranks = draw(st.integers(1, min(3, count)))
    ranks = [*range(num_ranks), *(draw(st.integers(0, num_ranks - 1)) for _ in range(count - num_ranks))]
    ranks = draw(st.permutations(ranks))
    later = [draw(st.sets(st.integers(0, each - 1), max_size=2)) for each in range(1, count)]
    inputs = [set(), *later]
    inputs[-1] |= set(range(count - 1)).difference(*inputs)
    segments = [
        Segment(f"s{number}", ranks[number], tuple(f"s{each}" for each in sorted(inputs[number])))
        for number in range(count)
    ]
    return SegmentGraph(draw(st.permutations(segments)), num_ranks)


@given(graphs(), st.integers(1, 4), st.data())
@settings(deadline=None)
def test_any_graph_runs_in_its_order(graph, micro_batches, data):
    """Everything begins after what it needs and its transfer; no rank does two things at once."""
    schedule = fill_drain(graph, micro_batches)
    check(graph, schedule, micro_batches)
    lengths = [data.draw(st.floats(0.1, 5)) for _ in graph.segments]
    end = data.draw(st.floats(0, 0.5))  # of each message, on either rank
    edges = len(graph.edges)
    times = Times(lengths, [2 * each for each in lengths], [0.5] * edges, [end] * edges)
    found = simulate(graph, schedule, times)
    pairs = {(edge.source, edge.target): (0.5 + 2 * end) * graph.crosses(edge) for edge in graph.edges}
    for action, start in found.starts.items():
        for each in needs(graph, action):
            pair = (each.segment, action.segment)
            delay = pairs.get(pair if action.forward else pair[::-1], 0.0)
            assert start >= found.ends[each] + delay - 1e-9
    for actions in schedule:
        for earlier, later in itertools.pairwise(actions):
            handled = sum(
                graph.crosses(edge) for edge in (*given_by(graph, earlier), *taken_by(graph, later))
            )
            assert found.starts[later] >= found.ends[earlier] + handled * end - 1e-9
    assert found.step >= max(found.busy)


def given_by(graph, action):
    """Return the edges over which the result of a computation goes."""
    return graph.out_of(action.segment) if action.forward else graph.into(action.segment)


def taken_by(graph, action):
    """Return the edges from which a computation takes what it needs."""
    return graph.into(action.segment) if action.forward else graph.out_of(action.segment)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (((Action(0, 0, True), Action(0, 0, False)), (Action(1, 0, True),)), "not B0 of segment 1"),
        (((Action(0, 0, True), Action(1, 0, True)), (Action(1, 0, False), Action(0, 0, False))), "rank"),
        (((Action(0, 0, False), Action(0, 0, True)), (Action(1, 0, True), Action(1, 0, False))), "wait"),
    ],
)
def test_a_schedule_that_cannot_be_carried_out_is_refused(schedule, text):
    """What is missing, on the wrong rank or never begins is named."""
    with pytest.raises(UsageError, match=text):
        check(chain([(), ()]), schedule, 1)


@pytest.mark.parametrize(
    ("segments", "text"),
    [
        ([], "at least one part"),
        ([Segment("a", 0), Segment("a", 1, ("a",))], "two parts have the name a"),
        ([Segment("a", 0), Segment("b", 1, ("c",))], "takes the output of c, and there is no"),
        ([Segment("a", 0, ("b",)), Segment("b", 1, ("a",))], "wait for each other's outputs.*a, b"),
        ([Segment("a", 0), Segment("b", 2, ("a",))], "b is on rank 2.*--model-parallel 3"),
        ([Segment("a", 0), Segment("b", 0, ("a",))], "rank 1 of each worker has no part"),
        ([Segment("a", 0), Segment("b", 1)], "one output, and no part takes those of: a, b"),
        (
            [Segment("a", 0, (), ("w",)), Segment("b", 1, ("a",), ("w",))],
            "weight 'w' is shared by a on rank 0 and b on rank 1",
        ),
    ],
)
def test_segments_that_make_no_net_are_refused(segments, text):
    """Each with what is wrong."""
    with pytest.raises(UsageError, match=text):
        SegmentGraph(segments, 2)


@pytest.mark.parametrize(
    ("layers", "options", "text"),
    [
        ([Layer("a", 1.0)], {}, "2 stages cannot be made of 1 layers: give --model-parallel 1"),
        (
            [Layer("a", 1.0, fixed_bytes=9), Layer("b", 1.0)],
            {"devices": [Device("one", memory_bytes=8), Device("other", memory_bytes=8)]},
            "fits into 8 bytes for each: the layer a alone needs .* 9",
        ),
        (
            [Layer("a", 1.0, parameters=("w",)), Layer("b", 1.0, parameters=("w",))],
            {},
            r"share a weight stay together \('w'\): 1 can",
        ),
        ([Layer("a", 1.0), Layer("b", 1.0)], {"micro_batches": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_cut_is_refused(layers, options, text):
    """More stages than layers, too little memory, a shared weight."""
    with pytest.raises(UsageError, match=text):
        partition(layers, 2, **options)


def test_a_stage_needs_memory_for_the_micro_batches_that_it_holds():
    """By 1F1B: the first of three stages three, the last one; never more than a step has."""
    layers = [Layer(name, 1.0, held_bytes=10, fixed_bytes=1) for name in "abc"]
    assert cut_at(layers, [1, 2], micro_batches=8).memory == (31, 21, 11)
    assert cut_at(layers, [1, 2], micro_batches=2).memory == (21, 21, 11)


def test_given_stages_are_checked():
    """Stages by hand must have layers, and keep shared weights together."""
    layers = [Layer(name, 1.0, parameters=(weight,)) for name, weight in zip("abc", "wvw")]
    with pytest.raises(UsageError, match=r"\[0\] are no cut of 3 layers"):
        cut_at(layers, [0])
    with pytest.raises(UsageError, match="'w' is shared by the layers a and c"):
        cut_at(layers, [1])
    with pytest.raises(UsageError, match="at least one micro-batch, not 0"):
        one_f_one_b(2, 0)
