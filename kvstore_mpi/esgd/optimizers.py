"""Presets of ``Outer`` for loosely coupled clients, as users name them in ``kv.set_optimizer``.

Each is a frozen record that checks its numbers and knows its ``spec()``, which travels to the servers. This
file must not know MXNet, nor how a rule computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore_mpi.server_optimizers.center import MOST_MOMENTUM
from kvstore_mpi.server_optimizers.spec import OptimizerSpec, check_count, check_number
from kvstore_mpi.server_optimizers.wrappers import Outer


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
        check_number("momentum", self.momentum, 0.0, MOST_MOMENTUM)

    def spec(self) -> OptimizerSpec:
        """Describe the optimizer for the servers."""
        return Outer("nag", learning_rate=self.lr, momentum=self.momentum).spec()


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
        check_number("momentum", self.momentum, 0.0, MOST_MOMENTUM)

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
