"""MXNet's arrays as tensors of a ``TensorGroup``, without a copy. For who calls collectives directly.

The store does not use this: it may not touch the memory of weights, whose layout is MXNet's own affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from mxnet.base import _LIB, check_call

from ..tensor_collectives.tensor import Tensor
from . import arrays

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

_CUDA = 2
"""DLPack's number for devices of CUDA."""


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
    if vector.context.device_type != "gpu":
        check_call(_LIB.MXNDArrayWaitToWrite(vector.handle))
        return arrays.memory_of(vector, vector.dtype.__name__)
    import cupy  # noqa: PLC0415  arrays on GPUs alone need it

    return cupy.from_dlpack(_Exporter(vector)).reshape(-1)


class _Exporter:
    """Gives away an array as the array API's DLPack protocol has it, which MXNet is older than."""

    def __init__(self, array: NDArray) -> None:
        self._array = array

    def __dlpack__(self, **_: Any) -> Any:
        """Return the capsule when MXNet has done what it had under way."""
        return self._array.to_dlpack_for_write()

    def __dlpack_device__(self) -> tuple[int, int]:
        """Say where the memory is."""
        return _CUDA, self._array.context.device_id
