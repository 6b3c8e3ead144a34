"""The net of a symbol: what its operations compute, read and write, on a device's roofline."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mxnet")

from mxnet.gluon import nn  # noqa: E402
from mxnet.gluon.model_zoo import vision  # noqa: E402

from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import shape_of  # noqa: E402
from kvstore_mpi.adapters.mxnet.parts.part_costs import structure_of  # noqa: E402
from kvstore_mpi.adapters.mxnet.parts.segments import Net  # noqa: E402
from kvstore_mpi.adapters.mxnet.parts.symbol_net import net_of_symbol  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.mxnet import parts_of  # noqa: E402
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


def test_parts_can_be_placed():
    """Operations that follow each other alone are one; weights count with gradients and states."""
    x = mx.sym.var("data")
    stem = mx.sym.relu(mx.sym.FullyConnected(x, num_hidden=16, name="stem"), name="bent")
    left, right = (mx.sym.FullyConnected(stem, num_hidden=8, name=name) for name in ("left", "right"))
    text = mx.sym.broadcast_add(left, right, name="top").tojson()
    found = net_of_symbol(text, {"data": (4, 10)}, ONLY_ARITHMETIC, name="digits", batch=4, samples=80)
    parts = found.parts
    assert parts.kind == "placement"
    assert [each.name for each in parts.graph.operations] == ["bent", "left", "right", "top"]
    assert [each.parameter_bytes for each in parts.graph.operations] == [
        3 * 4 * (10 * 16 + 16),
        3 * 4 * (16 * 8 + 8),
        3 * 4 * (16 * 8 + 8),
        0,
    ]
    assert [each.num_bytes for each in parts.graph.edges] == [4 * 4 * 16] * 2 + [4 * 4 * 8] * 2
    whole = sum(each.forward_seconds + each.backward_seconds for each in parts.graph.operations)
    assert whole == pytest.approx(found.step_s)


def test_a_text_that_is_no_symbol_and_inputs_that_do_not_fit_are_named():
    """With what to say instead."""
    with pytest.raises(UsageError, match=r"digits: .*; say --shape NAME:N,C"):
        net_of(ONLY_MEMORY, shape=(4,))
    with pytest.raises(UsageError, match="broken: "):
        net_of_symbol("{}", {"data": (1,)}, ONLY_MEMORY, name="broken", batch=1, samples=1)


class Constants(mx.gluon.HybridBlock):
    """Branches of which each takes a weight's own function, one of them what a constant makes."""

    def __init__(self):
        """Build it."""
        super().__init__()
        with self.name_scope():
            self.left = nn.Dense(6)
            self.right = nn.Dense(6)
            self.scale = self.params.get("scale", shape=(1, 6))

    def hybrid_forward(self, F, x, scale):  # noqa: N803  MXNet's name
        """See ``HybridBlock``."""
        scaled = F.broadcast_mul(self.left(x), F.exp(F.tanh(scale)))
        return F.broadcast_add(scaled, F.ones((1, 6)) * 2) + self.right(x)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Constants, (4, 8)),
        (lambda: vision.get_resnet(1, 18, classes=10, thumbnail=True), (2, 3, 32, 32)),
    ],
    ids=["constants", "residual"],
)
def test_the_parts_of_a_symbol_are_those_of_a_script_with_the_same_net(tmp_path, build, shape):
    """So that the plan of an exported net runs: as it was built, and as it is imported."""
    net = build()
    net.initialize()
    net.hybridize()
    net(mx.nd.ones(shape))
    net.export(str(tmp_path / "net"))
    path = str(tmp_path / "net-symbol.json")
    text = (tmp_path / "net-symbol.json").read_text()
    planned = net_of_symbol(text, {"data": shape}, ONLY_MEMORY, name="net", batch=4, samples=80).parts.graph
    imported = mx.gluon.SymbolBlock.imports(path, ["data"], str(tmp_path / "net-0000.params"))
    for each in (net, imported):
        assert planned.structure == structure_of(Net(parts_of(each), 1))
    assert len(planned.operations) > 2
    weights = {name for each in planned.operations for name in each.weights}
    assert weights == set(net.collect_params())
    # Of what is imported MXNet knows no shapes but by their values.
    shapes = {param.name: shape_of(param) for param in imported.collect_params().values()}
    assert shapes == {name: param.data().shape for name, param in net.collect_params().items()}
