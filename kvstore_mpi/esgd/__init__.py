"""Loosely coupled clients: elastic averaging and its successors, without MXNet, messages or threads.

``optimizers`` is what users name, ``client`` what a client does with a center, ``compression`` and
``stagger`` how an exchange travels and when. The servers' arithmetic is in ``server_optimizers``, files
``center`` and ``wrappers``.
"""

from __future__ import annotations

from kvstore_mpi.esgd.optimizers import (
    BMUF,
    DCASGD,
    DelayedNesterov,
    DiLoCo,
    Elastic,
    LocalSGD,
    Outer,
    SlowMo,
    StalenessAware,
)

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
