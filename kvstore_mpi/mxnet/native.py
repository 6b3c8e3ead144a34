"""The few functions of MXNet's library that are called for every key of every step.

MXNet's own Python wrappers make several calls where one does, and every call through ``ctypes`` gives up
the interpreter's lock and asks for it again, which is dear while the I/O thread and the engine's threads
want it too: a pushpull made 18 such calls, of which 3 are left. Questions that are answered in less than a
microsecond are asked here without giving up the lock. On MXNet 2, whose library has other names, the
wrappers are used. This file must not know about keys or stores.
"""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import BaseSparseNDArray

_HAS_KNOWN_NAMES = mx.__version__.startswith("1.9")
_QUICK = ctypes.PyDLL(_LIB._name)  # noqa: SLF001  the same library, but the lock is kept
_COPY = ctypes.c_void_p()
check_call(_LIB.NNGetOpHandle(b"_copyto", ctypes.byref(_COPY)))
_OneHandle = ctypes.c_void_p * 1
_Handles = ctypes.POINTER(ctypes.c_void_p)
_Sizes = ctypes.POINTER(ctypes.c_int)
_CODES = {0: "float32", 1: "float64", 2: "float16", 3: "uint8", 4: "int32", 5: "int8", 6: "int64"}
"""MXNet's numbers of the element types that a store can sum."""

DTYPES = tuple(_CODES.values())


def is_dense(array: NDArray) -> bool:
    """Tell whether an array is stored in the ordinary way."""
    return type(array) is NDArray or not isinstance(array, BaseSparseNDArray)


def dtype_of(array: NDArray) -> str | None:
    """Return the NumPy name of an array's element type, if a store can sum it."""
    code = ctypes.c_int()
    check_call(_QUICK.MXNDArrayGetDType(array.handle, ctypes.byref(code)))
    return _CODES.get(code.value)


def shape_of(array: NDArray) -> Any:
    """Return an array's shape."""
    if not _HAS_KNOWN_NAMES:
        return array.shape
    num_dimensions, sizes = ctypes.c_int(), _Sizes()
    check_call(_QUICK.MXNDArrayGetShapeEx(array.handle, ctypes.byref(num_dimensions), ctypes.byref(sizes)))
    return tuple(sizes[: num_dimensions.value]) if num_dimensions.value >= 0 else None


def copy(source: NDArray, target: NDArray) -> None:
    """Queue a copy in the engine."""
    if not _HAS_KNOWN_NAMES:
        source.copyto(target)
        return
    outputs = ctypes.cast(_OneHandle(target.handle), _Handles)
    check_call(
        _LIB.MXImperativeInvokeEx(
            _COPY,
            1,
            _OneHandle(source.handle),
            ctypes.byref(ctypes.c_int(1)),
            ctypes.byref(outputs),
            0,
            None,
            None,
            ctypes.byref(_Sizes()),
        )
    )


def is_recording() -> bool:
    """Tell whether autograd records what this thread does."""
    recording = ctypes.c_bool()
    check_call(_QUICK.MXAutogradIsRecording(ctypes.byref(recording)))
    return recording.value
