"""What is made of the arrays that the store is given."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet.bridge.arrays import classic  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import rows_of  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.mxnet

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


@pytest.mark.parametrize("ids", [[0], [5, 0, 5], [], [[1, 2], [2, 4]]])
def test_rows_are_those_that_are_named(ids):
    """In any order, repeated or none."""
    rows = rows_of("w", mx.nd.array(ROWS), mx.nd.array(ids))
    named = np.unique(np.array(ids, np.int64))
    np.testing.assert_array_equal(rows.indices.asnumpy(), named)
    np.testing.assert_array_equal(rows.data.asnumpy().reshape(-1, 2), ROWS[named])


@pytest.mark.parametrize("ids", [[6], [-1], [0, 99], [-3, 7]])
def test_rows_that_are_not_there_are_an_error(ids):
    """MXNet would take the nearest ones."""
    with pytest.raises(UsageError, match=r"key 'w': row_ids.*there are 6 rows"):
        rows_of("w", mx.nd.array(ROWS), mx.nd.array(ids))


def test_arrays_of_both_interfaces_are_taken_and_nothing_else():
    """An array of ``mx.np`` comes as the other kind, over the same memory."""
    array = mx.nd.ones((2,))
    assert classic(array) is array
    other = mx.np.ones((2,))
    taken = classic(other)
    taken[:] = 3
    assert type(taken) is mx.nd.NDArray
    assert other.tolist() == [3, 3]
    with pytest.raises(UsageError, match="not ndarray"):
        classic(ROWS)
