"""The nets that are placed, as graphs with the times of a card: of MXNet's zoo, and three built here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet.gluon import contrib, nn, rnn

from kvstore_mpi.adapters.mxnet.parts.graph import graph_of
from kvstore_mpi.planner.cluster import Roofline

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.planner.placement.graph import Graph

V100 = Roofline(flops_per_s=15.7e12, bytes_per_s=900e9, launch_s=5e-6)
"""Peaks of the card on which the paper was measured, and what starting a kernel takes about."""

BATCH = 64
STEPS, LAYERS, WIDTH = 16, 4, 1024
TOWERS, DEPTH = 2, 8

INCEPTIONS = (
    *((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None),
    *((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64)),
    *((112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), None),
    *((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Widths of GoogLeNet's modules (Szegedy et al., 2015, Table 1); ``None`` is a pooling between them."""


def _zoo(name: str, side: int) -> Graph:
    net = mx.gluon.model_zoo.vision.get_model(name)
    return graph_of(net, {"data": (BATCH, 3, side, side)}, V100)


def _convolution(channels: int, size: int, stride: int = 1) -> Any:
    unit = nn.HybridSequential()
    unit.add(nn.Conv2D(channels, size, stride, size // 2), nn.Activation("relu"))
    return unit


def _module(widths: tuple[int, ...]) -> Any:
    """Return an Inception module: four branches whose results are joined."""
    one, three_in, three, five_in, five, pooled = widths
    module = contrib.nn.HybridConcurrent(axis=1)
    pool = nn.MaxPool2D(3, 1, 1)
    module.add(_convolution(one, 1))
    for parts in ((three_in, three, 3), (five_in, five, 5)):
        branch = nn.HybridSequential()
        branch.add(_convolution(parts[0], 1), _convolution(parts[1], parts[2]))
        module.add(branch)
    branch = nn.HybridSequential()
    branch.add(pool, _convolution(pooled, 1))
    module.add(branch)
    return module


def _googlenet() -> Graph:
    net = nn.HybridSequential()
    net.add(_convolution(64, 7, 2), nn.MaxPool2D(3, 2, 1), _convolution(64, 1), _convolution(192, 3))
    net.add(nn.MaxPool2D(3, 2, 1))
    for widths in INCEPTIONS:
        net.add(_module(widths) if widths else nn.MaxPool2D(3, 2, 1))
    net.add(nn.GlobalAvgPool2D(), nn.Dense(1000))
    return graph_of(net, {"data": (BATCH, 3, 224, 224)}, V100)


def _two_towers() -> Graph:
    """Return two towers of dense layers, for users and items, and what scores them together."""
    inputs = [mx.sym.var(name) for name in ("users", "items")]
    tops = []
    for tower in inputs:
        layers = nn.HybridSequential()
        layers.add(*(nn.Dense(4096, activation="relu") for _ in range(DEPTH)))
        tops.append(layers(tower))
    top = nn.HybridSequential()
    top.add(nn.Dense(1024, activation="relu"), nn.Dense(1))
    score = top(mx.sym.concat(*tops))
    return graph_of(score, {"users": (512, 4096), "items": (512, 4096)}, V100)


def _lstm() -> Graph:
    """Return a stack of LSTM cells, step by step; the steps of a layer share their weights."""
    stack = rnn.HybridSequentialRNNCell()
    for _ in range(LAYERS):
        stack.add(rnn.LSTMCell(WIDTH, input_size=WIDTH))
    names = [f"x{step}" for step in range(STEPS)]
    outputs, _ = stack.unroll(STEPS, [mx.sym.var(name) for name in names], merge_outputs=False)
    block = re.compile(r"(.*lstm\d+_t\d+)_")

    def block_of(name: str) -> str | None:
        found = block.match(name)
        return found[1] if found else None

    shapes = dict.fromkeys(names, (BATCH, WIDTH))
    return graph_of(mx.sym.Group(outputs), shapes, V100, block_of=block_of)


NETS: dict[str, Callable[[], Graph]] = {
    "inceptionv3": lambda: _zoo("inceptionv3", 299),
    "googlenet": _googlenet,
    "resnet50": lambda: _zoo("resnet50_v1", 224),
    "densenet121": lambda: _zoo("densenet121", 224),
    "two-tower": _two_towers,
    "lstm": _lstm,
}
