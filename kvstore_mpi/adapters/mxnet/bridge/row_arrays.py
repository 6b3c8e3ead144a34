"""Row-sparse arrays of MXNet as ``Rows``, and back, without making them dense.

MXNet gives the ids of a row-sparse array only as a copy that it makes in the engine, behind whatever is
queued there for that array. So operations read private copies, for which nothing else is ever queued. What
they write are private arrays, too, whose ids are known from the beginning. This file must not know about
keys, stores or the engine.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, NDArrayHandle, check_call
from mxnet.ndarray import NDArray

from kvstore_mpi.adapters.mxnet.bridge import native, row_bytes
from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging, memory_at
from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.records import Rows
from kvstore_mpi.values.rows import unique_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.records import Key

    Array = np.ndarray[Any, Any]

_NO_ID = 2.0**63
"""The first that is too large."""

_IDS = 0
"""The one auxiliary array of a row-sparse array."""


class PushedRows:
    """What is pushed of a table, one row-sparse array for each device, as it is at the time of the call.

    Attributes:
        arrays: What the operation that calls ``rows`` must read.
    """

    def __init__(self, key: Key, values: Sequence[NDArray], table: Staging) -> None:
        """Queue copies of the values, which have the shape and dtype of a table."""
        self._key = key
        self._table = table
        self._width = math.prod(table.shape[1:])
        self.arrays = [native.make_rows(table.shape, table.dtype) for _ in values]
        for value, copy in zip(values, self.arrays):
            native.copy(value, copy)

    def rows(self) -> Rows:
        """Return the sum over devices; in an operation of the engine that reads ``arrays``.

        And writes the table's.

        Raises:
            UsageError: There is no such row.
        """
        parts = [self._rows_of(array) for array in self.arrays]
        table = self._table
        # How many there are shows only in the rows themselves; a step has about as many as the last.
        table.pushes_few = row_bytes.are_few(max(len(ids) for ids, _ in parts), self._width, table.dtype)
        if len(parts) == 1:
            rows = unique_rows(*parts[0])
        else:
            ids, values = zip(*parts)
            rows = unique_rows(np.concatenate(ids), np.concatenate(values))
        check_range(rows.ids, table.shape[0], f"key {self._key!r}: the rows of the pushed array")
        return rows

    def _rows_of(self, array: NDArray) -> tuple[Array, Array]:
        if self._table.pushes_few and row_bytes.is_open():
            ids = row_bytes.ids_of(array)
        else:
            handle = NDArrayHandle()
            check_call(_LIB.MXNDArrayGetAuxNDArray(array.handle, _IDS, ctypes.byref(handle)))
            ids = NDArray(handle).asnumpy()
        return ids, rows_in(array, len(ids), self._width, self._table.dtype)


class AllRows:
    """A dense array that is pushed to a table: all rows, in the form of ``PushedRows``."""

    def __init__(self, values: Sequence[NDArray], table: Staging) -> None:
        """Queue the sum of the values, dense or not, one for each device."""
        staging = Staging(table.shape, table.dtype, np.empty)
        staging.fill(values)
        num_rows = table.shape[0]
        self._rows = Rows(np.arange(num_rows), staging.buffer.reshape(num_rows, -1))
        self.arrays = [staging.array]

    def rows(self) -> Rows:
        """See ``PushedRows``."""
        return self._rows


class FetchedRows:
    """A row-sparse array of known rows that an operation fills.

    Attributes:
        array: What the operation writes.
        ids: Of its rows.
        values: Its memory, (rows, width).
    """

    def __init__(self, ids: Array, shape: tuple[int, ...], dtype: str) -> None:
        """Allocate the array for these ids, which are as in ``Rows``."""
        self.ids = ids
        width = math.prod(shape[1:])
        if not ids.size:
            self.array = mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype)
            self.values = np.empty((0, width), dtype)
            return
        if row_bytes.are_few(ids.size, width, dtype):
            self.array = row_bytes.make(ids, shape, dtype)
        else:
            self.array = native.make_rows(shape, dtype, ids.size)
            write_ids(self.array, ids)
        self.values = rows_in(self.array, len(ids), width, dtype)

    def take(self, parts: Sequence[Rows]) -> None:
        """Write rows of these ids; where two parts have one, it is as the later has it.

        Raises:
            MismatchError: Some have not come, since the ranks of a client look up other things.
        """
        # Where they look up together, what comes is of the lookup that another rank has called.
        missing = len(self.ids) - sum(len(part.ids) for part in parts)
        if missing > 0:
            raise MismatchError(
                f"{missing} of {len(self.ids)} rows that were looked up have not come: with --lookups "
                "together all ranks of a client must look up, prefetch and push the same tables in the "
                "same order, also where a batch of one of them needs no row"
            )
        for part in parts:
            self.values[np.searchsorted(self.ids, part.ids)] = part.values

    def take_from(self, table: Array) -> None:
        """Write these rows of a whole table."""
        np.take(table, self.ids, axis=0, out=self.values)


def write_ids(array: NDArray, ids: Array) -> None:
    """Give the rows of a row-sparse array on the host their ids, of which there are as many."""
    # A view, which this makes read-only; mx.nd.array takes 0.08 ms longer.
    source = mx.nd.from_numpy(np.ascontiguousarray(ids, np.int64).view())
    check_call(_LIB.MXNDArraySyncCopyFromNDArray(array.handle, source.handle, ctypes.c_int(_IDS)))


def scatter(parts: Sequence[Rows], values: Array) -> None:
    """Write rows to where they are in a whole table."""
    for ids, some in parts:
        values[ids] = some


def rows_in(array: NDArray, num_rows: int, width: int, dtype: str) -> Array:
    """Return the memory of a row-sparse array's rows, (rows, width), when nothing is pending on it."""
    if not num_rows:
        return np.empty((0, width), dtype)
    return memory_at(native.data_of(array), num_rows * width, dtype, array).reshape(num_rows, width)


def rows_of(key: Key, array: NDArray, row_ids: NDArray) -> NDArray:
    """Return a row-sparse array of some rows of a dense one; waits for both.

    Args:
        key: For the error.
        array: At least one-dimensional.
        row_ids: As ``row_numbers`` takes them.

    Raises:
        UsageError: There is no such row.
    """
    rows = row_numbers(key, row_ids, array.shape[0])
    if not rows.size:
        return mx.nd.sparse.zeros("row_sparse", array.shape, dtype=array.dtype)
    data = mx.nd.take(array, mx.nd.array(rows, dtype=np.int64))
    return mx.nd.sparse.row_sparse_array((data, rows), shape=array.shape, dtype=array.dtype)


def row_numbers(key: Key, row_ids: NDArray, num_rows: int) -> Array:
    """Return numbers of rows in the form of ``Rows.ids``; waits for them.

    Args:
        key: For the error.
        row_ids: In any order, type and shape, possibly none, possibly repeated.
        num_rows: Of the table.

    Raises:
        UsageError: There is no such row, or something is no whole number.
    """
    numbers = whole_numbers(native.numbers_in(row_ids).reshape(-1), f"key {key!r}: row_ids")
    if not (numbers[:-1] < numbers[1:]).all():  # a sort gives up the interpreter's lock
        numbers = np.unique(numbers)
    ids: Array = numbers.astype(np.int64)
    check_range(ids, num_rows, f"key {key!r}: row_ids")
    return ids


def whole_numbers(numbers: Array, what: str) -> Array:
    """Return numbers as integers, in their shape.

    Args:
        numbers: Of any type.
        what: They are, for the error.

    Raises:
        UsageError: One of them can be no id.
    """
    if numbers.dtype.kind == "f":
        whole = np.isfinite(numbers) & (np.rint(numbers) == numbers)
        # NumPy would make any number of larger ones, and that is what an error would show.
        whole &= np.abs(numbers, dtype=np.float64) < _NO_ID
        if not whole.all():
            wrong = numbers[~whole][0]
            raise UsageError(f"{what} are whole numbers from 0 to 2**63 - 1, and {wrong!s} is none")
        return numbers.astype(np.int64)
    if numbers.dtype.kind not in "iub":
        raise UsageError(f"{what} are whole numbers, and no {numbers.dtype}")
    return numbers


def check_range(ids: Array, num_rows: int, what: str) -> None:
    """Raise where ascending ids are not all of a table."""
    if ids.size and not 0 <= ids[0] <= ids[-1] < num_rows:
        raise UsageError(f"{what} go from {ids[0]} to {ids[-1]}, but there are {num_rows} rows")
