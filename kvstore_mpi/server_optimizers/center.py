"""What servers do with pushed parameters: the pseudo-gradient, elastic averaging, delayed Nesterov.

A server whose terms are ``params`` computes ``pseudo_gradient`` of what it was pushed and gives that to
``update`` as the gradient. This file must not know about messages or clients' arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvstore_mpi.records import StoreTerms
from kvstore_mpi.server_optimizers.rules import Rule
from kvstore_mpi.server_optimizers.spec import (
    FRESH,
    HyperParameters,
    OptimizerSpec,
    check_count,
    check_number,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.interfaces import Hyper, Origin
    from kvstore_mpi.server_optimizers.rules import Array, Arrays

MOST_MOMENTUM = 0.9999
"""Above it a step of the center is remembered for longer than any training lasts."""


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
    """Elastic averaging (EASGD): center += alpha * sum over clients of (w - center).

    Equation 2 of MXNET-MPI (Mamidala et al. 2018), after Zhang, Choromanska and LeCun 2015 (arXiv
    1412.6651, equation 4). Each client does w -= alpha (w - center) with the same center, the one *before*
    the update: one exchange conserves w + center. With one client at a time (``async-mpi``) every alpha in
    [0, 1] is stable; if p clients are added up at once (``sync-mpi``), alpha must stay below 2 / (p + 1),
    and the authors use 0.9 / p. Learning rate and weight decay play no part.

    Attributes:
        alpha: Moving rate, the part of the distance that the center moves towards each client, in [0, 1].
    """

    terms = StoreTerms(params=True, before=True, bases=True)

    alpha: float = 0.5

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_number("alpha", self.alpha, 0.0, 1.0)

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        return OptimizerSpec(name="elastic", hyper=HyperParameters(lr=1.0), params={"alpha": self.alpha})

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        return 0

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:  # noqa: ARG002
        """Carry out one update."""
        gradient *= self.alpha
        weight -= gradient


class DelayedNesterov(Rule, frozen=True):
    """DiLoCo for clients that come one by one: each push steps, each ``num_clients``-th moves the momentum.

    With d = base - w, what a client has learned since it was given ``base``: center -= lr d / num_clients
    at each push; at each ``num_clients``-th one m = momentum m + (mean of d since the last), center -= lr
    momentum m. Pushes of all clients with a common base add up to one synchronous step of Nesterov. Liu et
    al. 2024 (arXiv 2401.09135), algorithm 3 with c = 0. A push counts for what the client has learned since
    it was sent the center, whatever the others have done meanwhile; the servers keep one copy of the model
    per client.

    Attributes:
        num_clients: Pushes from one step of the momentum to the next.
        lr: Outer learning rate; on a server that of the update counts, which a schedule may change.
        momentum: Outer momentum.
    """

    terms = StoreTerms(params=True, bases=True, pulls=True, staleness=True)

    num_clients: int
    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_count("num_clients", self.num_clients)
        check_number("lr", self.lr, 0.0)
        check_number("momentum", self.momentum, 0.0, MOST_MOMENTUM)

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        params = {"num_clients": self.num_clients, "momentum": self.momentum}
        return OptimizerSpec(name="delayed-nesterov", hyper=HyperParameters(lr=self.lr), params=params)

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
        gradient /= self.num_clients
        learned += gradient
        gradient *= hyper.lr
        weight -= gradient
        if step % self.num_clients == 0:
            momentum *= self.momentum
            momentum += learned
            learned[:] = 0.0
            np.multiply(momentum, hyper.lr * self.momentum, out=gradient)
            weight -= gradient
