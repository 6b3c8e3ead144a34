"""Buffers on a device: ranks exchange its memory, by a GPU-aware MPI or by CUDA's handles.

The twin of ``gpu.DeviceMemory``. Calls return when the device has done what the next step needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import cupy
import numpy as np

from kvstore_mpi.tensor_collectives.gpu import DeviceMemory, divide_on_device, reduce_on_device
from kvstore_mpi.tensor_collectives.tensor import Tensor, accumulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.tensor_collectives.tensor import Operation

Array = np.ndarray[Any, Any]


class DirectMemory(NamedTuple):
    """Where tensors of CuPy arrays lie, and their buffers on one device.

    Attributes:
        device: Number of that device; it reaches those of the vectors.
    """

    device: int

    def reducer(self, tensor: Tensor, operation: Operation, into: Tensor) -> Any:
        """Make what works on a tensor."""
        return DeviceMemory.reducer(tensor, operation, into)

    def allocate(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Make an array that transfers may fill; CuPy keeps the memory for the next of its size."""
        with cupy.cuda.Device(self.device):
            return cupy.empty(size, dtype)

    def buffer(self, into: Tensor) -> Any:
        """Return a buffer for a tensor."""
        return self.allocate(into.size, accumulator(into.dtype))

    def copy(self, target: Any, source: Any) -> None:
        """Copy between a buffer and an array of the host, either way."""
        with cupy.cuda.Device(self.device):
            if isinstance(target, np.ndarray):
                np.copyto(target, cupy.asnumpy(source), casting="same_kind")
            else:
                target.set(source.astype(target.dtype))
                cupy.cuda.get_current_stream().synchronize()

    def combine(
        self, targets: Sequence[Any], sources: Sequence[Any], operation: Operation, divisor: int = 1
    ) -> None:
        """Do what ``local_reduce.combine`` does, for one target, which is the first source; in its bits.

        CuPy's own functions take what is smaller than normal for 0.
        """
        [target] = targets
        with cupy.cuda.Device(self.device):
            for source in sources[1:]:
                reduce_on_device(Tensor([source]), target, target, operation=operation.name)
            if divisor != 1:
                divide_on_device(target, divisor)
            cupy.cuda.get_current_stream().synchronize()
