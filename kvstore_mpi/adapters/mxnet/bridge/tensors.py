"""MXNet's arrays as tensors of a ``TensorGroup``, without a copy. For who calls collectives directly.

The store has its own way to them (``devices.py``), in operations of MXNet's engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxnet.base import _LIB, check_call

from kvstore_mpi.adapters.mxnet.bridge import arrays, native
from kvstore_mpi.tensor_collectives.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mxnet.ndarray import NDArray


def tensor_of(vectors: Sequence[NDArray]) -> Tensor:
    """Put arrays together to a tensor on the same memory: CuPy's view of GPUs, NumPy's of the host.

    Waits for what MXNet has under way with them. Until the collective has ended they belong to the group:
    MXNet's engine does not know of it.

    Args:
        vectors: One array for each device, dense, of one size and type; the caller keeps them.

    Returns:
        The tensor, flat.

    Raises:
        MismatchError: Sizes or types differ.
    """
    return Tensor([_view(vector) for vector in vectors])


def _view(vector: NDArray) -> Any:
    check_call(_LIB.MXNDArrayWaitToWrite(vector.handle))
    if native.gpu_of(vector) is None:
        return arrays.memory_of(vector, vector.dtype.__name__)  # in the plain layout from now on
    return arrays.view_of(vector, arrays.dtype_name(vector), vector.size)
