"""Rows of a table: repeated ids, sums of parts, and the kernels below, compiled and not."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.values import row_kernels
from kvstore_mpi.values import rows as values_rows
from kvstore_mpi.values.row_kernels import BLOCK_ROWS, RowAdder, compiled_kernel
from kvstore_mpi.values.rows import RowMerger, Rows, unique_rows

HUGE = 2**60
"""Rows of a table that no mask can cover."""


@pytest.fixture(params=["compiled", "numpy"])
def _kernel(request, monkeypatch):
    """Run a test with SciPy's kernel, and as if SciPy were not there."""
    if request.param == "numpy":
        monkeypatch.setattr(row_kernels, "compiled_kernel", lambda: None)
    else:
        assert compiled_kernel() is not None


def rows(ids, values, dtype="float32"):
    values = np.array(values, dtype)
    return Rows(np.array(ids, np.int64), values.reshape(len(ids), -1) if len(ids) else values)


def assert_rows(got, ids, values):
    assert got.ids.dtype == np.int64
    np.testing.assert_array_equal(got.ids, ids)
    np.testing.assert_array_equal(got.values, np.array(values).reshape(got.values.shape))
    assert got.values.flags.c_contiguous


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "int64"])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
def test_ids_of_any_type_and_shape(dtype, shape):
    """Rows come out in ascending order, with repeated ones summed."""
    ids = np.array([5, 2, 5, 0, 2, 5], dtype).reshape(shape)
    values = np.arange(12, dtype=np.float32)
    expected = [0, 2, 5], [6, 7, 2 + 8, 3 + 9, 0 + 4 + 10, 1 + 5 + 11]
    assert_rows(unique_rows(ids, values.reshape(6, 2)), *expected)
    assert_rows(unique_rows(ids, values.reshape(*shape, 2)), *expected)


def test_one_id_without_a_shape():
    """A scalar is one id."""
    assert_rows(unique_rows(np.array(7), np.ones((1, 2, 3))), [7], np.ones(6))
    assert_rows(unique_rows(np.array(7), np.ones((2, 3))), [7], np.ones(6))


def test_no_ids_keep_the_width():
    """No rows are rows of some width, which a server checks."""
    for ids in (np.zeros(0, np.int32), np.zeros((0, 4), np.int64)):
        got = unique_rows(ids, np.zeros((0, 3, 2), np.float64))
        assert_rows(got, [], [])
        assert got.values.shape == (0, 6)
        assert got.values.dtype == np.float64


def test_rows_that_are_in_order_are_not_copied():
    """What MXNet's own backward pass makes is taken as it is."""
    ids, values = np.array([1, 4]), np.ones((2, 3), np.float32)
    got = unique_rows(ids, values)
    assert np.shares_memory(got.ids, ids)
    assert np.shares_memory(got.values, values)
    strided = np.ones((2, 6), np.float32)[:, ::2]
    assert unique_rows(ids, strided).values.flags.c_contiguous


def test_inputs_are_left_alone():
    """Arrays may belong to a framework, and be write-protected."""
    ids, values = np.array([3, 1, 3]), np.ones((3, 2), np.float32)
    for array in (ids, values):
        array.setflags(write=False)
    assert_rows(unique_rows(ids, values), [1, 3], [1, 1, 2, 2])


@pytest.mark.usefixtures("_kernel")
def test_repeated_ids_are_summed_in_the_order_of_their_appearance():
    """In float32 the order shows: one is lost beside 2**24 unless it finds another one first."""
    first_small = unique_rows(np.array([3, 3, 3]), np.array([[1], [1], [2**24]], np.float32))
    first_large = unique_rows(np.array([3, 3, 3]), np.array([[2**24], [1], [1]], np.float32))
    assert first_small.values[0, 0] == 2**24 + 2
    assert first_large.values[0, 0] == 2**24


@pytest.mark.usefixtures("_kernel")
def test_half_precision_is_rounded_once():
    """Ones added to 2048 one by one would all be lost in float16."""
    got = unique_rows(np.zeros(5, np.int64), np.array([[2048], [1], [1], [1], [1]], np.float16))
    assert got.values.dtype == np.float16
    assert got.values[0, 0] == 2052
    parts = [rows([4, 9], [x, 1], "float16") for x in (2048, 1, 1, 1, 1)]
    merged = RowMerger().merge(parts, 10)
    assert merged.values.dtype == np.float16
    assert merged.values.tolist() == [[2052], [5]]
    exact = RowMerger().merge(parts[:2], 10, dtype=np.float32)
    assert exact.values.dtype == np.float32
    assert exact.values.tolist() == [[2049], [2]]


def test_bfloat16_is_summed_in_float32():
    """Of bfloat16, which keeps eight bits, 256 + 1 + 1 is 258 if it is rounded once."""
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    parts = [rows([1], [x], bfloat16) for x in (256, 1, 1)]
    merged = RowMerger().merge(parts, 4)
    assert merged.values.dtype == bfloat16
    assert float(merged.values[0, 0]) == 258
    summed = unique_rows(np.zeros(3, int), np.concatenate([part.values for part in parts]))
    assert float(summed.values[0, 0]) == 258


@pytest.mark.parametrize(
    ("ids", "values", "message"),
    [
        (np.array([1.0, 2.0]), np.ones((2, 1)), "must be integers, not float64"),
        (np.array([True, False]), np.ones((2, 1)), "must be integers, not bool"),
        (np.array([1, 2]), np.ones((3, 1)), r"shape \(3, 1\) are not one row for each id.*\(2,\)"),
        (np.array([[1, 2]]), np.ones((1, 3, 1)), r"\(1, 3, 1\) are not one row"),
    ],
)
def test_what_rows_cannot_be_made_of(ids, values, message):
    """Ids that are no integers, or too few or too many rows, are one clear error."""
    with pytest.raises(MismatchError, match=message):
        unique_rows(ids, values)


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("num_rows", [12, HUGE])
def test_merge_sums_the_union(num_rows):
    """All ids in ascending order, each with the sum of what the parts have of it."""
    parts = [rows([2, 5], [[1, 2], [3, 4]]), rows([], np.zeros((0, 2))), rows([0, 5, 11], np.ones((3, 2)))]
    merger = RowMerger()
    for _ in range(2):  # what is remembered of one merge is not in the next
        assert_rows(merger.merge(parts, num_rows), [0, 2, 5, 11], [1, 1, 1, 2, 4, 5, 1, 1])
    assert_rows(merger.merge([parts[0], parts[0]], num_rows), [2, 5], [2, 4, 6, 8])
    # More ids than there may be rows.
    assert_rows(merger.merge([parts[0]] * 7, num_rows), [2, 5], [7, 14, 21, 28])


@pytest.mark.usefixtures("_kernel")
def test_merge_sums_in_the_order_of_the_parts():
    """In float32 the order shows."""
    large, one = rows([6], [2**24]), rows([6], [1])
    merger = RowMerger()
    assert merger.merge([one, one, large], 7).values[0, 0] == 2**24 + 2
    assert merger.merge([large, one, one], 7).values[0, 0] == 2**24


def test_ids_beyond_any_mask():
    """Ids of 64 bits cost memory for the rows that are there."""
    parts = [rows([7, HUGE - 1], [1, 2]), rows([7, 2**40], [4, 8])]
    merger = RowMerger()
    assert_rows(merger.merge(parts, HUGE), [7, 2**40, HUGE - 1], [5, 8, 2])


@pytest.mark.usefixtures("_kernel")
def test_blocks_join_without_a_seam():
    """Rows beyond one block of output, and beyond one call of the kernel, are all there once."""
    ids = np.arange(0, 5 * BLOCK_ROWS, 2)
    one = Rows(ids, np.ones((len(ids), 16), np.int32))
    other = Rows(ids[1:] - 1, np.full((len(ids) - 1, 16), 2, np.int32))
    merged = RowMerger().merge([one, other, one], int(ids[-1]) + 1)
    expected = np.resize([2, 2], len(ids) * 2 - 1)
    np.testing.assert_array_equal(merged.ids, np.arange(len(expected)))
    np.testing.assert_array_equal(merged.values, np.repeat(expected[:, None], 16, axis=1))
    out = np.zeros((2 * BLOCK_ROWS, 1), np.int64)
    RowAdder().add(out, np.arange(2 * BLOCK_ROWS), np.arange(2 * BLOCK_ROWS)[:, None], 3)
    np.testing.assert_array_equal(out[:, 0], 3 * np.arange(2 * BLOCK_ROWS))


@pytest.mark.usefixtures("_kernel")
def test_the_factor_follows_type_and_value():
    """An adder serves several tables in turn."""
    for first in ("float32", "float64", "int64"):
        out = np.ones((3, 2), first)
        RowAdder().add(out, np.array([2]), np.full((1, 2), 4, first))
        np.testing.assert_array_equal(out, [[1, 1], [1, 1], [5, 5]])
    adder = RowAdder()
    for dtype, factor in [("float32", -0.5), ("float64", -0.5), ("float32", 1), ("int64", 1), ("int64", 2)]:
        out = np.ones((3, 2), dtype)
        adder.add(out, np.array([2]), np.full((1, 2), 4, dtype), factor)
        np.testing.assert_array_equal(out, [[1, 1], [1, 1], [1 + 4 * factor] * 2])


def test_a_merger_serves_small_and_large_tables_in_turn(monkeypatch):
    """Positions are numbers of 32 bits where ids are marked, and of 64 where they are sorted."""
    merger = RowMerger()
    for num_rows in (9, 10**9, 9):
        assert_rows(merger.merge([rows([1, 8], [1, 2]), rows([8], [3])], num_rows), [1, 8], [1, 5])
    monkeypatch.setattr(values_rows, "_MOST_MARKED", 8)
    refusing = RowMerger()
    assert_rows(refusing.merge([rows([1, 8], [1, 2]), rows([8], [3])], 9), [1, 8], [1, 5])
    assert not refusing._mask.size, "ids were marked in more places than positions can tell"


def test_one_part_is_returned_as_it_is():
    """In the most frequent case, one client at a time, nothing is moved; unless it has to be kept."""
    nothing, part = rows([], np.zeros((0, 1))), rows([3], [1])
    merger = RowMerger()
    assert np.shares_memory(merger.merge([nothing, part], 4).values, part.values)
    kept = merger.merge([part], 4, own=True)
    assert not np.shares_memory(kept.values, part.values)
    assert not np.shares_memory(kept.ids, part.ids)
    assert_rows(merger.merge([nothing, nothing], 4), [], [])


def test_what_a_merger_returns_is_used_again_unless_it_is_owned():
    """The memory of a result is that of the next one."""
    merger, parts = RowMerger(), [rows([3], [1]), rows([3], [2])]
    borrowed, owned = merger.merge(parts, 4), merger.merge(parts, 4, own=True)
    again = merger.merge(parts, 4)
    assert np.shares_memory(borrowed.values, again.values)
    assert not np.shares_memory(owned.values, again.values)


def test_parts_of_several_kinds_are_refused():
    """Width and type have to agree; the error says which there are."""
    with pytest.raises(
        MismatchError, match="1 columns of float32 and 2 columns of float64 cannot be merged"
    ):
        RowMerger().merge([rows([1], [1]), rows([1], [1, 2], "float64")], 4)


@pytest.mark.parametrize("problem", ["absent", "renamed", "changed", "refuses"])
def test_a_kernel_that_is_not_what_it_was_is_left_out(problem, monkeypatch):
    """SciPy may rename or change what is private to it: then NumPy adds."""

    class Changed:
        if problem == "changed":

            @staticmethod
            def csc_matvecs(*args):
                args[-1][:] = 0

        if problem == "refuses":

            @staticmethod
            def csc_matvecs(_matrix, _out):
                raise AssertionError

    def find(name):
        if problem == "absent":
            raise ModuleNotFoundError(name)
        return Changed

    monkeypatch.setattr(importlib, "import_module", find)
    assert compiled_kernel.__wrapped__() is None
