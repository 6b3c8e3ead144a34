"""How near to the least length of an iteration the real queues come, on random models in virtual time."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.often import often
from support.virtual_training import Cluster, Layer, Order, length, lower_bound, train

from kvstore_mpi.p3.schedule import Schedule

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from harness import bound

pytestmark = pytest.mark.paper("P3 section 4")

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=60)

LAYERS = st.lists(
    st.builds(Layer, st.integers(0, 60), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6
)
SLICES = st.integers(1, 8)
ORDERS = st.builds(Order, st.sampled_from(Schedule), SLICES, st.integers(0, 200))
HOSTS = st.integers(2, 4)

SLICES_PER_HOST = 10
"""An iteration may exceed the bound by the time of these slices for each other host: a push waits for one
slice in each window of the worker and of the server behind the same link, so does the answer, both have to
cross themselves, and servers are balanced to within a slice."""


def hosts(number):
    """Return hosts with one worker and one server each behind one link."""
    return Cluster(number, number, colocated=True, push=1, answer=1)


def clusters():
    """Return clusters of all kinds."""
    apart = st.builds(
        Cluster,
        st.integers(1, 3),
        st.integers(1, 3),
        push=st.integers(0, 3),
        update=st.integers(0, 3),
        answer=st.integers(0, 3),
        parallel=st.booleans(),
    )
    return st.one_of(apart, HOSTS.map(hosts))


def forward(layers):
    return sum(layer.forward for layer in layers)


@REPEATABLE
@given(layers=LAYERS, cluster=clusters(), order=ORDERS)
def test_no_order_beats_the_bound(layers, cluster, order):
    """Neither P3 nor FIFO, with any window, slices, links and servers."""
    assert length(train(layers, cluster, order)) >= lower_bound(layers, cluster, order.slice_size)


@REPEATABLE
@given(layers=LAYERS, slice_size=SLICES, costs=st.tuples(*[st.integers(0, 3)] * 3))
def test_one_worker_and_one_server_reach_the_bound_to_within_two_slices_a_stage(layers, slice_size, costs):
    """Whichever is slowest: at each of push, update and answer a slice waits for one, and passes itself."""
    cluster = Cluster(push=costs[0], update=costs[1], answer=costs[2])
    excess = length(train(layers, cluster, Order(Schedule.P3, slice_size)))
    excess -= lower_bound(layers, cluster, slice_size)
    assert excess <= 2 * slice_size * sum(costs)


@REPEATABLE
@given(layers=LAYERS, slice_size=SLICES, number=HOSTS)
def test_p3_reaches_the_bound_in_the_limit_of_small_slices(layers, slice_size, number):
    """What is missing is a number of slices that depends on the number of hosts alone."""
    excess = length(train(layers, hosts(number), Order(Schedule.P3, slice_size)))
    excess -= lower_bound(layers, hosts(number), slice_size)
    assert excess <= SLICES_PER_HOST * (number - 1) * slice_size


@REPEATABLE
@given(layers=LAYERS, slice_size=SLICES, number=HOSTS)
def test_priority_saves_at_most_the_forward_pass(layers, slice_size, number):
    """First come first served can hide no communication behind forward, but all that P3 can behind
    backward."""
    excess = length(train(layers, hosts(number), Order(Schedule.SLICING, slice_size)))
    excess -= lower_bound(layers, hosts(number), slice_size) + forward(layers)
    assert excess <= SLICES_PER_HOST * (number - 1) * slice_size


MODELS = {
    # Millions of elements; shares of compute as in convolutional and fully connected layers.
    "vgg19": [(20.0, 90), (102.8, 6), (16.8, 3), (4.1, 1)],
    "resnet50": [(0.2, 12), (1.2, 26), (7.1, 36), (15.0, 24), (2.0, 2)],
    "heavy first layer": [(8.8, 2), (7.0, 48), (4.0, 2), (4.0, 32), (4.0, 16)],
}


def model(name, ratio, number):
    """Return a model in slices of 1 and a network that needs ``ratio`` times as long as the compute."""
    scale = 3000 / sum(millions for millions, _ in MODELS[name])
    sizes = [round(millions * scale) for millions, _ in MODELS[name]]
    crossing = Fraction(2 * (number - 1) * sum(sizes), number)
    compute = [crossing / ratio * share / 300 for _, share in MODELS[name]]
    return [Layer(size, forward=each, backward=2 * each) for size, each in zip(sizes, compute)]


@pytest.mark.parametrize(
    "ratio", often([Fraction(4, 5)], [Fraction(4, 5), Fraction(6, 5), Fraction(2)]), ids=float
)
@pytest.mark.parametrize("name", often(["vgg19"], MODELS))
def test_shapes_of_models(name, ratio):
    """Four hosts, 3,000 slices: P3 is within half a percent of the bound, FIFO adds the forward pass."""
    layers = model(name, ratio, 4)
    least = lower_bound(layers, hosts(4), 1)
    by_priority, in_order = (
        length(train(layers, hosts(4), Order(schedule, 1))) for schedule in (Schedule.P3, Schedule.SLICING)
    )
    assert least <= by_priority <= Fraction(1005, 1000) * least
    benchmark = [bound.Layer(layer.size, layer.forward, layer.backward) for layer in layers]
    assert float(in_order) == pytest.approx(bound.fifo_bound(benchmark, 4, 1.0), rel=0.005)


@REPEATABLE
@given(layers=LAYERS, slice_size=SLICES, number=HOSTS)
def test_the_bound_that_benchmarks_print_is_this_one(layers, slice_size, number):
    """The same formula in floating point, for links that carry one byte a second."""
    benchmark = [bound.Layer(layer.size, layer.forward, layer.backward) for layer in layers]
    shares = bound.largest_shares([layer.size for layer in layers], slice_size, number)
    printed = bound.lower_bound(benchmark, number, 1.0, shares=shares)
    assert printed == pytest.approx(float(lower_bound(layers, hosts(number), slice_size)))
