"""Row-sparse weights that workers update with optimizers that are lazy with such weights only.

The store has all rows of such a weight in a dense array. MXNet's FTRL sets rows of a dense weight to zero
that have had no gradient; so it is given a row-sparse array over the memory of the dense one.
This file must not know whose gradients they are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging, dtype_name
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import rows_in, write_ids
from kvstore_mpi.server_optimizers.through_mxnet import leaves, map_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from mxnet.ndarray import NDArray

    from kvstore_mpi.records import Key


class SparseStaging(Staging):
    """A staging array over the memory of a row-sparse array that has all rows."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        """Allocate both."""
        self._rows = native.make_rows(shape, dtype, shape[0])
        self._has_ids = False
        values = rows_in(self._rows, shape[0], math.prod(shape[1:]), dtype)
        super().__init__(shape, dtype, lambda *_: values.reshape(-1))

    @property
    def as_rows(self) -> NDArray:
        """The row-sparse array, which MXNet's engine takes for one that has nothing to do with it."""
        # Not before somebody wants it: memory that nobody has written takes no place, and these are 8 bytes
        # for each row, which most optimizers never read.
        if not self._has_ids:
            write_ids(self._rows, np.arange(self.shape[0]))
            self._has_ids = True
        return self._rows


def update(
    updater: Any,
    key: Key,
    gradient: NDArray,
    weight: NDArray,
    sparse: SparseStaging | None,
    *,
    meet: Callable[[list[NDArray]], None],
) -> None:
    """Queue an update, from the rows of a gradient.

    Args:
        updater: MXNet's.
        key: Of the weight.
        gradient: Row-sparse.
        weight: With all rows, dense.
        sparse: Whose memory that is; ``None`` of a weight that is dense for its user.
        meet: Queues an operation that writes some arrays, and does nothing.
    """
    if sparse is None or not _wants_rows(updater, dtype_name(weight)):
        updater(key, gradient, weight)
        return
    if key in updater.states:  # what servers have saved is dense
        updater.states[key] = map_leaves(updater.states[key], _with_all_rows)
    as_rows = sparse.as_rows
    # What is queued for one array must not pass what is queued for the other.
    meet([weight, as_rows])
    updater(key, gradient, as_rows)
    meet([weight, as_rows])


def make_states_dense(states: dict[Key, Any]) -> None:
    """Make states dense that MXNet has saved of row-sparse weights: ours are dense, as these have to be."""
    for key, state in states.items():
        states[key] = map_leaves(state, _dense)


def states_as_saved(optimizer: Any, key: Key, state: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return a state of a row-sparse weight in the form that MXNet has for it, arrays of all rows.

    Args:
        optimizer: MXNet's, which the state is of.
        key: Of the weight.
        state: In MXNet's form, dense.
        shape: Of the weight.
        dtype: NumPy name of its type.
    """
    # Beside dense states MXNet's lazy kernels give way to others, which do not write them back.
    if optimizer.multi_precision and dtype == "float16":
        return state  # for which it has no lazy kernels
    weight = mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype)
    forms = iter(leaves(optimizer.create_state(key, weight)))
    return map_leaves(state, lambda leaf: leaf if native.is_dense(next(forms)) else _with_all_rows(leaf))


def _dense(state: NDArray) -> NDArray:
    return state if native.is_dense(state) else state.tostype("default")


def _wants_rows(updater: Any, dtype: str) -> bool:
    """Tell whether an updater leaves other rows than the gradient has alone in row-sparse weights only."""
    optimizer: Any = getattr(updater, "optimizer", None)
    return type(optimizer) is mx.optimizer.Ftrl and dtype == "float32"  # the type of its states


def _with_all_rows(state: NDArray) -> NDArray:
    """Return a dense array as a row-sparse one that has all rows; a row-sparse one as it is."""
    if not native.is_dense(state):
        return state
    copy = SparseStaging(native.shape_of(state), dtype_name(state))
    copy.buffer[:] = state.asnumpy().reshape(-1)
    return copy.as_rows
