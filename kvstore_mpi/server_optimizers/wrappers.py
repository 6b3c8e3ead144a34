"""Rules that prepare an update and leave it to another rule: loosely coupled clients, delayed gradients.

The inner rule may be any that takes gradients, those that MXNet runs included; it has the state, and its
learning rate and schedule are those of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvstore_mpi.server_optimizers.rules import Rule, scale_and_clip
from kvstore_mpi.server_optimizers.spec import FRESH, Hyper

if TYPE_CHECKING:
    from kvstore_mpi import interfaces
    from kvstore_mpi.interfaces import Origin
    from kvstore_mpi.records import Key
    from kvstore_mpi.server_optimizers.rules import Array, Arrays


class Wrapper(Rule, frozen=True, kw_only=True):
    """A rule on top of another one.

    Attributes:
        inner: The other rule: a ``Rule``, or ``ThroughMXNet``.
    """

    inner: Any

    @property
    def whole_tensor(self) -> bool:  # type: ignore[override]
        """See ``Rule``."""
        whole: bool = self.inner.whole_tensor
        return whole

    def bind(self, key: Key, shape: tuple[int, ...]) -> Wrapper:
        """Return the optimizer for a key of this shape."""
        return msgspec.structs.replace(self, inner=self.inner.bind(key, shape))

    def init(self, weight: Array) -> Arrays:
        """Return the inner rule's state."""
        state: Arrays = self.inner.init(weight)
        return state

    def update(
        self,
        weight: Array,
        gradient: Array,
        state: Arrays,
        hyper: interfaces.Hyper,
        count: int,
        *,
        origin: Origin = FRESH,
    ) -> None:
        """Prepare, then let the inner rule update; see ``Rule.update``."""
        with np.errstate(all="ignore"):
            if weight.dtype == np.float16:
                gradient = gradient.astype(np.float32, copy=False)
            prepared = self.prepare(weight, gradient, hyper, origin)
            self.inner.update(weight, gradient, state, prepared, count)

    def prepare(self, weight: Array, gradient: Array, hyper: interfaces.Hyper, origin: Origin) -> Hyper:
        """Change the gradient, float32 or float64, in place; return the numbers for the inner rule."""
        raise NotImplementedError


class Outer(Wrapper, frozen=True, kw_only=True):
    """Any optimizer on pushed parameters: it descends along center - mean of the clients' parameters.

    Reddi et al. 2021 (arXiv 2003.00295), algorithm 1, calls the difference a pseudo-gradient; with the
    inner rule ``nag`` this is DiLoCo (Douillard et al. 2023, arXiv 2311.08105, algorithm 1), with ``sgd``
    at rate 1 federated averaging. The clients adopt the new center. It is not decayed: the clients'
    optimizers have done that to their parameters.
    """

    pushes = "params"

    def prepare(self, weight: Array, gradient: Array, hyper: interfaces.Hyper, origin: Origin) -> Hyper:  # noqa: ARG002
        """Turn the sum over clients into the mean."""
        if origin.contributions > 1:
            gradient /= origin.contributions
        return Hyper(hyper.lr, wd=0.0, rescale_grad=1.0, clip_gradient=hyper.clip_gradient)


class StalenessAware(Wrapper, frozen=True, kw_only=True):
    """The learning rate of a gradient that is s updates old, divided by s; of a fresh one as it is.

    Zhang et al. 2016 (arXiv 1511.05950), section 3.
    """

    needs_staleness = True

    def prepare(self, weight: Array, gradient: Array, hyper: interfaces.Hyper, origin: Origin) -> Hyper:  # noqa: ARG002
        """Divide the learning rate."""
        lr = hyper.lr / max(1, origin.staleness)
        return Hyper(lr, hyper.wd, hyper.rescale_grad, hyper.clip_gradient)


class DCASGD(Wrapper, frozen=True, kw_only=True):
    """Delay compensation: g + lamda g² (w - base) in place of a gradient g that was computed at ``base``.

    Zheng et al. 2017 (arXiv 1609.08326), equation 10: lamda g² stands for the Hessian's diagonal. ``base``
    is what *this* client was given last; MXNet's own optimizer of this name remembers one array per key,
    which with several clients is another client's. g is rescaled and clipped first, since the compensation
    is not linear in it.

    Attributes:
        lamda: Strength; MXNet's default and spelling.
    """

    needs_base = True

    lamda: float = 0.04

    def prepare(self, weight: Array, gradient: Array, hyper: interfaces.Hyper, origin: Origin) -> Hyper:
        """Add the compensation."""
        scale_and_clip(gradient, hyper)
        if origin.base is not None and self.lamda:
            compensation: Array = np.subtract(weight, origin.base, dtype=gradient.dtype)
            compensation *= gradient
            compensation *= gradient
            compensation *= self.lamda
            gradient += compensation
        return Hyper(hyper.lr, hyper.wd, rescale_grad=1.0, clip_gradient=None)
