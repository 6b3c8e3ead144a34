"""The least length of an iteration, whatever the order of sending: arithmetic on layers, compute and links.

The gradients of the layers up to some layer exist only after that layer's backward pass, and all of them
must have crossed before its forward pass; what is left of the compute comes on top. With C_i the compute,
forward and backward, of the layers before layer i, T that of all, and N_i what the busiest link needs for
the layers up to i, an iteration takes at least max_i (T - C_i + max(C_i, N_i)). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Layer:
    """One tensor of a model; a list of them is in forward order.

    Attributes:
        num_bytes: Its size.
        forward_s: Seconds of compute in the forward pass that cannot start before its new value is there.
        backward_s: Seconds of compute at whose end its gradient is ready.
    """

    num_bytes: int
    forward_s: float
    backward_s: float


class Least(NamedTuple):
    """The least length of an iteration, and why it is that.

    Attributes:
        seconds: Of the iteration.
        layer: The layer before whose forward pass compute waits longest; ``None`` if it waits for none.
    """

    seconds: float
    layer: int | None


def compute_seconds(layers: Sequence[Layer]) -> float:
    """Return the length of an iteration without any communication."""
    return sum(layer.forward_s + layer.backward_s for layer in layers)


def least(layers: Sequence[Layer], network: Sequence[float]) -> Least:
    """Return the least length of an iteration.

    Args:
        layers: The model, at least one layer.
        network: For each layer, the seconds that the busiest link needs for it and all layers before it.
    """
    waits = [needed - before for needed, before in zip(network, _compute_before(layers))]
    longest = max(range(len(waits)), key=waits.__getitem__)
    if waits[longest] <= 0:
        return Least(compute_seconds(layers), None)
    return Least(compute_seconds(layers) + waits[longest], longest)


def _compute_before(layers: Sequence[Layer]) -> Iterator[float]:
    """Yield for each layer the compute, forward and backward, of the layers before it."""
    before = 0.0
    for layer in layers:
        yield before
        before += layer.forward_s + layer.backward_s
