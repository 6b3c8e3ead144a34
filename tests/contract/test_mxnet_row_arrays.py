"""Row-sparse arrays of MXNet and their rows: both ways to the ids give the same."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet.bridge import engine, native, row_bytes  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import FetchedRows, PushedRows  # noqa: E402
from kvstore_mpi.errors import MismatchError  # noqa: E402
from kvstore_mpi.records import Rows  # noqa: E402

pytestmark = pytest.mark.mxnet

SHAPES = ((1_000, 4), (1_000, 3, 2))
KINDS = [(shape, dtype) for shape in SHAPES for dtype in ("float32", "float64", "float16", "int32")]
IDS = np.array([0, 7, 8, 999])


def rows_of(shape, dtype, ids=IDS):
    values = np.arange(len(ids) * np.prod(shape[1:])).reshape(len(ids), *shape[1:]).astype(dtype)
    return values, mx.nd.sparse.row_sparse_array((values, ids), shape=shape, dtype=dtype)


@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_the_ids_of_a_saved_array_are_its_own(shape, dtype):
    for ids in (IDS, IDS[:1]):
        _, array = rows_of(shape, dtype, ids)
        array.wait_to_read()
        assert row_bytes.ids_of(array).tolist() == ids.tolist()


def test_an_array_without_rows_has_no_ids():
    empty = mx.nd.sparse.zeros("row_sparse", (9, 4))
    empty.wait_to_read()
    assert row_bytes.ids_of(empty).size == 0


@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_an_array_that_is_loaded_has_its_rows(shape, dtype):
    made = row_bytes.make(IDS, shape, dtype)
    assert (made.shape, made.dtype, made.stype) == (shape, np.dtype(dtype).type, "row_sparse")
    assert made.indices.asnumpy().tolist() == IDS.tolist()
    assert not made.data.asnumpy().any()


@pytest.mark.parametrize("few_bytes", [0, row_bytes.FEW_BYTES])
@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_rows_are_the_same_either_way(monkeypatch, few_bytes, shape, dtype):
    monkeypatch.setattr(row_bytes, "FEW_BYTES", few_bytes)
    values, array = rows_of(shape, dtype)
    fetched = FetchedRows(IDS, shape, dtype)
    fetched.values[...] = values.reshape(len(IDS), -1)
    assert fetched.array.indices.asnumpy().tolist() == IDS.tolist()
    assert (fetched.array.data.asnumpy() == values).all()
    table = Staging(shape, dtype, np.empty)
    for number in range(3):
        pushed = PushedRows("table", [array, array], table)
        mx.nd.waitall()
        rows = pushed.rows()
        assert rows.ids.tolist() == IDS.tolist()
        assert (rows.values == 2 * values.reshape(len(IDS), -1)).all()
        assert table.pushes_few == (few_bytes > 0), number


@pytest.mark.parametrize("before", [False, True])
def test_under_numpys_shapes_rows_go_the_other_way(before):
    """MXNet saves no sparse array there; the mode may have changed since the last push."""
    values, array = rows_of((1_000, 4), "float32")
    table = Staging((1_000, 4), "float32", np.empty)
    table.pushes_few = before
    with mx.util.np_shape(True):
        fetched = FetchedRows(IDS, (1_000, 4), "float32")
        pushed = PushedRows("table", [array], table)
        mx.nd.waitall()
        assert (pushed.rows().values == values).all()
        assert not table.pushes_few
    assert fetched.array.indices.asnumpy().tolist() == IDS.tolist()


def test_many_rows_go_through_the_engine():
    """They would be copied once more otherwise, with the interpreter's lock."""
    assert native.HAS_KNOWN_NAMES
    assert row_bytes.are_few(1_024, 256, "float32")
    assert not row_bytes.are_few(1_025, 256, "float32")
    assert not row_bytes.are_few(0, 256, "float32")


@pytest.mark.parametrize("dtype", native.DTYPES)
def test_numbers_of_rows_are_read_as_mxnet_reads_them(dtype):
    """Of any shape, of a part of an array, of one whose operation is under way, and of none."""
    whole = mx.nd.array(np.arange(24).reshape(2, 3, 4), dtype=dtype)
    for array in (whole, whole[1], whole[1][2:3], whole.reshape((24,))[5:9], whole.copy(), whole[0:0]):
        expected = array.asnumpy()
        found = native.numbers_in(array)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)


def test_numbers_of_rows_are_waited_for():
    """They may be what operations will have written that have not begun."""
    array = mx.nd.zeros(2, dtype="int64")
    array.wait_to_read()
    begun = Future()
    engine.push_async(begun.set_result, mutable=[array], on_error=pytest.fail)
    array[:] = 7
    end = threading.Timer(0.2, lambda: begun.result(60)(None))
    end.start()
    assert native.numbers_in(array).tolist() == [7, 7]
    end.join()
    assert engine.wait_until_idle(60)


def test_numbers_of_rows_are_those_of_the_call():
    """The caller may write to the array as soon as the call has returned."""
    array = mx.nd.array([3, 1], dtype="int64")
    found = native.numbers_in(array)
    array[:] = 0
    mx.nd.waitall()
    assert found.tolist() == [3, 1]


def test_a_number_alone_is_read_where_shapes_are_numpys():
    with mx.util.np_shape(True):
        assert native.numbers_in(mx.nd.array(5, dtype="int32")).tolist() == 5


def test_arrays_of_our_own_are_freed(monkeypatch):
    """Once, whichever way they were made."""
    freed = []

    class Quick:
        """MXNet's library, of which frees are noted."""

        def __getattr__(self, name):
            return getattr(quick, name)

        def MXNDArrayFree(self, handle):  # noqa: N802  MXNet's name
            freed.append(handle.value)
            return quick.MXNDArrayFree(handle)

    quick = native.QUICK
    monkeypatch.setattr(native, "QUICK", Quick())
    for make in (native.make_rows, lambda *form: row_bytes.make(IDS, *form)):
        array = make((1_000, 4), "float32")
        handle = array.handle.value
        freed.clear()
        del array
        assert freed == [handle]


def test_rows_that_have_not_come_are_no_zeros():
    """As where another rank of the client looks up something else."""
    rows = FetchedRows(np.array([1, 4, 7]), (9, 2), "float32")
    with pytest.raises(MismatchError, match="2 of 3 rows that were looked up have not come"):
        rows.take([Rows(np.array([4]), np.ones((1, 2), np.float32))])
