"""What scripts for MXNet's own stores rely on, beside the values that ``adapter_contract.py`` is about.

The checks have the same form and hold over any worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mxnet as mx
import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.testing.adapter_contract import SHAPE, expect, full, refused, sum_of_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.testing.adapter_contract import Check, OpenStore, Turn

FLOATS = ("float16", "float32", "float64")

COMPATIBILITY_CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that every worker must pass."""
    COMPATIBILITY_CHECKS.append(function)
    return function


@check
def pulls_convert_between_floats(open_store: OpenStore) -> Iterator[Turn]:
    """``pull`` and ``row_sparse_pull`` fill arrays of other floating-point types than the key's."""
    kv = open_store()
    kv.init(list(FLOATS), [full(2.5, dtype=dtype) for dtype in FLOATS])
    yield kv
    outs = []
    for stored in FLOATS:
        for wanted in FLOATS:
            dense, given = full(0, dtype=wanted), full(1, dtype=wanted)
            rows, all_rows, none = (mx.nd.sparse.zeros("row_sparse", SHAPE, dtype=wanted) for _ in range(3))
            kv.pull(stored, out=[dense, given])
            kv.row_sparse_pull(stored, out=rows, row_ids=mx.nd.array([1, 3]))
            kv.pull(stored, out=all_rows, ignore_sparse=False)
            kv.row_sparse_pull(stored, out=none, row_ids=mx.nd.array([]))
            outs.append((wanted, dense, rows, all_rows, none))
    yield kv
    some = np.zeros(SHAPE)
    some[[1, 3]] = 2.5
    for wanted, dense, rows, all_rows, none in outs:
        for array, value in ((dense, 2.5), (rows, some), (all_rows, 2.5), (none, 0)):
            assert array.dtype == np.dtype(wanted)
            expect(array, value)
    refused(UsageError, "int32", kv.pull, "float32", out=full(0, dtype="int32"))


@check
def flags_travel(open_store: OpenStore) -> Iterator[Turn]:
    """Arrays of ``bool`` are initialised, broadcast and pulled; they have no sum."""
    kv = open_store()
    flags = np.arange(15).reshape(SHAPE) % 3 == kv.rank % 3
    out, sent = full(0, dtype="bool"), mx.nd.array(flags, dtype="bool")
    kv.init("a", sent)
    kv.pull("a", out=out)
    kv.broadcast("b", sent, out=sent)
    yield kv
    for array in (out, sent):
        assert array.dtype == np.dtype("bool")
        expect(array, np.arange(15).reshape(SHAPE) % 3 == 0)
    refused(UsageError, "is bool and has no sum", kv.push, "a", sent)
    refused(UsageError, "is bool and has no sum", kv.pushpull, "a", sent)


@check
def a_list_is_pushed_before_any_of_it_is_pulled(open_store: OpenStore) -> Iterator[Turn]:
    """Keys that share an array get the sums of what was in it before the call."""
    kv = open_store()
    kv.init([1, 2, 3], [full(0)] * 3)
    shared = [full(kv.rank + 1), full(0, ctx=mx.cpu(1))]
    kv.pushpull([1, 2, 3], [shared] * 3)
    yield kv
    for array in shared:
        expect(array, sum_of_ranks(kv))
