"""Local reductions by NCCL through CuPy: the twin of ``gpu.py`` for one of the paper's designs.

NCCL is blocking here, as it is in the paper's: a call returns when its result is there. Each vector must be
on a GPU of its own, which is found out when it is used.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.tensor_collectives.gpu import DeviceMemory
from kvstore_mpi.tensor_collectives.local_reduce import combine

if TYPE_CHECKING:
    from kvstore_mpi.tensor_collectives.tensor import Operation, Tensor

Array = np.ndarray[Any, Any]

_TYPES = {"float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64"}
_OPERATIONS = {"sum": "NCCL_SUM", "mean": "NCCL_SUM", "max": "NCCL_MAX", "min": "NCCL_MIN"}


class NcclMemory(DeviceMemory):
    """Where tensors of CuPy arrays on several GPUs lie, if NCCL reduces them."""

    @staticmethod
    def reducer(tensor: Tensor, operation: Operation, into: Tensor) -> Any:
        """Make what works on a tensor."""
        return NcclReducer(tensor, operation, into=into)


class NcclReducer:
    """Works on a tensor of CuPy arrays of which each is on a GPU of its own."""

    def __init__(self, tensor: Tensor, operation: Operation, *, into: Tensor) -> None:
        """Reduce a tensor.

        Args:
            tensor: Vectors of float32 or float64, one for each of at least two GPUs.
            operation: What becomes of numbers that meet.
            into: Where results go; vectors on the same GPUs.

        Raises:
            UsageError: The vectors are not on GPUs of their own.
            UnsupportedError: CuPy has no NCCL, or the type is none of these.
        """
        self._nccl = getattr(cupy.cuda, "nccl", None)
        if self._nccl is None:
            raise UnsupportedError("design nccl: this CuPy finds no NCCL; pip install nvidia-nccl-cu12")
        if tensor.dtype.name not in _TYPES:
            raise UnsupportedError(f"design nccl: {' and '.join(_TYPES)} only, not {tensor.dtype}")
        self._devices = tuple(vector.device.id for vector in _vectors(tensor))
        targets = tuple(vector.device.id for vector in _vectors(into))
        if len(set(self._devices)) < max(2, len(self._devices)) or targets != self._devices:
            raise UsageError(
                "design nccl needs every vector on a GPU of its own, two or more, and results on the same; "
                f"these are on {self._devices}, results on {targets}"
            )
        self._tensor, self._into, self._operation = tensor, into, operation
        self._kind = getattr(self._nccl, _TYPES[tensor.dtype.name])
        self._rule = getattr(self._nccl, _OPERATIONS[operation.name])
        self._ranks = _communicators(self._devices)

    def reduce(self, buffer: Array, lo: int, hi: int, incoming: Array | None) -> None:
        """Reduce the vectors by NCCL, bring the result to the host, and add there what has come."""
        if lo == hi:
            return
        with cupy.cuda.Device(self._devices[0]):
            whole = cupy.empty(hi - lo, self._tensor.dtype)
        sources = [vector[lo:hi].data.ptr for vector in _vectors(self._tensor)]
        with _Group(self._nccl, self._devices) as streams:
            for rank, source, stream in zip(self._ranks, sources, streams):
                rank.reduce(source, whole.data.ptr, hi - lo, self._kind, self._rule, 0, stream)
        part = buffer[lo:hi]
        whole.get(out=part)
        if incoming is not None:
            combine([part], [incoming, part], self._operation)

    def share(self, buffer: Array, lo: int, hi: int) -> None:
        """Copy a range of the buffer to the first vector, and by NCCL from there to the others."""
        if lo == hi:
            return
        targets = [vector[lo:hi] for vector in _vectors(self._into)]
        with cupy.cuda.Device(self._devices[0]):
            targets[0].set(buffer[lo:hi])
            cupy.cuda.get_current_stream().synchronize()
        with _Group(self._nccl, self._devices) as streams:
            for rank, target, stream in zip(self._ranks, targets, streams):
                rank.bcast(target.data.ptr, hi - lo, self._kind, 0, stream)

    def wait(self, lo: int, hi: int) -> None:
        """Everything is done when a call returns."""


class _Group:
    """Calls of all GPUs' communicators, which NCCL takes together; leaving it waits for their end."""

    def __init__(self, nccl: Any, devices: tuple[int, ...]) -> None:
        self._nccl = nccl
        self._devices = devices

    def __enter__(self) -> list[int]:
        streams = []
        for device in self._devices:
            with cupy.cuda.Device(device):
                streams.append(cupy.cuda.get_current_stream().ptr)
        self._nccl.groupStart()
        return streams

    def __exit__(self, *error: object) -> None:
        with ExitStack() as stack:
            for device in self._devices:
                stack.callback(_synchronise, device)
            self._nccl.groupEnd()


def _synchronise(device: int) -> None:
    with cupy.cuda.Device(device):
        cupy.cuda.get_current_stream().synchronize()


def _vectors(tensor: Tensor) -> list[Any]:
    return list(tensor.vectors)


@lru_cache(maxsize=8)
def _communicators(devices: tuple[int, ...]) -> list[Any]:
    ranks: list[Any] = cupy.cuda.nccl.NcclCommunicator.initAll(list(devices))
    return ranks
