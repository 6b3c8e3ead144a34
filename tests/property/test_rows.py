"""Sums of rows against a dumb twin: a dictionary of float64 rows, added up one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.values import row_kernels
from kvstore_mpi.values.rows import RowMerger, Rows, unique_rows

NUM_ROWS = st.sampled_from([8, 100, 5_000, 2**62])
DTYPES = st.sampled_from(["float16", "float32", "float64", "int32", "int64"])


def twin(ids, values):
    """Return the sum of each row, as a list of ids and a table."""
    sums = {}
    for key, row in zip(ids.tolist(), values.astype(np.float64)):
        sums[key] = sums.get(key, 0.0) + row
    table = [sums[key] for key in sorted(sums)]
    return sorted(sums), np.array(table).reshape(len(table), values.shape[1])


def draw_rows(draw, num_rows, width, dtype):
    """Draw ids, of which few are repeated or many, and small integers as values: their sums are exact."""
    near = draw(st.sampled_from([3, num_rows]))
    ids = draw(st.lists(st.integers(0, min(near, num_rows) - 1), max_size=40))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    values = rng.integers(-20, 20, size=(len(ids), width)).astype(dtype)
    return np.array(ids, np.int64), values


@st.composite
def parts_of_a_table(draw):
    """Draw what several workers have, before anything is merged, and the table's number of rows."""
    num_rows, dtype, width = draw(NUM_ROWS), draw(DTYPES), draw(st.sampled_from([1, 2, 5]))
    count = draw(st.integers(1, 5))
    return num_rows, [draw_rows(draw, num_rows, width, dtype) for _ in range(count)]


MERGERS = [RowMerger(), RowMerger()]
MERGERS[1]._adder._kernel = None
"""Both are used again from example to example, as on a server."""


@settings(deadline=None)
@given(table=parts_of_a_table())
def test_sums_equal_the_twin(table):
    """Through both steps, inside a part and between parts, with and without SciPy, every sum is exact."""
    num_rows, raw = table
    parts = [unique_rows(ids, values) for ids, values in raw]
    for part, (ids, values) in zip(parts, raw):
        assert part.values.dtype == values.dtype
        expected_ids, expected = twin(ids, values)
        np.testing.assert_array_equal(part.ids, expected_ids)
        np.testing.assert_array_equal(part.values, expected)
    expected_ids, expected = twin(*map(np.concatenate, zip(*raw)))
    for merger in MERGERS:
        merged = merger.merge(parts, num_rows)
        np.testing.assert_array_equal(merged.ids, expected_ids)
        np.testing.assert_array_equal(merged.values, expected)
        assert merged.values.dtype == parts[0].values.dtype


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), num_rows=st.sampled_from([60, 2**40]))
def test_bits_do_not_depend_on_the_kernel(seed, num_rows):
    """Servers with and without SciPy compute the same, as does the same server once more."""
    rng = np.random.default_rng(seed)
    raw = [(rng.integers(0, 60, size=50), rng.normal(size=(50, 3)).astype(np.float32)) for _ in range(4)]
    compiled = [unique_rows(*one) for one in raw]
    kernel, row_kernels.compiled_kernel = row_kernels.compiled_kernel, lambda: None
    try:
        plain = [unique_rows(*one) for one in raw]
    finally:
        row_kernels.compiled_kernel = kernel
    for one, other in zip(compiled, plain):
        assert one.values.tobytes() == other.values.tobytes()
    first, second, again = (merger.merge(compiled, num_rows, own=True) for merger in (*MERGERS, MERGERS[0]))
    assert first.values.tobytes() == second.values.tobytes() == again.values.tobytes()
    assert isinstance(first, Rows)
