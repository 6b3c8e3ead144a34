"""The net of a symbol: what its operations compute, read and write, on a device's roofline."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mxnet")

from mxnet.gluon import nn  # noqa: E402

from kvstore_mpi.adapters.mxnet.symbol_net import net_of_symbol  # noqa: E402
from kvstore_mpi.errors import ConfigurationError  # noqa: E402
from kvstore_mpi.planner import Roofline  # noqa: E402

pytestmark = pytest.mark.mxnet

ONLY_ARITHMETIC = Roofline(1e6, 1e30)
ONLY_MEMORY = Roofline(1e30, 1e6)


def net_of(device, shape=(4, 1, 8, 8)):
    """Return the net of a convolution, its activation and a dense layer."""
    block = nn.HybridSequential()
    block.add(nn.Conv2D(16, 3, padding=1, activation="relu"), nn.Dense(10))
    text = block(mx.sym.var("data")).tojson()
    return net_of_symbol(text, {"data": shape}, device, name="digits", batch=4, samples=80)


def test_arithmetic_of_products_is_counted():
    """Of weights in forward order; a bias has bytes and no time."""
    layers = net_of(ONLY_ARITHMETIC).layers
    assert [layer.num_bytes for layer in layers] == [16 * 9 * 4, 16 * 4, 10 * 1024 * 4, 10 * 4]
    conv, dense = 2 * 4 * 16 * 64 * 9, 2 * 4 * 10 * 1024
    flops = [1e6 * layer.forward_s for layer in layers]
    assert flops == pytest.approx([conv, 0, dense, 0])
    assert [layer.backward_s for layer in layers] == pytest.approx(
        [2 * layer.forward_s for layer in layers]
    )


def test_everything_is_read_and_written_once():
    """Inputs, weights and output of each operation."""
    conv = 4 * 64 + 16 * 9 + 16 + 4 * 16 * 64
    relu = 2 * 4 * 16 * 64
    dense = 4 * 16 * 64 + 10 * 1024 + 10 + 4 * 10
    moved = [1e6 * layer.forward_s / 4 for layer in net_of(ONLY_MEMORY).layers]
    assert moved == pytest.approx([conv + relu, 0, dense, 0])


def test_operations_can_be_placed():
    """The activation is a part of its convolution; weights count with gradients and states."""
    parts = net_of(ONLY_ARITHMETIC).parts
    assert parts.kind == "placement"
    conv, dense = parts.graph.operations
    assert (conv.parameter_bytes, dense.parameter_bytes) == (
        3 * 4 * (16 * 9 + 16),
        3 * 4 * (10 * 1024 + 10),
    )
    assert [each.num_bytes for each in parts.graph.edges] == [4 * 4 * 16 * 64]


def test_a_text_that_is_no_symbol_and_inputs_that_do_not_fit_are_named():
    """With what to say instead."""
    with pytest.raises(ConfigurationError, match=r"digits: .*; say --shape NAME:N,C"):
        net_of(ONLY_MEMORY, shape=(4,))
    with pytest.raises(ConfigurationError, match="broken: "):
        net_of_symbol("{}", {"data": (1,)}, ONLY_MEMORY, name="broken", batch=1, samples=1)
