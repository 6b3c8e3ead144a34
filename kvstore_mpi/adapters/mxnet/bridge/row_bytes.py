"""Small row-sparse arrays by way of the format in which MXNet saves arrays, past its engine.

Every other way to the ids of such an array is an operation of the engine for which the caller waits: 50 to
65 us on an idle machine, and longer where others want the interpreter's lock. To save an array of 350
rows of 16, or to load it, takes 2 to 4 us. Values are copied once more, which pays up to a megabyte
(1,024,000 bytes take 42 and 29 us, 41 MB 7 and 25 ms).

The format is that of ``NDArray::Save`` in MXNet 1.9, which has no sparse arrays under NumPy's shapes.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from mxnet.base import NDArrayHandle, check_call

from kvstore_mpi.adapters.mxnet.bridge import native

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    Array = np.ndarray[Any, Any]

FEW_BYTES = 1 << 20
"""Of values: up to this size the copy takes less time than the engine."""

_MAGIC = 0xF993FAC9
"""Of a format with sparse arrays, in which a dimension of 0 is none that is known."""

_ROWS_AT = struct.calcsize("<Iii")
_ON_HOST = struct.pack("<ii", 1, 0)


def is_open() -> bool:
    """Tell whether sparse arrays can go this way now, on this thread."""
    return native.HAS_KNOWN_NAMES and not native.has_numpy_shapes()


def are_few(num_rows: int, width: int, dtype: str) -> bool:
    """Tell whether rows of this number and width had better go this way."""
    return is_open() and 0 < num_rows * width * np.dtype(dtype).itemsize <= FEW_BYTES


def ids_of(array: NDArray) -> Array:
    """Return a copy of the ids of a row-sparse array, int64.

    Only if ``is_open``. Nothing is pending on the array, nor queued for it: this would wait for that, with
    the interpreter's lock.
    """
    size, address = ctypes.c_size_t(), ctypes.c_void_p()
    check_call(native.QUICK.MXNDArraySaveRawBytes(array.handle, ctypes.byref(size), ctypes.byref(address)))
    [num_rows] = struct.unpack("<q", ctypes.string_at((address.value or 0) + _ROWS_AT, 8))
    end = (address.value or 0) + size.value
    return np.frombuffer(ctypes.string_at(end - 8 * num_rows, 8 * num_rows), np.int64)


def make(ids: Array, shape: tuple[int, ...], dtype: str) -> native.PrivateRows:
    """Return an array of rows of these ids, ascending and at least one, with zeros in them.

    Only if ``is_open``.
    """
    number, int64 = native.NUMBERS[dtype], native.NUMBERS["int64"]
    dimensions = f"i{len(shape)}q"
    num_rows = len(ids)
    head = struct.pack(f"<Ii{dimensions}{dimensions}", _MAGIC, native.ROW_SPARSE, *_sizes(num_rows, shape))
    kinds = struct.pack("<iiiq", number, int64, 1, num_rows)
    values = bytes(num_rows * int(np.prod(shape[1:], dtype=np.int64)) * np.dtype(dtype).itemsize)
    saved = b"".join((head, _ON_HOST, kinds, values, ids.astype(np.int64, copy=False).tobytes()))
    handle = NDArrayHandle()
    check_call(
        native.QUICK.MXNDArrayLoadFromRawBytes(saved, ctypes.c_size_t(len(saved)), ctypes.byref(handle))
    )
    return native.PrivateRows(handle)


def _sizes(num_rows: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (len(shape), num_rows, *shape[1:], len(shape), *shape)
