"""Nets of MXNet become graphs to be placed: operations, times by a roofline, bytes, shared weights."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mxnet
mx = pytest.importorskip("mxnet")

from mxnet.gluon import nn  # noqa: E402

from kvstore_mpi.adapters.mxnet.parts.graph import graph_of  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.planner.cluster import Roofline, uniform  # noqa: E402
from kvstore_mpi.planner.placement.place import place  # noqa: E402

UNIT = Roofline(flops_per_s=1.0, bytes_per_s=1e30)
"""Seconds are operations of arithmetic."""

BYTES = Roofline(flops_per_s=1e30, bytes_per_s=1.0)
"""Seconds are bytes."""


def two_branches():
    """Return a net with a convolution, two branches and what joins them."""
    x = mx.sym.var("data")
    stem = mx.sym.Convolution(x, kernel=(3, 3), num_filter=4, pad=(1, 1), no_bias=True, name="stem")
    left = mx.sym.Activation(
        mx.sym.BatchNorm(
            mx.sym.Convolution(stem, kernel=(1, 1), num_filter=2, no_bias=True, name="left"), name="norm"
        ),
        act_type="relu",
        name="relu",
    )
    right = mx.sym.Convolution(stem, kernel=(3, 3), num_filter=6, pad=(1, 1), no_bias=True, name="right")
    return mx.sym.concat(left, right, name="joined")


SHAPES = {"data": (2, 3, 8, 8)}


def test_a_symbol_becomes_operations_with_times_and_bytes():
    """A convolution with what follows it alone is one operation; edges carry its last result."""
    graph = graph_of(two_branches(), SHAPES, UNIT)
    found = graph.by_name()
    assert list(found) == ["stem", "left", "right", "joined"]
    assert found["stem"].forward_seconds == 2 * (2 * 4 * 8 * 8) * 3 * 9
    assert found["left"].forward_seconds == pytest.approx(2 * (2 * 2 * 8 * 8) * 4)
    assert found["right"].backward_seconds == 2 * found["right"].forward_seconds
    assert found["right"].weight_gradient_seconds == found["right"].forward_seconds
    assert found["left"].kind == "Convolution+BatchNorm+Activation"
    assert found["right"].parameter_bytes == 3 * 4 * 6 * 4 * 9
    sizes = {(edge.source, edge.target): edge.num_bytes for edge in graph.edges}
    one = 2 * 8 * 8 * 4
    assert sizes == {
        ("stem", "left"): 4 * one,
        ("stem", "right"): 4 * one,
        ("left", "joined"): 2 * one,
        ("right", "joined"): 6 * one,
    }
    assert place(graph, uniform(2, 1e30)).speedup > 1


def test_what_only_moves_data_takes_as_long_as_its_bytes():
    """Both inputs are read, the result is written; backward, also the gradient."""
    joined = graph_of(two_branches(), SHAPES, BYTES).by_name()["joined"]
    size = 8 * 2 * 8 * 8 * 4
    assert (joined.forward_seconds, joined.backward_seconds) == (2 * size, 3 * size)


def test_without_fusing_each_operation_stands_alone_and_measured_times_count():
    """The backward pass is divided as the model divides it."""
    graph = graph_of(two_branches(), SHAPES, UNIT, measured={"right": (3.0, 8.0)}, fuse=False)
    found = graph.by_name()
    assert list(found) == ["stem", "left", "norm", "relu", "right", "joined"]
    right = found["right"]
    assert (right.forward_seconds, right.backward_seconds, right.weight_gradient_seconds) == (3, 8, 4)


def test_measured_operations_that_the_net_has_not_are_named():
    """A misspelt name would leave the predicted time, without a word."""
    with pytest.warns(UserWarning, match="has no operations of this net: rihgt"):
        graph_of(two_branches(), SHAPES, UNIT, measured={"rihgt": (3.0, 8.0), "left": (1.0, 2.0)})


def test_a_net_of_gluon_with_a_shared_weight():
    """The layer that is used twice has one weight, so that its uses share a device."""
    net = nn.HybridSequential()
    shared = nn.Dense(4, in_units=4, prefix="shared_")
    net.add(shared, nn.Dense(4, in_units=4, prefix="own_"), shared)
    graph = graph_of(net, {"data": (2, 4)}, UNIT)
    assert [len(each.weights) for each in graph.operations] == [2, 2, 2]
    found = place(graph, uniform(2, 1e30)).device_of
    names = [each.name for each in graph.operations]
    assert names == ["shared_fwd", "own_fwd", "shared_fwd#2"]
    assert found[names[0]] == found[names[2]]


def test_blocks_become_operations():
    """Here all with one letter."""
    graph = graph_of(two_branches(), SHAPES, UNIT, block_of=lambda name: name[0], fuse=False)
    assert [each.name for each in graph.operations] == ["s", "l", "n", "r", "j"]


def test_an_unknown_operation_has_a_stated_default_and_a_warning():
    """It reads its inputs and writes its result."""
    x = mx.sym.var("data")
    with pytest.warns(UserWarning, match=r"no cost is known for operations of the kinds {'erf': 1}"):
        graph = graph_of(mx.sym.erf(x, name="odd"), {"data": (2, 3)}, BYTES)
    assert graph.operations[0].forward_seconds == 2 * 6 * 4


def test_shapes_that_do_not_fit_are_refused():
    """Or do not suffice."""
    with pytest.raises(UsageError, match=r"do not fit the net|do not suffice"):
        graph_of(two_branches(), {"data": (2, 3)}, UNIT)
    with (
        pytest.warns(UserWarning, match="Cannot decide shape"),
        pytest.raises(UsageError, match="do not suffice"),
    ):
        graph_of(two_branches(), {}, UNIT)
