"""A key's arrays on the GPUs of a worker as one tensor (MXNET-MPI, section 6.1), for the store.

One kernel reads them all and writes their sum to the staging array, and one reads that and writes them
all (``tensor_collectives/gpu/device_memory.py``). Arrays for which there is no kernel are left to MXNet's
copies (``arrays.py``), and so are arrays on the host, of which MXNet may keep one in another layout. This
file must not know about keys, stores or the engine.
"""

from __future__ import annotations

import logging
import os
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.arrays import ZERO_COPY_DTYPES, view_of
from kvstore_mpi.adapters.mxnet.bridge.pinned_memory import CudaRuntime, PinningError
from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Tensor
from kvstore_mpi.transport.shared_memory import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging
    from kvstore_mpi.tensor_collectives.executor import LocalReducer

log = logging.getLogger("kvstore_mpi.mxnet")

_SUM = OPERATIONS["sum"]


class DeviceTensors:
    """Pinned memory for copies of one store's arrays on GPUs, and kernels if the job asks for them.

    Those are for several GPUs (``NodeConfig.gpu_kernels``): of one, MXNet's own copy is as fast.
    """

    least_bytes = LARGE_BYTES
    """Staging arrays of smaller keys, and of types whose staging arrays are MXNet's own memory, may have a
    page in common, which could not be registered twice."""

    def __init__(self, *, wanted: bool) -> None:
        """Load nothing yet; without ``wanted`` there are no kernels."""
        self._wanted = wanted
        self._cuda = CudaRuntime.of_mxnet()

    def are_for(self, staging: Staging, arrays: Sequence[NDArray]) -> bool:
        """Pin the staging array of a key whose arrays are on GPUs; tell whether there are kernels for them.

        Those on one GPU might be parts of one array, which the engine cannot write twice at a time. Called
        by the thread that uses MXNet; what is slow the first time happens here, not in the engine.

        Raises:
            ConfigurationError: The job asks for kernels and there is no CuPy.
        """
        if (
            self._cuda is None
            or staging.buffer.nbytes < self.least_bytes
            or staging.dtype not in ZERO_COPY_DTYPES
        ):
            return False
        gpus = [gpu for gpu in map(native.gpu_of, arrays) if gpu is not None]
        if not gpus or not self._pin(staging, gpus[0]):
            return False
        return self._wanted and len(gpus) == len(arrays) and self._have_kernels(staging, arrays, gpus)

    def _have_kernels(self, staging: Staging, arrays: Sequence[NDArray], gpus: Sequence[int]) -> bool:
        if not 1 < len(gpus) == len(set(gpus)) or self._kernels is None:
            return False
        if os.environ.get("MXNET_ENABLE_GPU_P2P") == "0":  # MXNet's word for the same
            return False
        reached = self._kernels.works_on(tuple(gpus), staging.dtype)
        copied_as_they_are = all(native.is_dense(a) and native.dtype_of(a) == staging.dtype for a in arrays)
        return reached and copied_as_they_are and self._are_compiled(staging.dtype, gpus)

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
        tensor = Tensor([view_of(array, staging.dtype, staging.buffer.size) for array in arrays])
        reducer: LocalReducer = self._kernels.CupyReducer(tensor, _SUM, ready=True)
        return reducer

    def _pin(self, staging: Staging, gpu: int) -> bool:
        """Let GPUs reach a staging array as long as it lives, the first time; tell whether they do."""
        if not staging.is_pinned and self._cuda is not None:
            try:
                unpin = self._cuda.pin(staging.buffer, gpu)
            except PinningError as error:
                log.warning(
                    "arrays on GPUs are copied slowly, through memory that is not pinned: %s", error
                )
                self._cuda = None
                return False
            weakref.finalize(staging.buffer, unpin).atexit = False  # nor is it needed then
            staging.is_pinned = True
        return True

    def _are_compiled(self, dtype: str, gpus: Sequence[int]) -> bool:
        """Compile the kernels, the first time."""
        try:
            self._kernels.prepare(dtype, len(gpus), gpus[0])
        except Exception as error:  # noqa: BLE001  of drivers and compilers; MXNet can do without
            log.warning("arrays on GPUs are left to MXNet's copies, since kernels fail: %s", error)
            self._kernels = None
            return False
        return True

    @cached_property
    def _kernels(self) -> Any:
        """The kernels for GPUs; ``None`` once they have failed."""
        try:
            from kvstore_mpi.tensor_collectives.gpu import device_memory  # noqa: PLC0415  needs CuPy
        except ImportError as error:
            raise ConfigurationError(
                f"--gpu-kernels needs CuPy, which cannot be imported ({error}): pip install "
                "'kvstore_mpi[gpu]', or leave the option out and let MXNet copy"
            ) from error
        return device_memory
