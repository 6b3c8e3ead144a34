"""What is refused of a store whose server optimizer takes parameters: gradients, and what has no mean.

This file must not know about stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from kvstore_mpi.records import Key


def check(key: Key, value: NDArray, dtype: str) -> None:
    """Raise where a key's value, of a dtype, cannot be parameters.

    Raises:
        UnsupportedError: It is row-sparse.
        UsageError: It is not floating-point.
    """
    if not native.is_dense(value):
        raise UnsupportedError(
            f"key {key!r} is row-sparse, and so it seems a gradient: the server optimizer of this "
            "store takes parameters, which must be dense"
        )
    if not dtype.startswith("float"):
        raise UsageError(f"key {key!r} is {dtype}: only floating-point parameters can be averaged")


def missing_out(key: Any) -> UsageError:
    """Return the error of a pushpull that says nowhere where the center is to be written."""
    return UsageError(
        f"pushpull of {key!r} without out: the server optimizer of this store takes parameters, but these "
        "seem gradients, as of a Trainer or Module, and would drive the center to zero; use "
        "kvstore_mpi.mxnet.ElasticTrainer, or kv.pushpull(key, params, out=center)"
    )
