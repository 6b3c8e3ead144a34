"""Server optimizers for loosely coupled clients, as users name them in ``kv.set_optimizer``.

Each is a frozen record that checks its numbers and knows its ``spec()``, which travels to the servers. This
file must not know MXNet, nor how a rule computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers import RULES, Live, OptimizerSpec
from kvstore_mpi.server_optimizers.spec import check_count, check_number

_LIVE = ("wd", "rescale_grad", "clip_gradient")
_MOST_MOMENTUM = 0.9999


@dataclass(frozen=True)
class Elastic:
    """Elastic averaging (EASGD): center += alpha * sum over clients of (w - center).

    Zhang, Choromanska and LeCun 2015 (arXiv 1412.6651); MXNET-MPI (Mamidala et al. 2018), equations 2, 3.
    Each client does w -= alpha (w - center) with the same center, the one before the exchange. With one
    client at a time (``async-mpi``) every alpha in [0, 1] is stable; if p clients are added up at once
    (``sync-mpi``), alpha must stay below 2 / (p + 1), and the authors use 0.9 / p.

    Attributes:
        alpha: Moving rate, in [0, 1].
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_number("alpha", self.alpha, 0.0, 1.0)

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        return OptimizerSpec(name="elastic", live=Live(lr=1.0), params={"alpha": self.alpha})


@dataclass(frozen=True, init=False)
class _Around:
    """An optimizer around another one."""

    optimizer: str
    hyper: dict[str, Any]

    def __init__(self, optimizer: str, *, learning_rate: float, **hyper: Any) -> None:
        """Describe the optimizer.

        Args:
            optimizer: Registered name of the other one: a rule of the servers, or any that MXNet registers.
            learning_rate: Its learning rate.
            hyper: Its other hyper-parameters, by the names of MXNet's constructor.

        Raises:
            UsageError: A number is out of bounds. The servers check the other hyper-parameters.
        """
        if not isinstance(optimizer, str):
            raise UsageError(f"{type(self).__name__} wants an optimizer's name, not {optimizer!r}")
        check_number("learning_rate", learning_rate, 0.0)
        for name in _LIVE:
            if hyper.get(name) is not None:
                check_number(name, hyper[name], 0.0)
        if "momentum" in hyper:
            check_number("momentum", hyper["momentum"], 0.0, _MOST_MOMENTUM)
        vars(self).update(optimizer=optimizer.lower(), hyper={"learning_rate": learning_rate, **hyper})

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        params = dict(self.hyper)
        live = {name: params.pop(name) for name in _LIVE if name in params}
        inner = OptimizerSpec(
            name=self.optimizer,
            live=Live(lr=params.pop("learning_rate"), **live),
            params=params,
            through_mxnet=self.optimizer not in RULES,
        )
        return self.around(inner)

    def around(self, inner: OptimizerSpec) -> OptimizerSpec:
        """Describe this optimizer around one that is described already, whose live numbers remain."""
        raise NotImplementedError


class Outer(_Around):
    """Any registered optimizer on the pseudo-gradient center - mean of the clients' parameters.

    The clients adopt the new center, which is never decayed. Reddi et al. 2021 (arXiv 2003.00295). For
    example ``Outer("adam", learning_rate=0.01)``; ``LocalSGD``, ``DiLoCo``, ``SlowMo`` and ``BMUF`` are
    presets of this.
    """

    def around(self, inner: OptimizerSpec) -> OptimizerSpec:
        """Describe this optimizer around one that is described already."""
        return _wrapped("outer", inner)


class StalenessAware(_Around):
    """An optimizer of gradients whose learning rate is divided by the gradient's staleness, if that is > 1.

    Zhang et al. 2016 (arXiv 1511.05950). The staleness is the number of updates since the client was sent
    the weight.
    """

    def around(self, inner: OptimizerSpec) -> OptimizerSpec:
        """Describe this optimizer around one that is described already."""
        return _wrapped("staleness-aware", inner)


class DCASGD(_Around):
    """Delay-compensated ASGD: an optimizer of g + lamda g² (w - base), base being what the client was sent.

    Zheng et al. 2017 (arXiv 1609.08326). Unlike MXNet's optimizer of this name, which knows one base per
    key, this one has a base for each client, and takes momentum. The servers keep one copy of the model per
    client.
    """

    lamda: float

    def __init__(
        self, optimizer: str = "sgd", *, learning_rate: float, lamda: float = 0.04, **hyper: Any
    ) -> None:
        """Describe the optimizer.

        Args:
            optimizer: Registered name of the one that takes the compensated gradient.
            learning_rate: Its learning rate.
            lamda: Strength of the compensation.
            hyper: Its other hyper-parameters, by the names of MXNet's constructor.

        Raises:
            UsageError: A number is out of bounds.
        """
        check_number("lamda", lamda, 0.0)
        super().__init__(optimizer, learning_rate=learning_rate, **hyper)
        vars(self).update(lamda=lamda)

    def around(self, inner: OptimizerSpec) -> OptimizerSpec:
        """Describe this optimizer around one that is described already."""
        return _wrapped("dc-asgd", inner, lamda=self.lamda)


def _wrapped(name: str, inner: OptimizerSpec, **own: float) -> OptimizerSpec:
    plain = {"name": inner.name, "params": inner.params, "through_mxnet": inner.through_mxnet}
    return OptimizerSpec(
        name=name,
        live=inner.live,
        params={"inner": plain, **own},
        multi_precision=inner.multi_precision,
    )


@dataclass(frozen=True)
class LocalSGD:
    """Federated averaging: center = mean of the clients' parameters, which they adopt.

    Stich 2019 (arXiv 1805.09767); McMahan et al. 2017 (arXiv 1602.05629). ``Outer`` with SGD at rate 1.
    """

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        return Outer("sgd", learning_rate=1.0).spec()


@dataclass(frozen=True)
class DiLoCo:
    """Nesterov's momentum on center - mean of the clients' parameters.

    Douillard et al. 2023 (arXiv 2311.08105), whose numbers are the defaults. ``Outer`` with NAG.

    Attributes:
        lr: Outer learning rate.
        momentum: Outer momentum.
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_number("lr", self.lr, 0.0)
        check_number("momentum", self.momentum, 0.0, _MOST_MOMENTUM)

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        return Outer("nag", learning_rate=self.lr, momentum=self.momentum).spec()


@dataclass(frozen=True)
class DelayedNesterov:
    """DiLoCo for clients that come one by one: each push steps, each ``num_clients``-th moves the momentum.

    Liu et al. 2024 (arXiv 2401.09135), algorithm 3. A push counts for what the client has learned since it
    was sent the center, whatever the others have done meanwhile; the servers keep one copy of the model per
    client.

    Attributes:
        num_clients: Pushes from one step of the momentum to the next.
        lr: Outer learning rate.
        momentum: Outer momentum.
    """

    num_clients: int
    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_count("num_clients", self.num_clients)
        check_number("lr", self.lr, 0.0)
        check_number("momentum", self.momentum, 0.0, _MOST_MOMENTUM)

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        params = {"momentum": self.momentum, "every": self.num_clients}
        return OptimizerSpec(name="delayed-nesterov", live=Live(lr=self.lr), params=params)


@dataclass(frozen=True)
class SlowMo:
    """Slow momentum: u = momentum u + (center - mean of w); center -= lr u.

    Wang et al. 2020 (arXiv 1910.00643), algorithm 1 with a constant learning rate of the clients, by which
    the paper divides u and multiplies the step. ``Outer`` with SGD. The authors use lr 1 and a momentum
    of 0.4 to 0.8.

    Attributes:
        lr: Slow learning rate.
        momentum: Slow momentum.
    """

    lr: float = 1.0
    momentum: float = 0.7

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_number("lr", self.lr, 0.0)
        check_number("momentum", self.momentum, 0.0, _MOST_MOMENTUM)

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        return Outer("sgd", learning_rate=self.lr, momentum=self.momentum).spec()


@dataclass(frozen=True)
class BMUF:
    """Blockwise model-update filtering: d = momentum d + lr (mean of w - center); center += d.

    Chen and Huo 2016 (ICASSP, "Scalable training of deep learning machines by incremental block training"),
    with classical block momentum, 1 - 1 / clients, and block learning rate 1. ``Outer`` with SGD.

    Attributes:
        num_clients: Number of clients, from which the momentum follows.
        lr: Block learning rate.
    """

    num_clients: int
    lr: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_count("num_clients", self.num_clients)
        check_number("lr", self.lr, 0.0)

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        return Outer("sgd", learning_rate=self.lr, momentum=1.0 - 1.0 / self.num_clients).spec()
