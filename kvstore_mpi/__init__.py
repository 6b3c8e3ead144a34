"""MPI clients and parameter servers behind MXNet's KVStore.

Importing this package imports none of mxnet, mpi4py and cupy. ``import kvstore_mpi.mxnet`` registers
the store types ``sync-mpi`` and ``async-mpi``; under ``mpilaunch`` that has happened already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.epoch_report import report_epoch
from kvstore_mpi.sharding import shard
from kvstore_mpi.tracing.annotation import annotate

if TYPE_CHECKING:
    from kvstore_mpi.esgd import (
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
    "__version__",
    "annotate",
    "report_epoch",
    "shard",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the server optimizers, and with them NumPy, when they are asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvstore_mpi import esgd  # noqa: PLC0415

    return getattr(esgd, name)
