"""A key's arrays on all GPUs of a worker as one tensor (MXNET-MPI, section 6.1), for the store.

One kernel reads them all and writes their sum to the staging array, and one reads that and writes them
all (``tensor_collectives/gpu.py``). What there is none for is left to MXNet's copies (``arrays.py``), and
so is the host, where MXNet may keep an array in another layout. This file must not know about keys, stores
or the engine.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Sequence

from ..tensor_collectives.tensor import OPERATIONS, Tensor
from ..transport.shared_memory import LARGE_BYTES
from . import native
from .arrays import ZERO_COPY_DTYPES, view_of

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from ..tensor_collectives.executor import LocalReducer
    from .arrays import Staging

_SUM = OPERATIONS["sum"]


class DeviceTensors:
    """The kernels that one store has."""

    least_bytes = LARGE_BYTES
    """Smaller arrays are left to MXNet: their staging arrays may have a page in common, which could not be
    registered twice."""

    def are_for(self, staging: Staging, arrays: Sequence[NDArray]) -> bool:
        """Tell whether there are kernels for these arrays of one key, one per device.

        Those on one GPU might be parts of one array, which the engine cannot write twice at a time.
        """
        if staging.buffer.nbytes < self.least_bytes or staging.dtype not in ZERO_COPY_DTYPES:
            return False
        gpus = [native.gpu_of(array) for array in arrays]
        if None in gpus or not 0 < len(gpus) == len(set(gpus)) or self._kernels is None:
            return False
        return all(map(native.is_dense, arrays)) and self._kernels.works_on(tuple(gpus), staging.dtype)

    def reduce(self, staging: Staging, values: Sequence[NDArray]) -> None:
        """Write the sum of the values, in their order, to the staging array; returns when it is there.

        In an operation of the engine that reads the values and writes the staging array.
        """
        reducer = self._reducer(staging, values)
        reducer.reduce(staging.buffer, 0, staging.buffer.size, None)
        reducer.wait(0, staging.buffer.size)

    def share(self, staging: Staging, outs: Sequence[NDArray]) -> None:
        """Copy the staging array to others; returns when it is there.

        In an operation of the engine that reads the staging array and writes the others.
        """
        reducer = self._reducer(staging, outs)
        reducer.share(staging.buffer, 0, staging.buffer.size)
        reducer.wait(0, staging.buffer.size)

    def _reducer(self, staging: Staging, arrays: Sequence[NDArray]) -> LocalReducer:
        staging.pin(self._kernels.DeviceMemory.pin)
        tensor = Tensor([view_of(array, staging.dtype, staging.buffer.size) for array in arrays])
        reducer: LocalReducer = self._kernels.CupyReducer(tensor, _SUM, ready=True)
        return reducer

    @cached_property
    def _kernels(self) -> Any:
        """The kernels for GPUs; ``None`` without CuPy."""
        try:
            from ..tensor_collectives import gpu  # noqa: PLC0415  arrays on GPUs alone need it
        except ImportError:
            return None
        return gpu
