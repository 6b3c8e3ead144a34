"""What the optimizer of a store says about the parameters behind its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from kvstore_mpi.records import Key

_LAZY = (mx.optimizer.SGD, mx.optimizer.Adam)
"""Classes of MXNet's that update no other rows than the gradient has, if told ``lazy_update``."""


_ROW_SPARSE = "1"
"""How a symbol writes the storage type of a row-sparse variable."""

_YES = frozenset({"True", "true", "1"})
"""How it writes what is true."""


def parameter_of(updater: Any, key: Key) -> Any:
    """Return Gluon's parameter behind a key, as far as the optimizer of an updater knows it."""
    optimizer = getattr(updater, "optimizer", None)
    return getattr(optimizer, "param_dict", {}).get(key)


def has_sparse_gradient(updater: Any, key: Key) -> bool:
    """Tell whether the optimizer's owner, a Trainer, has said that a parameter's gradient is row-sparse."""
    return getattr(parameter_of(updater, key), "_grad_stype", "default") == "row_sparse"


def frozen_keys(optimizer: Any) -> list[Key]:
    """Return the keys of parameters of Gluon that have no gradient, which are never pushed."""
    return [key for key, each in optimizer.param_dict.items() if each.grad_req == "null"]


def knows_table(optimizer: Any) -> bool:
    """Tell whether an optimizer of MXNet's knows that a weight, or its gradient, is row-sparse.

    From a Trainer it has the parameters, and from a Module, which makes it of a name, the symbol.
    """
    if any(map(is_sparse, optimizer.param_dict.values())):
        return True
    attributes = optimizer.sym_info[0] if optimizer.sym_info else {}
    names = set(optimizer.idx2name.values())  # of the parameters, and not of data
    return any(
        each.get("sparse_grad") in _YES or (name in names and each.get("__storage_type__") == _ROW_SPARSE)
        for name, each in attributes.items()
    )


def is_sparse(parameter: Any) -> bool:
    """Tell whether a parameter of Gluon, or its gradient, is row-sparse."""
    return "row_sparse" in {getattr(parameter, "_stype", ""), getattr(parameter, "_grad_stype", "")}


def is_lazy(updater: Any, dtype: str) -> bool:
    """Tell whether an updater changes no other rows of a weight of this type than the gradient has."""
    optimizer: Any = getattr(updater, "optimizer", None)
    if type(optimizer) not in _LAZY or not optimizer.lazy_update:
        return False
    has_copy = optimizer.multi_precision and dtype == "float16"
    return not (type(optimizer) is mx.optimizer.SGD and has_copy)  # for which SGD has a dense kernel only


def shape_of(param: Any) -> tuple[int, ...]:
    """Return the shape of a parameter; those of an imported block have it with their values only."""
    known = param.shape
    return tuple(param.data().shape if known is None else known)


def shape_is_known(param: Any) -> bool:
    """Return whether a parameter has its shape; that of a layer without ``in_units`` comes from a batch."""
    # An imported block's parameters have none, and values from the start. Unknown lengths are 0, or -1.
    return param.shape is None or all(length > 0 for length in param.shape)


def check_keys(optimizer: Any, keys: Collection[Key]) -> None:
    """Raise where an optimizer that a store is given next knows parameters, but none of the store's.

    Raises:
        UsageError: It is another Module's, and would take the place of the one that updates these keys.
    """
    known = {*getattr(optimizer, "param_dict", ()), *getattr(optimizer, "idx2name", {}).values()}
    if keys and known and known.isdisjoint(keys):
        raise UsageError(
            f"a store has one optimizer, and this one is of other keys, such as {min(known, key=str)!r}, "
            f"than those that it has, such as {next(iter(keys))!r}: create one store for each Trainer or "
            "Module"
        )
