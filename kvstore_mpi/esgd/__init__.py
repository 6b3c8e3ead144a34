"""Loosely coupled clients: elastic averaging and its successors, without MXNet, messages or threads.

The optimizers that users name are those of ``server_optimizers``, files ``center`` and ``wrappers``, and
the presets in ``optimizers``; ``client`` is what a client does with a center, ``compression`` and
``stagger`` how an exchange travels and when.
"""

from __future__ import annotations

from kvstore_mpi.esgd.optimizers import BMUF, DiLoCo, LocalSGD, SlowMo
from kvstore_mpi.server_optimizers.center import DelayedNesterov, Elastic
from kvstore_mpi.server_optimizers.wrappers import DCASGD, Outer, StalenessAware

__all__ = [
    "BMUF",
    "DCASGD",
    "DelayedNesterov",
    "DiLoCo",
    "Elastic",
    "LocalSGD",
    "Outer",
    "SlowMo",
    "StalenessAware",
]
