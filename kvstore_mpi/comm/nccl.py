"""Sums and copies by NCCL through CuPy, for ranks that have a GPU each; all else by another communicator.

Arrays stay on the host, as exchange buffers do: they go to the rank's GPU and come back. Used by one thread
only. Imports CuPy when it is used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.comm.delegating import DelegatingCommunicator
from kvstore_mpi.comm.summable import restore, summable
from kvstore_mpi.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.interfaces import Communicator

Array = np.ndarray[Any, Any]

_NO_CUPY = "CuPy is not installed; pip install 'kvstore_mpi[gpu]'"
_NAMES = {
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "int8": "NCCL_INT8",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "uint8": "NCCL_UINT8",
    "uint32": "NCCL_UINT32",
    "uint64": "NCCL_UINT64",
}
"""Other types have no sum in NCCL, and are left to the other communicator."""


class NcclCommunicator(DelegatingCommunicator):
    """The ranks of another communicator, each with a GPU of its own."""

    def __init__(self, inner: Communicator) -> None:
        """Take ownership of a communicator, and meet over NCCL; called by all its ranks.

        Args:
            inner: Brings the ranks together, and does what NCCL does not.

        Raises:
            ConfigurationError: A rank has no CuPy, no GPU of its own or no NCCL; on all ranks, and it says
                which.
        """
        super().__init__(inner)
        self._device_id = inner.local_rank()
        ranks_here = next(len(ranks) for ranks in inner.hosts() if self.rank in ranks)
        self._cupy, problem = _find(ranks_here)
        problems = [inner.broadcast_bytes(problem.encode(), rank).decode() for rank in range(self.size)]
        missing = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text]
        if missing:
            raise ConfigurationError(
                f"collective nccl cannot be used: {missing[0]}. Choose another one, or auto"
            )
        self._nccl = self._cupy.cuda.nccl
        number = self._nccl.get_unique_id() if self.rank == 0 else ()
        told = inner.broadcast_bytes(np.array(number, np.int64).tobytes(), 0)
        with self._cupy.cuda.Device(self._device_id):
            unique = tuple(np.frombuffer(told, np.int64).tolist())
            self._ranks = self._nccl.NcclCommunicator(self.size, unique, self.rank)
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._stage = self._cupy.empty(0, np.uint8)

    def allreduce(self, array: Array) -> None:
        """See ``interfaces.Communicator``."""
        work = summable(array)
        kind = self._kind(work)
        if kind is None:
            self._inner.allreduce(array)
            return
        self._on_device(
            work,
            lambda pointer: self._ranks.allReduce(
                pointer, pointer, work.size, kind, self._nccl.NCCL_SUM, self._stream.ptr
            ),
        )
        restore(array, work)

    def prepare_allreduce(self, array: Array) -> Callable[[], None]:
        """See ``interfaces.Communicator``."""
        return partial(self.allreduce, array)

    def reduce(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        work = summable(array)
        kind = self._kind(work)
        if kind is None:
            self._inner.reduce(array, root)
            return
        self._on_device(
            work,
            lambda pointer: self._ranks.reduce(
                pointer, pointer, work.size, kind, self._nccl.NCCL_SUM, root, self._stream.ptr
            ),
            back=self.rank == root,
        )
        if self.rank == root:
            restore(array, work)

    def broadcast(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        data = array.view(np.uint8)
        self._on_device(
            data,
            lambda pointer: self._ranks.bcast(
                pointer, data.size, self._nccl.NCCL_UINT8, root, self._stream.ptr
            ),
            there=self.rank == root,
        )

    def close(self) -> None:
        """See ``interfaces.Communicator``."""
        self._ranks.destroy()
        super().close()

    def _kind(self, array: Array) -> int | None:
        """Return NCCL's name of a type, if it adds that."""
        name = _NAMES.get(array.dtype.name)
        return None if name is None else int(getattr(self._nccl, name))

    def _on_device(
        self, array: Array, call: Callable[[int], object], *, there: bool = True, back: bool = True
    ) -> None:
        """Bring an array to the GPU if it is needed ``there``, queue a call, and bring it ``back``."""
        if not array.size:
            return
        with self._cupy.cuda.Device(self._device_id), self._stream:
            if self._stage.size < array.nbytes:
                self._stage = self._cupy.empty(array.nbytes, np.uint8)
            part = self._stage[: array.nbytes].view(array.dtype)
            if there:
                part.set(array, stream=self._stream)
            call(part.data.ptr)
            if back:
                part.get(stream=self._stream, out=array)
            self._stream.synchronize()


def _find(ranks_here: int) -> tuple[Any, str]:
    """Return CuPy, or what is missing on this host."""
    try:
        import cupy  # noqa: PLC0415  only for this choice
    except ImportError:
        return None, _NO_CUPY
    if getattr(cupy.cuda, "nccl", None) is None:
        return None, "this CuPy finds no NCCL; pip install nvidia-nccl-cu12"
    try:
        gpus = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"there is no GPU ({error})"
    if gpus < ranks_here:
        return None, f"{ranks_here} ranks on this host and {gpus} GPUs; NCCL wants one for each"
    return cupy, ""
