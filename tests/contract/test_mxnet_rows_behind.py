"""Row-sparse arrays whose number of rows is not known when operations that read them are queued."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet.bridge.row_arrays import FetchedRows  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.rows_behind import rows_behind  # noqa: E402
from kvstore_mpi.testing.mxnet_rows import sgd  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from harness.procfs import anonymous_bytes  # noqa: E402

pytestmark = pytest.mark.mxnet

SHAPE = (1_000, 1_000)


def rows(number, value):
    """Return an array with the first rows."""
    found = FetchedRows(np.arange(number), SHAPE, "float32")
    found.values[:] = value
    return found.array


def test_an_update_takes_the_rows_that_are_there_by_then():
    weight, update = mx.nd.zeros(SHAPE), mx.optimizer.get_updater(sgd())
    for number in (3, 1, 0, 1_000):
        update(0, rows_behind(weight, lambda number=number: rows(number, 1.0)), weight)
    assert weight[:4, 0].asnumpy().tolist() == [-3, -2, -2, -1]


def test_rows_that_were_used_are_given_back():
    """A hundred arrays of 2 MB, of which none is left."""
    weight, update = mx.nd.zeros(SHAPE), mx.optimizer.get_updater(sgd())

    def step():
        update(0, rows_behind(weight, lambda: rows(500, 1.0)), weight)
        mx.nd.waitall()
        return anonymous_bytes(os.getpid())

    before = [step() for _ in range(10)][-1]
    assert [step() for _ in range(100)][-1] - before < 40_000_000
