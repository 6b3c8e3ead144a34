"""The modes that are compared: the six of MXNET-MPI, pure MPI, and two successors of elastic averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstore_mpi import DCASGD, DiLoCo, Elastic, LocalSGD, StalenessAware

from .convergence_training import Mode, sgd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_WORKERS = 12
ALPHA = 0.5
"""The package's default moving rate."""

EFFECTIVE_RATES = (2.0, 1.0, 4.0, 0.5, 8.0, 0.25, 0.12, 0.06, 0.03)
"""Learning rates to choose from, over (1 - momentum); likely ones first, others are then given up soon."""

INTERVALS = (4, 16, 64)
"""Intervals to choose from; MXNET-MPI used 64, the greatest that EASGD's authors tried."""


@dataclass(frozen=True)
class Setting:
    """What is tuned, and the momentum, which is given."""

    lr: float
    momentum: float
    interval: int = 1


@dataclass(frozen=True)
class Family:
    """A mode whose numbers are still to be chosen.

    Attributes:
        name: For tables.
        make: Returns the mode.
        loose: Clients exchange parameters, at an interval that is tuned.
    """

    name: str
    make: Callable[[str, Setting], Mode]
    loose: bool = False

    def mode(self, setting: Setting) -> Mode:
        """Return the mode with these numbers."""
        return self.make(self.name, setting)

    def settings(self, momentum: float, intervals: Sequence[int], *, quick: bool) -> list[Setting]:
        """Return what to choose from; when quick, few rates."""
        rates = EFFECTIVE_RATES[:3] if quick else EFFECTIVE_RATES
        return [
            Setting(round(rate * (1 - momentum), 6), momentum, interval)
            for interval in (intervals if self.loose else (1,))
            for rate in rates
        ]


def _pure_mpi(name: str, s: Setting) -> Mode:
    return Mode(name, 1, None, local=sgd(s.lr, s.momentum))


def _synchronous(clients: int) -> Callable[[str, Setting], Mode]:
    return lambda name, s: Mode(name, clients, sgd(s.lr, s.momentum, sum_of=clients), synchronous=True)


def _asynchronous(clients: int) -> Callable[[str, Setting], Mode]:
    return lambda name, s: Mode(name, clients, sgd(s.lr, s.momentum))


def _staleness_aware(name: str, s: Setting) -> Mode:
    return Mode(name, NUM_WORKERS, StalenessAware("sgd", learning_rate=s.lr, momentum=s.momentum).spec())


def _delay_compensated(name: str, s: Setting) -> Mode:
    return Mode(name, NUM_WORKERS, DCASGD("sgd", learning_rate=s.lr, momentum=s.momentum).spec())


def _elastic(clients: int) -> Callable[[str, Setting], Mode]:
    return lambda name, s: Mode(
        name,
        clients,
        Elastic(ALPHA).spec(),
        local=sgd(s.lr, s.momentum),
        interval=s.interval,
        alpha=ALPHA,
    )


def _outer(optimizer: DiLoCo | LocalSGD, *, synchronous: bool = True) -> Callable[[str, Setting], Mode]:
    return lambda name, s: Mode(
        name, 2, optimizer.spec(), synchronous, local=sgd(s.lr, s.momentum), interval=s.interval
    )


FAMILIES = (
    Family("pure-mpi", _pure_mpi),
    Family("dist-sgd", _synchronous(NUM_WORKERS)),
    Family("dist-asgd", _asynchronous(NUM_WORKERS)),
    Family("dist-asgd-stale", _staleness_aware),
    Family("dist-asgd-dc", _delay_compensated),
    Family("dist-esgd", _elastic(NUM_WORKERS), loose=True),
    Family("mpi-sgd", _synchronous(2)),
    Family("mpi-asgd", _asynchronous(2)),
    Family("mpi-esgd", _elastic(2), loose=True),
    Family("mpi-diloco", _outer(DiLoCo()), loose=True),
    Family("mpi-diloco-async", _outer(DiLoCo(), synchronous=False), loose=True),
    Family("localsgd", _outer(LocalSGD()), loose=True),
)
"""``dist`` is 12 clients of one worker, ``mpi`` and ``localsgd`` 2 clients of 6, ``pure-mpi`` one of 12."""
