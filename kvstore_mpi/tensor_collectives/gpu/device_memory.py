"""Reductions and copies on GPUs, with CuPy: between a tensor's vectors and a buffer in pinned host memory.

Kernels read the vectors and write the sum to the host in one pass, through the address that pinned memory
has on the device (MXNET-MPI, section 6.1); calls return when the kernel is queued. The twin of
``local_reduce.py``. This module imports CuPy.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import cupy
import cupyx
import numpy as np

from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.tensor_collectives.gpu import SOURCE
from kvstore_mpi.tensor_collectives.tensor import accumulator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.tensor_collectives.tensor import Operation, Tensor

Array = np.ndarray[Any, Any]

MOST_VECTORS = 8
BLOCKS_OF_A_MULTIPROCESSOR = 1
THREADS = 128
"""As few as keep a bus busy: more only keep the card from other work (docs/adr/0012)."""
STREAMS = 2
"""One for each ring: what two rings have under way at once need not wait for each other."""
PACK_BYTES = 16
_ALREADY_ENABLED = 704
"""CUDA's number of the error that a device reaches another one already."""

_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
}
_OPERATIONS = {"sum": "Sum", "mean": "Sum", "max": "Max", "min": "Min"}
_INCLUDES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"


def works_on(devices: Sequence[int], dtype: str) -> bool:
    """Tell whether there are kernels for vectors of a type, one on each of these GPUs."""
    first, *others = devices
    known = dtype in _TYPES and len(devices) <= MOST_VECTORS
    return known and all(_reaches(first, other) for other in others)


def view(address: int, size: int, dtype: str, device: int, owner: Any) -> Any:
    """Return memory of a GPU as a CuPy array, which keeps its owner."""
    memory = cupy.cuda.UnownedMemory(address, size * np.dtype(dtype).itemsize, owner, device)
    return cupy.ndarray(size, dtype, cupy.cuda.MemoryPointer(memory, 0))


def prepare(dtype: str, count: int, device: int) -> None:
    """Compile what sums ``count`` vectors into a buffer of their own type, and copies it to them.

    Args:
        dtype: Of the vectors and the buffer.
        count: How many vectors there are.
        device: Works on them.
    """
    with cupy.cuda.Device(device):
        _reduce_kernel(device, dtype, dtype, count, "sum", has_incoming=False)
        _share_kernel(device, dtype, dtype, count)


class DeviceMemory:
    """Where tensors of CuPy arrays lie; their buffers are in memory of the host that devices reach."""

    @staticmethod
    def reducer(tensor: Tensor, operation: Operation, into: Tensor) -> CupyReducer:
        """Make what works on a tensor."""
        return CupyReducer(tensor, operation, into=into)

    @staticmethod
    def allocate(size: int, dtype: np.dtype[Any]) -> Array:
        """Make an array that transfers may fill; CuPy keeps pinned memory for the next of its size."""
        array: Array = cupyx.empty_pinned(size, dtype)
        return array

    @classmethod
    def buffer(cls, into: Tensor) -> Array:
        """Return a buffer for a tensor."""
        return cls.allocate(into.size, accumulator(into.dtype))

    @staticmethod
    def pin(buffer: Array) -> Callable[[], None]:
        """Let memory of the host that is not from ``allocate`` be a buffer; return what ends that.

        It must be ended before the memory is. Devices then have it under its address on the host, as they
        have all memory on the systems that we build for.
        """
        address = buffer.ctypes.data
        cupy.cuda.runtime.hostRegister(address, buffer.nbytes, 0)
        return partial(cupy.cuda.runtime.hostUnregister, address)


class CupyReducer:
    """Works on a tensor of CuPy arrays, on one device or on several that reach each other's memory."""

    def __init__(
        self, tensor: Tensor, operation: Operation, *, into: Tensor | None = None, ready: bool = False
    ) -> None:
        """Reduce a tensor.

        Args:
            tensor: At most 8 vectors; what the current stream has queued comes first.
            operation: What becomes of numbers that meet.
            into: Where results go; the tensor itself if not given.
            ready: Nothing needs to come first: the vectors are what they are to be.

        Raises:
            UsageError: There are too many vectors, or two devices do not reach each other.
            UnsupportedError: There is no kernel for the type.
        """
        if tensor.dtype.name not in _TYPES:
            raise UnsupportedError(
                f"a tensor on GPUs must be {', '.join(_TYPES)}, not {tensor.dtype}; reduce it on the host"
            )
        if len(tensor.vectors) > MOST_VECTORS:
            raise UsageError(f"a tensor has at most {MOST_VECTORS} vectors, not {len(tensor.vectors)}")
        self._vectors: list[Any] = list(tensor.vectors)
        self._tensor = tensor
        self._into = tensor if into is None else into
        self._operation = operation
        self._device = cupy.cuda.Device(self._vectors[0].device.id)
        self._let_reach_each_other()
        self._under_way: dict[tuple[int, int], Any] = {}
        with self._device:
            streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
            if not ready:
                before = cupy.cuda.get_current_stream().record()
                for stream in streams:
                    stream.wait_event(before)
            self._streams = cycle(streams)
        self._blocks = _blocks(self._device.id)

    def reduce(self, buffer: Array, lo: int, hi: int, incoming: Array | None) -> None:
        """Start to reduce what has come, if anything, and the vectors into a range of a pinned buffer.

        That may be of the vectors' own type, in which sums are then rounded once; what comes may not.
        """
        if incoming is None and self._is_copy(self._tensor, buffer):
            [source] = _addresses(self._tensor, lo)
            self._copy(_address(buffer[lo:hi]), source, (lo, hi))
            return
        kernel = _reduce_kernel(
            self._device.id,
            self._tensor.dtype.name,
            buffer.dtype.name,
            len(self._tensor.vectors),
            self._operation.name,
            has_incoming=incoming is not None,
        )
        come = 0 if incoming is None else _address(incoming)
        out = _address(buffer[lo:hi])
        vectors = _addresses(self._tensor, lo)
        widest = max(self._tensor.dtype.itemsize, (buffer if incoming is None else incoming).itemsize)
        self._launch(kernel, (*_eight(vectors), come, out), (*vectors, come, out), (lo, hi), widest)

    def share(self, buffer: Array, lo: int, hi: int) -> None:
        """Start to copy a range of a pinned buffer to all vectors."""
        if self._is_copy(self._into, buffer):
            [target] = _addresses(self._into, lo)
            self._copy(target, _address(buffer[lo:hi]), (lo, hi))
            return
        count = len(self._into.vectors)
        kernel = _share_kernel(self._device.id, self._into.dtype.name, buffer.dtype.name, count)
        source = _address(buffer[lo:hi])
        vectors = _addresses(self._into, lo)
        widest = max(self._into.dtype.itemsize, buffer.itemsize)
        self._launch(kernel, (source, *_eight(vectors)), (source, *vectors), (lo, hi), widest)

    def wait(self, lo: int, hi: int) -> None:
        """Wait for what was started on a range."""
        event = self._under_way.pop((lo, hi), None)
        if event is not None:
            event.synchronize()

    @staticmethod
    def _is_copy(tensor: Tensor, buffer: Array) -> bool:
        """Tell whether there is nothing to add or to convert.

        A copy engine of the card then does it: at 4 MB in 0.09 ms, a kernel in 0.13, which besides takes
        multiprocessors from whoever computes (H200, PCIe 5).
        """
        return len(tensor.vectors) == 1 and tensor.dtype == buffer.dtype

    def _copy(self, to: int, source: int, extent: tuple[int, int]) -> None:
        num_bytes = (extent[1] - extent[0]) * self._tensor.dtype.itemsize
        if not num_bytes:
            return
        stream = next(self._streams)
        runtime = cupy.cuda.runtime
        with self._device, stream:
            runtime.memcpyAsync(to, source, num_bytes, runtime.memcpyDefault, stream.ptr)
            self._under_way[extent] = stream.record()

    def _launch(
        self,
        kernel: Any,
        arguments: tuple[int, ...],
        used: tuple[int, ...],
        extent: tuple[int, int],
        widest: int,
    ) -> None:
        """Start a kernel on a range; `widest` is the size of an element of the widest type in memory."""
        size = extent[1] - extent[0]
        if not size:
            return
        aligned = all(address % PACK_BYTES == 0 for address in used)
        packs = size * widest // PACK_BYTES if aligned else 0
        stream = next(self._streams)  # rings take turns; the next work on this range waits for it first
        with self._device, stream:
            numbers = [np.uint64(argument) for argument in arguments]
            kernel((self._blocks,), (THREADS,), (*numbers, np.int64(packs), np.int64(size)))
            self._under_way[extent] = stream.record()

    def _let_reach_each_other(self) -> None:
        """Allow the device that works to use the memory of the others."""
        vectors: list[Any] = [*self._vectors, *self._into.vectors]
        for vector in vectors:
            other = vector.device.id
            if not _reaches(self._device.id, other):
                raise UsageError(
                    f"GPU {self._device.id} does not reach the memory of GPU {other}; "
                    "give each a rank of its own"
                )
            _enable_access(self._device.id, other)


@lru_cache(maxsize=64)
def _blocks(device: int) -> int:
    return BLOCKS_OF_A_MULTIPROCESSOR * int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])


@lru_cache(maxsize=64)
def _reaches(device: int, other: int) -> bool:
    return device == other or bool(cupy.cuda.runtime.deviceCanAccessPeer(device, other))


@lru_cache(maxsize=64)
def _enable_access(device: int, other: int) -> None:
    """Once for each pair; whoever else uses the devices may have done it before, which is no error."""
    if device == other:
        return
    with cupy.cuda.Device(device):
        try:
            cupy.cuda.runtime.deviceEnablePeerAccess(other)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != _ALREADY_ENABLED:
                raise


@lru_cache(maxsize=64)
def _reduce_kernel(
    device: int, dtype: str, out: str, count: int, operation: str, *, has_incoming: bool
) -> Any:
    types = f"{_TYPES[dtype]}, {_wide(dtype)}, {_TYPES[out]}"
    incoming = "true" if has_incoming else "false"
    return _compile(device, f"tensor_reduce<{types}, {count}, {incoming}, {_OPERATIONS[operation]}>")


@lru_cache(maxsize=64)
def _share_kernel(device: int, dtype: str, source: str, count: int) -> Any:
    return _compile(device, f"tensor_share<{_TYPES[dtype]}, {_TYPES[source]}, {count}>")


def _wide(dtype: str) -> str:
    return _TYPES[accumulator(np.dtype(dtype) if dtype != "bfloat16" else np.dtype(np.float16)).name]


def _compile(device: int, name: str) -> Any:
    """Return an instance for a device: CuPy loads it where it is asked for it, and nowhere else."""
    source = _INCLUDES + SOURCE.read_text(encoding="ascii")
    module = cupy.RawModule(code=source, options=("-std=c++17",), name_expressions=[name])
    with cupy.cuda.Device(device):
        return module.get_function(name)


def _address(buffer: Any) -> int:
    """Return where a buffer begins, which is on a device or in pinned memory of the host."""
    return int(buffer.data.ptr if isinstance(buffer, cupy.ndarray) else buffer.ctypes.data)


def _addresses(tensor: Tensor, lo: int) -> tuple[int, ...]:
    vectors: list[Any] = tensor.vectors
    return tuple(vector.data.ptr + lo * tensor.dtype.itemsize for vector in vectors)


def _eight(addresses: tuple[int, ...]) -> tuple[int, ...]:
    return (*addresses, *[0] * (MOST_VECTORS - len(addresses)))
