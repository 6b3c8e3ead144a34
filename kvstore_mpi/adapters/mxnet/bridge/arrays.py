"""Staging arrays: the store's own memory, between the user's arrays and the network.

The user's arrays on the host are written by MXNet's own copies alone, and read by them but for large
gradients (``view_of``). Their raw memory is taboo: oneDNN keeps the weights of convolutions in layouts of
its own and changes them under way. A staging array is never given to an operator that might do so. This
file must not know about keys, stores or the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.adapters.pushed_values import PushedValues
    from kvstore_mpi.records import Key

Buffer = np.ndarray[Any, Any]

_ORDINARY = contextlib.nullcontext()

ZERO_COPY_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")
"""What MXNet makes an array of over memory that NumPy owns."""


class Staging:
    """The one array of a key that everything passes through: out as a gradient, back as the result.

    Attributes:
        shape: Shape of the key.
        dtype: NumPy name of its element type.
        buffer: The memory as a 1-D NumPy array; whoever works on it does so in an engine operation.
        array: The same memory as an MXNet array; it has the key's place in the engine's dependencies.
        is_pinned: GPUs reach the buffer.
        is_sparse: The key was initialised with a row-sparse array.
        was_pushed: A value has been pushed.
        loaded: The optimizer state that was loaded before that, on the worker that has loaded it.
        store: Number of the store among whose keys it is; set when the key is initialised.
        pushed: What pulls have to know of pushes; likewise.
        pushes_few: The rows of a table's last push were few; changed in operations that write ``array``.
    """

    pushed: PushedValues
    is_sparse = False
    was_pushed = False
    loaded: Any = None
    store = 0
    pushes_few = False

    def __init__(self, shape: tuple[int, ...], dtype: str, allocate: Callable[[int, str], Buffer]) -> None:
        """Make the array over memory that ``allocate(num_elements, dtype)`` gives, where possible."""
        self.shape = shape
        self.dtype = dtype
        self.is_pinned = False
        with shapes_of(shape):
            if dtype in ZERO_COPY_DTYPES and 0 not in shape:
                self.buffer = allocate(int(np.prod(shape, dtype=np.int64)), dtype)
                # A view, because MXNet makes the array that it is given read-only.
                self.array = mx.nd.from_numpy(self.buffer.view().reshape(shape), zero_copy=True)
            else:
                self.array = mx.nd.zeros(shape, dtype=dtype)
                self.buffer = memory_of(self.array, dtype)

    def note_push(self) -> None:
        """Take notice of a push: the servers have the state that was loaded."""
        self.was_pushed, self.loaded = True, None

    def fill(self, values: Sequence[NDArray]) -> None:
        """Queue the sum of the values, one per device, into this array; in a fixed order."""
        with shapes_of(self.shape):
            native.copy(dense(values[0]), self.array)
            for value in values[1:]:
                # Not add_n: given weights in oneDNN's layout it would put the sum in that layout, too.
                # The copy is plain, and on this array's device.
                addend = dense(value).copyto(self.array.context)
                # Nor elemwise_add, which asks for MXNet's one temporary space, though it needs none: such
                # operations run in the order of their calls, and those of keys that wait hold up others.
                mx.nd.broadcast_add(self.array, addend, out=self.array)


def check_kinds(key: Key, values: Sequence[NDArray]) -> None:
    """Raise where values of a key are stored in a way in which none travels.

    Raises:
        UsageError: They are compressed by rows (csr), as MXNet's inputs may be, and no gradient or weight.
    """
    for value in values:
        if not (native.is_dense(value) or native.is_row_sparse(value)):
            raise UsageError(
                f"key {key!r}: an array of {value.shape} is stored as {value.stype}; keys are dense or "
                "row-sparse: give value.tostype('default') or value.tostype('row_sparse')"
            )


def may_view(value: NDArray) -> bool:
    """Tell whether a value can be sent from where it lies."""
    return native.is_dense(value) and native.gpu_of(value) is None


def view_of(value: NDArray, dtype: str, size: int) -> Any:
    """Return the memory of an array, flat: NumPy's view of the host, CuPy's of a GPU.

    Only when nothing is pending on the array, as in an operation of the engine that uses it. On the host
    for gradients: oneDNN's layouts are for weights and activations, and MXNet has it write the gradients of
    weights in the plain one (``CreateMKLDNNWeightGrad`` in its mkldnn_base.cc).

    Args:
        value: A dense array; kept alive by what is returned.
        dtype: NumPy name of its element type.
        size: Its number of elements.

    Raises:
        UnsupportedError: It is on the host and has a layout of oneDNN's.
    """
    device = native.gpu_of(value)
    if device is not None:
        from kvstore_mpi.tensor_collectives.gpu import device_memory  # noqa: PLC0415  needs CuPy

        return device_memory.view(native.address_of(value), size, dtype, device, value)
    try:
        address = native.address_of(value)
    except mx.MXNetError as error:
        raise UnsupportedError(
            "what is pushed has a memory layout of oneDNN's, as only weights and activations have; give "
            "pushpull a copy of it: value.copy()"
        ) from error
    return memory_at(address, size, dtype, value)


def copy_to(source: NDArray, outs: Sequence[NDArray]) -> None:
    """Queue copies of a dense array into arrays of any device and storage type."""
    with shapes_of(native.shape_of(source)):
        for out in outs:
            native.copy(source if native.is_dense(out) else source.tostype(out.stype), out)


def dense(array: NDArray) -> NDArray:
    """Return the array itself, or a dense copy of a sparse one."""
    return array if native.is_dense(array) else array.tostype("default")


def classic(array: Any) -> NDArray:
    """Return an ``mx.np`` array as an ``NDArray`` of the same memory; other arrays as they are.

    Raises:
        UsageError: It is no array of MXNet.
    """
    if type(array) is NDArray:
        return array
    if not isinstance(array, NDArray):
        raise UsageError(f"the store takes NDArrays, not {type(array).__name__}: {array!r}")
    return array.as_nd_ndarray()


def dtype_name(array: NDArray) -> str:
    """Return the NumPy name of an array's element type.

    Raises:
        UnsupportedError: The store does not take this type.
    """
    name = native.dtype_of(array)
    if name is None:
        unknown = np.dtype(array.dtype).name
        raise UnsupportedError(
            f"the store does not take {unknown} arrays; it takes {', '.join(native.DTYPES)}"
        )
    return name


def shapes_of(shape: tuple[int, ...]) -> Any:
    """Return a scope in which MXNet takes ``()`` and 0 for shapes, not for unknown ones."""
    return _ORDINARY if shape and 0 not in shape else mx.util.np_shape(True)


def memory_of(array: NDArray, dtype: str) -> Buffer:
    """Return the memory of an array of our own that nothing is pending on."""
    if not array.size:
        return np.empty(0, dtype)
    array.wait_to_read()
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return memory_at(address.value or 0, array.size, dtype, array)


def memory_at(address: int, size: int, dtype: str, owner: NDArray) -> Buffer:
    """Return memory that an array owns, which lives as long as what is returned."""
    memory: Any = (ctypes.c_char * (size * np.dtype(dtype).itemsize)).from_address(address)
    memory.owner = owner
    return np.frombuffer(memory, dtype)


def array_of(values: np.ndarray[Any, Any]) -> NDArray:
    """Return a new array with these values, as ``mx.nd.array`` does.

    That looks for SciPy's matrices and for indices on the way: 800 KB take 0.23 ms by it, and 0.13 here.
    """
    if not values.size or not values.shape:
        return mx.nd.array(values, dtype=values.dtype)
    array = mx.nd.empty(values.shape, dtype=values.dtype)
    array._sync_copyfrom(values)  # noqa: SLF001  what array[:] = values comes to
    return array


def dense_ones(arrays: list[NDArray]) -> list[NDArray]:
    """Return those of some arrays that are dense."""
    return [array for array in arrays if native.is_dense(array)]
