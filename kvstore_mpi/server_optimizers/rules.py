"""Element-wise update rules on NumPy arrays; the arithmetic is that of MXNet 1.9.1's dense kernels.

Every rule works in place, with temporaries no larger than the slice, and treats each element by itself, so
that results do not depend on how a key is cut into slices. This file must not know about keys, messages or
MXNet.

Notation in the derivations: w weight, g gradient, m, v, n, h states, r = rescale_grad * g.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import StoreTerms
from kvstore_mpi.server_optimizers.spec import FRESH

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Hyper, Origin
    from kvstore_mpi.records import Key

    Array = np.ndarray[Any, Any]
    Arrays = tuple[Array, ...]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Base of the rules: what is common to all of them, and float16.

    A rule holds hyper-parameters only, so that one object serves all keys and slices. What servers and
    workers have to know of it is in the class attribute ``terms``: with ``params`` what ``update`` is given
    is ``center.pseudo_gradient`` of what clients push, otherwise the sum of it.

    Attributes:
        begin_num_update: Updates that count as done before the first one.
    """

    terms = StoreTerms()

    begin_num_update: int = 0

    def bind(self, key: Key, shape: tuple[int, ...]) -> Rule:  # noqa: ARG002  element-wise: any key, any shape
        """Return the optimizer for a key of this shape: this one."""
        return self

    def init(self, weight: Array) -> Arrays:
        """Return the state for a weight: arrays of zeros of its length and dtype.

        Raises:
            UsageError: The weight is not floating-point.
        """
        if weight.dtype.kind != "f":
            raise UsageError(
                f"the servers' optimizer {type(self).__name__} cannot update {weight.dtype} arrays; "
                "use a floating-point key, or a store without an optimizer"
            )
        return tuple(np.zeros_like(weight) for _ in range(self.num_states()))

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        raise NotImplementedError

    def update(
        self,
        weight: Array,
        gradient: Array,
        state: Arrays,
        hyper: Hyper,
        count: int,
        *,
        origin: Origin = FRESH,  # noqa: ARG002  for the rules that look at it
    ) -> None:
        """Update weight and state in place.

        Args:
            weight: Contiguous; of any shape, as far as the rule looks at elements only.
            gradient: Like ``weight``, or float32 beside float16; its content is undefined afterwards.
            state: What ``init`` returned.
            hyper: The numbers of this update.
            count: Number of the key's update, from 1.
            origin: Whose gradient this is.
        """
        apply = self._apply_to_half if weight.dtype == np.float16 else self.apply
        with np.errstate(all="ignore"):  # infinities and NaN are the user's to see, in the weights
            apply(weight, gradient, state, hyper, self.begin_num_update + count)

    def _apply_to_half(
        self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int
    ) -> None:
        """Compute in float32: closer to the truth than float16, and several times faster in NumPy."""
        halves = (weight, *state)
        singles = [array.astype(np.float32) for array in halves]
        self.apply(singles[0], gradient.astype(np.float32, copy=False), tuple(singles[1:]), hyper, step)
        for half, single in zip(halves, singles):
            np.copyto(half, single, casting="same_kind")

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:
        """Carry out update number ``step`` on float32 or float64 arrays; see ``update``."""
        raise NotImplementedError


class SGD(Rule, frozen=True):
    """Gradient descent: m = momentum m - lr (clip(r) + wd w); w += m.

    ``lazy_update`` matters for row-sparse gradients only, which arrive here as dense ones.
    """

    momentum: float = 0.0
    lazy_update: bool = True

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        return 1 if self.momentum > 0 else 0

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:  # noqa: ARG002
        """Carry out one update."""
        scale_and_clip(gradient, hyper, then=hyper.lr)
        decay = hyper.lr * hyper.wd
        if not state:
            if decay:
                gradient += weight * decay
            weight -= gradient
            return
        (momentum,) = state
        momentum *= self.momentum
        momentum -= gradient
        if decay:
            np.multiply(weight, decay, out=gradient)
            momentum -= gradient
        weight += momentum


class NAG(SGD, frozen=True):
    """Nesterov's accelerated gradient: like SGD, but w += momentum m_new - lr (clip(r) + wd w).

    MXNet decays the state by the weight *after* the update, and so does this.
    """

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:
        """Carry out one update."""
        if not state:
            super().apply(weight, gradient, state, hyper, step)
            return
        (momentum,) = state
        scale_and_clip(gradient, hyper, then=hyper.lr)
        decay = hyper.lr * hyper.wd
        momentum *= self.momentum
        descent = gradient + weight * decay if decay else gradient
        ahead = momentum - descent
        ahead *= self.momentum
        ahead -= descent
        weight += ahead
        momentum -= gradient
        if decay:
            momentum -= weight * decay


class Adam(Rule, frozen=True):
    """Adam: g = clip(r + wd w), moving averages m of g and v of g², w -= lr_t m / (sqrt(v) + epsilon).

    lr_t = lr sqrt(1 - beta2^t) / (1 - beta1^t) corrects the bias of the averages' start at zero.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    lazy_update: bool = True

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        return 2

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:
        """Carry out one update."""
        mean, variance = state
        _decay_and_clip(gradient, weight, hyper)
        scratch: Array = gradient * gradient
        _average(variance, scratch, self.beta2)
        _average(mean, gradient, self.beta1)
        np.sqrt(variance, out=scratch)
        scratch += self.epsilon
        np.divide(mean, scratch, out=scratch)
        scratch *= hyper.lr * math.sqrt(1.0 - self.beta2**step) / (1.0 - self.beta1**step)
        weight -= scratch


class AdaGrad(Rule, frozen=True):
    """AdaGrad: g = clip(r), h += g²; w -= lr (g / sqrt(h + eps) + wd w)."""

    eps: float = 1e-7

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        return 1

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:  # noqa: ARG002
        """Carry out one update."""
        (history,) = state
        scale_and_clip(gradient, hyper)
        scratch: Array = gradient * gradient
        history += scratch
        np.add(history, self.eps, out=scratch)
        np.sqrt(scratch, out=scratch)
        gradient /= scratch
        if hyper.wd:
            np.multiply(weight, hyper.wd, out=scratch)
            gradient += scratch
        gradient *= hyper.lr
        weight -= gradient


class RMSProp(Rule, frozen=True):
    """RMSProp, g = clip(r + wd w) and n the moving average of g² in both variants.

    Tieleman and Hinton: w -= lr g / sqrt(n + epsilon). Graves (``centered``): m is the moving average of g;
    delta = gamma2 delta - lr g / sqrt(n - m² + epsilon); w += delta. Weights are clipped at last.
    """

    gamma1: float = 0.9
    gamma2: float = 0.9
    epsilon: float = 1e-8
    centered: bool = False
    clip_weights: float | None = None

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        return 3 if self.centered else 1

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:  # noqa: ARG002
        """Carry out one update."""
        _decay_and_clip(gradient, weight, hyper)
        if self.centered:
            self._apply_centered(weight, gradient, state, hyper.lr)
        else:
            self._apply_plain(weight, gradient, state, hyper.lr)
        if self.clip_weights and self.clip_weights > 0:
            np.clip(weight, -self.clip_weights, self.clip_weights, out=weight)

    def _apply_plain(self, weight: Array, gradient: Array, state: Arrays, lr: float) -> None:
        (square_mean,) = state
        scratch: Array = gradient * gradient
        _average(square_mean, scratch, self.gamma1)
        np.add(square_mean, self.epsilon, out=scratch)
        np.sqrt(scratch, out=scratch)
        gradient /= scratch
        gradient *= lr
        weight -= gradient

    def _apply_centered(self, weight: Array, gradient: Array, state: Arrays, lr: float) -> None:
        square_mean, mean, delta = state
        scratch: Array = gradient * gradient
        _average(square_mean, scratch, self.gamma1)
        np.copyto(scratch, gradient)
        _average(mean, scratch, self.gamma1)
        np.multiply(mean, mean, out=scratch)
        np.subtract(square_mean, scratch, out=scratch)
        scratch += self.epsilon
        np.sqrt(scratch, out=scratch)
        gradient *= lr
        gradient /= scratch
        delta *= self.gamma2
        delta -= gradient
        weight += delta


class Ftrl(Rule, frozen=True):
    """FTRL-Proximal (McMahan et al. 2013), with g = clip(r).

    z += g - (sqrt(n + g²) - sqrt(n)) w / lr; n += g²; then w = 0 where abs(z) <= lamda1, elsewhere
    w = (sign(z) lamda1 - z) / ((beta + sqrt(n)) / lr + wd).
    """

    lamda1: float = 0.01
    beta: float = 1.0

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        return 2

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:  # noqa: ARG002
        """Carry out one update."""
        pull, squares = state
        scale_and_clip(gradient, hyper)
        root: Array = np.sqrt(squares)
        pull += gradient
        gradient *= gradient
        squares += gradient
        new_root = np.sqrt(squares, out=gradient)
        np.subtract(new_root, root, out=root)
        root *= weight
        root /= hyper.lr
        pull -= root
        new_root += self.beta
        new_root /= hyper.lr
        new_root += hyper.wd
        np.copysign(self.lamda1, pull, out=weight)
        weight -= pull
        weight /= new_root
        weight[np.abs(pull, out=root) <= self.lamda1] = 0.0


RULES: dict[str, type[Rule]] = {
    "adagrad": AdaGrad,
    "adam": Adam,
    "ftrl": Ftrl,
    "nag": NAG,
    "rmsprop": RMSProp,
    "sgd": SGD,
}
"""The rules on gradients that servers run without importing MXNet, by MXNet's registered names."""


def scale_and_clip(gradient: Array, hyper: Hyper, then: float = 1.0) -> None:
    """Turn a gradient g into then * clip(rescale_grad * g), in place."""
    factor = then
    if hyper.clip_gradient is None or hyper.clip_gradient <= 0:
        factor *= hyper.rescale_grad
    else:
        gradient *= hyper.rescale_grad
        np.clip(gradient, -hyper.clip_gradient, hyper.clip_gradient, out=gradient)
    if factor != 1.0:
        gradient *= factor


def _decay_and_clip(gradient: Array, weight: Array, hyper: Hyper) -> None:
    """Turn a gradient g into clip(rescale_grad * g + wd * w), in place."""
    if hyper.rescale_grad != 1.0:
        gradient *= hyper.rescale_grad
    if hyper.wd:
        gradient += weight * hyper.wd
    if hyper.clip_gradient is not None and hyper.clip_gradient > 0:
        np.clip(gradient, -hyper.clip_gradient, hyper.clip_gradient, out=gradient)


def _average(average: Array, value: Array, decay: float) -> None:
    """Move an average towards a value, average = decay average + (1 - decay) value; spoils ``value``.

    MXNet's kernels hold the decay in single precision, and 1 - 0.999 then differs from 0.001 in the fifth
    digit.
    """
    decay = float(np.float32(decay))
    average *= decay
    value *= 1.0 - decay
    average += value
