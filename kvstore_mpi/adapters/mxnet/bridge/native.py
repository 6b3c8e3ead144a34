"""The few functions of MXNet's library that are called for every key of every step.

MXNet's own Python wrappers make several calls where one does, and every call through ``ctypes`` gives up
the interpreter's lock and asks for it again, which is dear while the I/O thread and the engine's threads
want it too: a pushpull made 18 such calls. What takes microseconds, such as questions and operations that
are queued in the engine, is called here without giving up the lock. On MXNet 2, whose library has other
names, the wrappers are used. This file must not know about keys or stores.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, NDArrayHandle, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import BaseSparseNDArray, RowSparseNDArray, _new_alloc_handle

if TYPE_CHECKING:
    from collections.abc import Sequence

HAS_KNOWN_NAMES = mx.__version__.startswith("1.9")
"""Its functions, and the format in which it saves arrays, are those that are known here."""
QUICK = ctypes.PyDLL(_LIB._name)  # noqa: SLF001  the path has no public name
"""The same library; but a call keeps the interpreter's lock, so it must be short."""

_CPU, _GPU = 1, 2
ROW_SPARSE = 1
"""MXNet's number of the storage type."""
_OneHandle = ctypes.c_void_p * 1
_Handles = ctypes.POINTER(ctypes.c_void_p)
_Sizes = ctypes.POINTER(ctypes.c_int)
_CODES = dict(enumerate(("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")))
"""MXNet's numbers of the element types that a store takes."""
NUMBERS = {name: number for number, name in _CODES.items()}
"""The other way round."""
_INT64_IDS = ctypes.byref(ctypes.c_int(NUMBERS["int64"]))
_ONE_DIMENSION = ctypes.byref(ctypes.c_int(1))

DTYPES = tuple(_CODES.values())


class PrivateRows(RowSparseNDArray):  # type: ignore[misc]
    """A row-sparse array of our own, which often ends on the I/O thread."""

    __slots__ = ()

    def __del__(self) -> None:
        """Free it with the interpreter's lock, which MXNet's own arrays give up for that."""
        check_call(QUICK.MXNDArrayFree(self.handle))


def is_dense(array: NDArray) -> bool:
    """Tell whether an array is stored in the ordinary way."""
    return type(array) is NDArray or not isinstance(array, BaseSparseNDArray)


def is_row_sparse(array: NDArray) -> bool:
    """Tell whether an array is stored as some of its rows."""
    return isinstance(array, RowSparseNDArray)


def dtype_of(array: NDArray) -> str | None:
    """Return the NumPy name of an array's element type, if a store takes it."""
    code = ctypes.c_int()
    check_call(QUICK.MXNDArrayGetDType(array.handle, ctypes.byref(code)))
    return _CODES.get(code.value)


def gpu_of(array: NDArray) -> int | None:
    """Return the number of the GPU in whose memory an array is; ``None`` for the host's."""
    device, number = ctypes.c_int(), ctypes.c_int()
    check_call(QUICK.MXNDArrayGetContext(array.handle, ctypes.byref(device), ctypes.byref(number)))
    return number.value if device.value == _GPU else None


def address_of(array: NDArray) -> int:
    """Return where the elements of a dense array lie one after the other.

    May be called in an operation of the engine that reads or writes the array: unlike MXNet's other ways
    to an address it neither waits nor changes the array's layout.

    Raises:
        MXNetError: They do not: the array has a layout of oneDNN's.
    """
    managed = ctypes.c_void_p()
    check_call(QUICK.MXNDArrayToDLPack(array.handle, ctypes.byref(managed)))
    try:
        fields = _DLTensor.from_address(managed.value or 0)
        return int((fields.data or 0) + fields.byte_offset)
    finally:
        check_call(QUICK.MXNDArrayCallDLPackDeleter(managed))


def shape_of(array: NDArray) -> Any:
    """Return an array's shape."""
    if not HAS_KNOWN_NAMES:
        return array.shape
    num_dimensions, sizes = ctypes.c_int(), _Sizes()
    check_call(QUICK.MXNDArrayGetShapeEx(array.handle, ctypes.byref(num_dimensions), ctypes.byref(sizes)))
    return tuple(sizes[: num_dimensions.value]) if num_dimensions.value >= 0 else None


def data_of(array: NDArray) -> int:
    """Return where the elements, or the rows, of an array of our own lie; nothing is pending on it."""
    address = ctypes.c_void_p()
    check_call(QUICK.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value or 0


def make_rows(shape: tuple[int, ...], dtype: str, num_rows: int | None = None) -> PrivateRows:
    """Return a row-sparse array on the host, whose content is undefined.

    Args:
        shape: Of the array.
        dtype: Of its elements.
        num_rows: Memory is made for this number of rows and their int64 ids; ``None`` makes none, for a
            copy. MXNet's own empty array would be filled by an operation.
    """
    if not HAS_KNOWN_NAMES:
        kinds = (np.dtype(dtype).type, [np.int64], None if num_rows is None else [(num_rows,)])
        delayed = num_rows is None
        return PrivateRows(_new_alloc_handle("row_sparse", shape, mx.cpu(), delayed, *kinds))
    handle = NDArrayHandle()
    check_call(
        QUICK.MXNDArrayCreateSparseEx64(
            ROW_SPARSE,
            (ctypes.c_int64 * len(shape))(*shape),
            len(shape),
            _CPU,
            0,
            num_rows is None,
            NUMBERS[dtype],
            1,
            _INT64_IDS,
            _ONE_DIMENSION,
            ctypes.byref(ctypes.c_int64(num_rows or 0)),
            ctypes.byref(handle),
        )
    )
    return PrivateRows(handle)


class _DLTensor(ctypes.Structure):
    """What DLPack says of an array; begins what MXNet gives away."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("num_dimensions", ctypes.c_int32),
        ("element_type", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class Operator:
    """An operator of MXNet with one output, to be queued in the engine often."""

    def __init__(self, name: str, **attributes: float) -> None:
        """Find the operator.

        Args:
            name: As MXNet has registered it.
            attributes: What it is told besides its inputs.
        """
        self._name = name
        self._attributes = attributes
        self._handle = ctypes.c_void_p()
        check_call(_LIB.NNGetOpHandle(name.encode(), ctypes.byref(self._handle)))
        words = ctypes.c_char_p * len(attributes)
        self._names = words(*(each.encode() for each in attributes))
        self._values = words(*(repr(value).encode() for value in attributes.values()))

    def __call__(self, inputs: Sequence[NDArray], output: NDArray) -> None:
        """Queue it."""
        if not HAS_KNOWN_NAMES:
            getattr(mx.nd, self._name)(*inputs, out=output, **self._attributes)
            return
        outputs = ctypes.cast(_OneHandle(output.handle), _Handles)
        check_call(
            QUICK.MXImperativeInvokeEx(
                self._handle,
                len(inputs),
                handles(inputs),
                ctypes.byref(ctypes.c_int(1)),
                ctypes.byref(outputs),
                len(self._attributes),
                self._names,
                self._values,
                ctypes.byref(_Sizes()),
            )
        )


subtract = Operator("elemwise_sub")
"""Queues the difference of two arrays of one shape, dtype and device."""

_copy = Operator("_copyto")


def copy(source: NDArray, target: NDArray) -> None:
    """Queue a copy in the engine."""
    if HAS_KNOWN_NAMES:
        _copy([source], target)
    else:
        source.copyto(target)


def handles(arrays: Sequence[NDArray]) -> Any:
    """Return the arrays' handles as MXNet's library takes them."""
    if len(arrays) == 1:
        return _OneHandle(arrays[0].handle)
    return (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays])


def numbers_in(array: NDArray) -> np.ndarray[Any, Any]:
    """Return the elements of a dense array; waits for them, and they may not be changed.

    MXNet's ``asnumpy`` gives up the interpreter's lock four times.
    """
    dtype, shape = dtype_of(array), shape_of(array)
    # No dimensions are none that are known, where shapes are not NumPy's.
    if dtype is None or gpu_of(array) is not None or not shape or not math.prod(shape):
        return np.asarray(array.asnumpy())
    check_call(_LIB.MXNDArrayWaitToRead(array.handle))
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(ctypes.string_at(address_of(array), num_bytes), dtype).reshape(shape)


def has_numpy_shapes() -> bool:
    """Tell whether MXNet takes shapes of this thread as NumPy does (``mx.util.np_shape``)."""
    mode = ctypes.c_int()
    check_call(QUICK.MXIsNumpyShape(ctypes.byref(mode)))
    return bool(mode.value)


def is_recording() -> bool:
    """Tell whether autograd records what this thread does."""
    recording = ctypes.c_bool()
    check_call(QUICK.MXAutogradIsRecording(ctypes.byref(recording)))
    return recording.value
