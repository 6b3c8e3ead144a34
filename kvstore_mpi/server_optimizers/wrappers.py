"""Rules that prepare an update and leave it to another rule: loosely coupled clients, delayed gradients.

The inner rule may be any that takes gradients, those that MXNet runs included; it has the state, and its
learning rate and schedule are those of the store. A user names it and its hyper-parameters; a server, which
has the description only, builds it.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import StoreTerms
from kvstore_mpi.server_optimizers.center import MOST_MOMENTUM
from kvstore_mpi.server_optimizers.rules import RULES, scale_and_clip
from kvstore_mpi.server_optimizers.spec import FRESH, Hyper, HyperParameters, OptimizerSpec, check_number

if TYPE_CHECKING:
    from kvstore_mpi import interfaces
    from kvstore_mpi.interfaces import Origin, ServerOptimizer
    from kvstore_mpi.records import Key
    from kvstore_mpi.server_optimizers.rules import Array, Arrays

_COMMON = ("wd", "rescale_grad", "clip_gradient")


class Wrapper:
    """An optimizer around another one, the inner one.

    Attributes:
        terms: What the servers have to know of it.
        name: What it is called in a description.
        inner: Describes the inner optimizer.
        own: The numbers of this one.
    """

    terms: ClassVar[StoreTerms]
    name: ClassVar[str]
    inner: OptimizerSpec
    own: dict[str, float]

    def __init__(self, optimizer: str, *, learning_rate: float, **hyper: Any) -> None:
        """Describe the optimizer.

        Args:
            optimizer: Registered name of the inner one: a rule of the servers, or any that MXNet registers.
            learning_rate: Its learning rate.
            hyper: Its other hyper-parameters, by the names of MXNet's constructor.

        Raises:
            UsageError: A number is out of bounds. The servers check the other hyper-parameters.
        """
        if not isinstance(optimizer, str):
            raise UsageError(f"{type(self).__name__} wants an optimizer's name, not {optimizer!r}")
        check_number("learning_rate", learning_rate, 0.0)
        for name in _COMMON:
            if hyper.get(name) is not None:
                check_number(name, hyper[name], 0.0)
        if "momentum" in hyper:
            check_number("momentum", hyper["momentum"], 0.0, MOST_MOMENTUM)
        numbers = {name: hyper.pop(name) for name in _COMMON if name in hyper}
        name = optimizer.lower()
        self.inner = OptimizerSpec(
            name=name,
            hyper=HyperParameters(lr=learning_rate, **numbers),
            params=hyper,
            through_mxnet=name not in RULES,
        )
        self.own = {}
        self._rule: ServerOptimizer | None = None  # what ``inner`` describes, on a server

    def __repr__(self) -> str:
        """Show what is wrapped."""
        return f"{type(self).__name__}({self.inner.name!r}, learning_rate={self.inner.hyper.lr:g})"

    def __eq__(self, other: object) -> bool:
        """Compare what is described."""
        return type(other) is type(self) and other.spec() == self.spec()

    __hash__ = None  # type: ignore[assignment]  # what it describes has dicts in it

    def around(self, inner: OptimizerSpec) -> OptimizerSpec:
        """Describe this optimizer around one that is described already, whose hyper-parameters remain."""
        plain = {"name": inner.name, "params": inner.params, "through_mxnet": inner.through_mxnet}
        return OptimizerSpec(
            name=self.name,
            hyper=inner.hyper,
            params={"inner": plain, **self.own},
            multi_precision=inner.multi_precision,
        )

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        return self.around(self.inner)

    def run(self, rule: ServerOptimizer) -> Wrapper:
        """Return this optimizer, ready to run on a server with the inner rule."""
        ready = copy(self)
        ready._rule = rule  # noqa: SLF001  its own class
        return ready

    @property
    def rule(self) -> ServerOptimizer:
        """The inner rule, on a server."""
        if self._rule is None:
            raise UsageError(f"{self!r} describes an optimizer; give it to a store, or build it")
        return self._rule

    def bind(self, key: Key, shape: tuple[int, ...]) -> Wrapper:
        """Return the optimizer for a key of this shape."""
        return self.run(self.rule.bind(key, shape))

    def init(self, weight: Array) -> Arrays:
        """Return the inner rule's state."""
        state: Arrays = self.rule.init(weight)
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
            self.rule.update(weight, gradient, state, prepared, count)

    def prepare(self, weight: Array, gradient: Array, hyper: interfaces.Hyper, origin: Origin) -> Hyper:
        """Change the gradient, float32 or float64, in place; return the numbers for the inner rule."""
        raise NotImplementedError


class Outer(Wrapper):
    """Any registered optimizer on the pseudo-gradient center - mean of the clients' parameters.

    Reddi et al. 2021 (arXiv 2003.00295), algorithm 1; with the inner rule ``nag`` this is DiLoCo (Douillard
    et al. 2023, arXiv 2311.08105, algorithm 1), with ``sgd`` at rate 1 federated averaging. The clients
    adopt the new center. It is not decayed: the clients' optimizers have done that to their parameters. For
    example ``Outer("adam", learning_rate=0.01)``; ``LocalSGD``, ``DiLoCo``, ``SlowMo`` and ``BMUF`` are
    presets of this.
    """

    name = "outer"
    terms = StoreTerms(params=True)

    def prepare(self, weight: Array, gradient: Array, hyper: interfaces.Hyper, origin: Origin) -> Hyper:  # noqa: ARG002
        """Turn the sum over clients into the mean."""
        if origin.contributions > 1:
            gradient /= origin.contributions
        return Hyper(hyper.lr, wd=0.0, rescale_grad=1.0, clip_gradient=hyper.clip_gradient)


class StalenessAware(Wrapper):
    """An optimizer of gradients whose learning rate is divided by the gradient's staleness, if that is > 1.

    Zhang et al. 2016 (arXiv 1511.05950), section 3. The staleness is the number of updates since the client
    was sent the weight.
    """

    name = "staleness-aware"
    terms = StoreTerms(staleness=True)

    def prepare(self, weight: Array, gradient: Array, hyper: interfaces.Hyper, origin: Origin) -> Hyper:  # noqa: ARG002
        """Divide the learning rate."""
        lr = hyper.lr / max(1, origin.staleness)
        return Hyper(lr, hyper.wd, hyper.rescale_grad, hyper.clip_gradient)


class DCASGD(Wrapper):
    """Delay-compensated ASGD: an optimizer of g + lamda g² (w - base), base being what the client was sent.

    Zheng et al. 2017 (arXiv 1609.08326), equation 10: lamda g² stands for the Hessian's diagonal. Unlike
    MXNet's optimizer of this name, which knows one base per key, with several clients another client's,
    this one has a base for each client, and takes momentum; the servers keep one copy of the model per
    client. g is rescaled and clipped first, since the compensation is not linear in it.
    """

    name = "dc-asgd"
    terms = StoreTerms(bases=True, pulls=True, staleness=True)

    def __init__(
        self, optimizer: str = "sgd", *, learning_rate: float, lamda: float = 0.04, **hyper: Any
    ) -> None:
        """Describe the optimizer.

        Args:
            optimizer: Registered name of the one that takes the compensated gradient.
            learning_rate: Its learning rate.
            lamda: Strength of the compensation; MXNet's default and spelling.
            hyper: Its other hyper-parameters, by the names of MXNet's constructor.

        Raises:
            UsageError: A number is out of bounds.
        """
        check_number("lamda", lamda, 0.0)
        super().__init__(optimizer, learning_rate=learning_rate, **hyper)
        self.own = {"lamda": lamda}

    def prepare(self, weight: Array, gradient: Array, hyper: interfaces.Hyper, origin: Origin) -> Hyper:
        """Add the compensation."""
        scale_and_clip(gradient, hyper)
        lamda = self.own["lamda"]
        if origin.base is not None and lamda:
            compensation: Array = np.subtract(weight, origin.base, dtype=gradient.dtype)
            compensation *= gradient
            compensation *= gradient
            compensation *= lamda
            gradient += compensation
        return Hyper(hyper.lr, hyper.wd, rescale_grad=1.0, clip_gradient=None)
