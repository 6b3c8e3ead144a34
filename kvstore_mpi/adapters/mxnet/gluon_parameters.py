"""What the optimizer of a store says about the parameters behind its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

if TYPE_CHECKING:
    from kvstore_mpi.adapters.mxnet.updates import Updates
    from kvstore_mpi.records import Key

_LAZY = (mx.optimizer.SGD, mx.optimizer.Adam)
"""Classes of MXNet's that update no other rows than the gradient has, if told ``lazy_update``."""


def parameter_of(updates: Updates, key: Key) -> Any:
    """Return Gluon's parameter behind a key, as far as the optimizer knows it."""
    optimizer = getattr(updates.updater, "optimizer", None)
    return getattr(optimizer, "param_dict", {}).get(key)


def has_sparse_gradient(updates: Updates, key: Key) -> bool:
    """Tell whether the optimizer's owner, a Trainer, has said that a parameter's gradient is row-sparse."""
    return getattr(parameter_of(updates, key), "_grad_stype", "default") == "row_sparse"


def is_lazy(updater: Any) -> bool:
    """Tell whether an updater changes no other rows than the gradient has."""
    optimizer: Any = getattr(updater, "optimizer", None)
    return type(optimizer) in _LAZY and optimizer.lazy_update
