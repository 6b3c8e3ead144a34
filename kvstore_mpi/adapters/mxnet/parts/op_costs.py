"""What an operation of MXNet computes and moves, from its attributes and shapes. Knows no mxnet object."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.planner.cluster import Roofline

Shape = tuple[int, ...]

FREE = frozenset({"Dropout", "Flatten", "Reshape", "expand_dims", "identity", "squeeze", "BlockGrad"})
"""Kinds that move nothing, or whose work is left to the operation around them."""

CHEAP = frozenset(
    {
        *(
            "Activation",
            "BatchNorm",
            "LayerNorm",
            "LeakyReLU",
            "Pooling",
            "SliceChannel",
            "SoftmaxOutput",
            "clip",
        ),
        *(
            "exp",
            "log",
            "log_softmax",
            "negative",
            "relu",
            "sigmoid",
            "softmax",
            "softsign",
            "sqrt",
            "square",
        ),
        *("tanh", "_copy", "_div_scalar", "_minus_scalar", "_mul_scalar", "_plus_scalar", "_power_scalar"),
        *("_rdiv_scalar", "_rminus_scalar", "mean", "slice_axis", "sum", "transpose"),
    }
)
"""Kinds that take as long as their inputs and results take to be read and written."""

JOINING = frozenset(
    {
        *("Concat", "add_n", "broadcast_add", "broadcast_div", "broadcast_mul", "broadcast_sub"),
        *("elemwise_add", "elemwise_div", "elemwise_mul", "elemwise_sub", "Embedding", "stack"),
        *("_Plus", "_Minus", "_Mul", "_Div"),
    }
)
"""The same, for kinds with several inputs."""


class Cost(NamedTuple):
    """Seconds of the passes; ``weight_gradient`` is a part of ``backward``."""

    forward: float
    backward: float
    weight_gradient: float = 0.0
    known: bool = True


class Work(NamedTuple):
    """An operation: its kind, its attributes, and the shapes of its inputs, parameters and results."""

    kind: str
    attributes: Mapping[str, str]
    inputs: Sequence[Shape]
    parameters: Sequence[Shape]
    outputs: Sequence[Shape]


def cost(work: Work, device: Roofline) -> Cost:
    """Return what an operation takes.

    The backward pass of a product computes two products of the same size, one for the gradient of its input
    and one for that of its weight. Other kinds read a result's gradient and an input, and write the input's
    gradient. A kind that is not known here counts as one of these, and ``known`` is false.
    """
    moved_in, moved_out = _elements(work.inputs), _elements(work.outputs)
    weights = _elements(work.parameters)
    if work.kind in FREE:
        return Cost(0.0, 0.0)
    if (flops := _flops(work)) is not None:
        forward = device.seconds(flops, moved_in + weights + moved_out)
        if not work.parameters:
            return Cost(forward, 2 * forward)
        return Cost(forward, 2 * forward, forward)
    return Cost(
        device.seconds(0, moved_in + weights + moved_out),
        device.seconds(0, 2 * moved_in + weights + moved_out),
        known=work.kind in CHEAP or work.kind in JOINING,
    )


def _flops(work: Work) -> float | None:
    """Return the operations of arithmetic of a product; ``None`` for what is none."""
    kind, attributes, inputs, parameters, outputs = work
    result = _elements(outputs[:1])
    if kind == "Convolution":
        channels = inputs[0][1] // int(attributes.get("num_group", "1"))
        return 2.0 * result * channels * math.prod(_tuple(attributes["kernel"]))
    if kind == "Deconvolution":
        per_input = outputs[0][1] // int(attributes.get("num_group", "1"))
        return 2.0 * _elements(inputs[:1]) * per_input * math.prod(_tuple(attributes["kernel"]))
    if kind == "FullyConnected":
        return 2.0 * result * (parameters[0][1] if parameters else inputs[0][-1])
    if kind in ("dot", "batch_dot"):
        return 2.0 * result * inputs[0][-1]
    return None


def _tuple(text: str) -> tuple[int, ...]:
    value: Any = ast.literal_eval(text)
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _elements(shapes: Sequence[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)
