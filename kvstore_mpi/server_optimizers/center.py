"""What servers do with pushed parameters: the pseudo-gradient, elastic averaging, delayed Nesterov.

A server with a rule whose ``pushes`` is ``"params"`` computes ``pseudo_gradient`` of what it was pushed and
gives that to ``update`` as the gradient. This file must not know about messages or clients' arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvstore_mpi.server_optimizers.rules import Rule
from kvstore_mpi.server_optimizers.spec import FRESH, check_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.interfaces import Hyper, Origin
    from kvstore_mpi.server_optimizers.rules import Array, Arrays


def pseudo_gradient(out: Array, center: Array, pushed: Sequence[Array]) -> None:
    """Fill ``out`` with the sum over clients of center - pushed.

    The sum of differences, not the difference of sums: it is exactly zero when all are equal, and large
    parameters do not swallow small differences.

    Args:
        out: 1-D; float32 for float16 keys, else of the key's dtype.
        center: What the clients' parameters are compared with, the same as they compare with: the center
            variable, or what was sent of it when replies are compressed. Only read.
        pushed: One array per client, in the order of clients. Only read.
    """
    np.subtract(center, pushed[0], out=out, dtype=out.dtype)
    for params in pushed[1:]:
        out += np.subtract(center, params, dtype=out.dtype)


class Elastic(Rule, frozen=True):
    """Elastic averaging: center += alpha * sum over clients of (w - center).

    Equation 2 of MXNET-MPI (Mamidala et al. 2018), after EASGD (Zhang, Choromanska and LeCun 2015, arXiv
    1412.6651, equation 4). The client does w -= alpha (w - center) with the same center, the one *before*
    the update: one exchange conserves w + center. ``alpha`` is the moving rate; learning rate and weight
    decay play no part.

    Attributes:
        alpha: Part of the distance that the center moves towards each client, in [0, 1].
    """

    pushes = "params"
    replies = "before"

    alpha: float = 0.5

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_number("alpha", self.alpha, 0.0, 1.0)

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        return 0

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:  # noqa: ARG002
        """Carry out one update."""
        gradient *= self.alpha
        weight -= gradient


class DelayedNesterov(Rule, frozen=True):
    """DiLoCo's step for clients that come one by one; the momentum moves at every ``every``-th push only.

    With d = base - w, what a client has learned since it was given ``base``: center -= lr d / every at each
    push; at each ``every``-th one m = momentum m + (mean of d since the last), center -= lr momentum m.
    Pushes of ``every`` clients with a common base add up to one synchronous step of Nesterov. Liu et al.
    2024 (arXiv 2401.09135), algorithm 3 with c = 0.

    Attributes:
        momentum: Outer momentum.
        every: Pushes from one step of the momentum to the next, the number of clients in the paper.
    """

    pushes = "params"
    needs_base = True

    momentum: float = 0.9
    every: int = 1

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        return 2

    def update(
        self,
        weight: Array,
        gradient: Array,
        state: Arrays,
        hyper: Hyper,
        count: int,
        *,
        origin: Origin = FRESH,
    ) -> None:
        """Update in place; see ``Rule.update``."""
        if origin.base is not None:
            gradient += np.subtract(origin.base, weight, dtype=gradient.dtype)
        super().update(weight, gradient, state, hyper, count, origin=origin)

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:
        """Carry out one update."""
        momentum, learned = state
        gradient /= self.every
        learned += gradient
        gradient *= hyper.lr
        weight -= gradient
        if step % self.every == 0:
            momentum *= self.momentum
            momentum += learned
            learned[:] = 0.0
            np.multiply(momentum, hyper.lr * self.momentum, out=gradient)
            weight -= gradient
