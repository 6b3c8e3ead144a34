"""One process that merges rows and updates tables with them, by our kernels and by MXNet's.

Started by ``row_merge.py``; writes JSON: how fast memory is copied, and for each case and variant the least
processor time of a call, that of all threads of the process. Variants of a case must agree.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.server_optimizers import (
    Hyper,
    HyperParameters,
    OptimizerSpec,
    build_for_rows,
    state_widths,
    update_rows,
)
from kvstore_mpi.values import row_kernels
from kvstore_mpi.values.rows import RowMerger, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Array = np.ndarray[Any, Any]
    Calls = dict[str, Callable[[], Any]]

PARTS = 4
SHARE = 0.4
"""Of the table's rows that each part has: 54 % of all pushed rows are then different ones."""

COPY_BYTES = 1 << 27
BATCHES = 5
BATCH_S = 0.04
HYPER = Hyper(lr=0.01, wd=0.0, rescale_grad=1.0, clip_gradient=None)


def least_s(call: Callable[[], Any]) -> float:
    """Return the processor time of a call, in the best of several batches, once it is warm.

    Batches, since Linux counts what another thread (MXNet's engine) is just using at its next tick only.
    """
    call()
    begun = time.process_time()
    call()
    calls = 1 + int(BATCH_S / max(time.process_time() - begun, 1e-5))
    batches = []
    for _ in range(BATCHES):
        begun = time.process_time()
        for _ in range(calls):
            call()
        batches.append((time.process_time() - begun) / calls)
    return min(batches)


def memcpy_bytes_per_s() -> float:
    """Return how many bytes one thread reads and writes per second, copying more than the caches hold."""
    source, target = np.ones(COPY_BYTES, np.uint8), np.ones(COPY_BYTES, np.uint8)
    return 2 * COPY_BYTES / least_s(lambda: np.copyto(target, source))


def merges(num_rows: int, width: int) -> Iterator[tuple[str, int, Calls]]:
    """Yield the merge of rows that several workers have pushed."""
    rng = np.random.default_rng(0)
    each = num_rows // PARTS
    table = int(each / SHARE)
    parts = [
        Rows(
            np.sort(rng.choice(table, each, replace=False)),
            rng.standard_normal((each, width), np.float32),
        )
        for _ in range(PARTS)
    ]
    merger, plain = RowMerger(), without_scipy(RowMerger)
    shape = (table, width)
    arrays = [mx.nd.sparse.row_sparse_array((part.values, part.ids), shape=shape) for part in parts]

    def pairwise() -> Any:
        total = arrays[0]
        for array in arrays[1:]:
            total = total + array
        return total.wait_to_read()

    merged = merger.merge(parts, table)
    assert np.array_equal(merged.values, plain.merge(parts, table).values)
    theirs = mx.nd.add_n(*arrays).data.asnumpy()
    np.testing.assert_allclose(theirs, merged.values, rtol=1e-4, atol=1e-5)
    num_bytes = sum(part.values.nbytes for part in parts) + merged.values.nbytes
    yield (
        "merge",
        num_bytes,
        {
            "ours": lambda: merger.merge(parts, table),
            "numpy": lambda: plain.merge(parts, table),
            "mxnet": lambda: mx.nd.add_n(*arrays).wait_to_read(),
            "mxnet pairwise": pairwise,
        },
    )


def updates(num_rows: int, width: int) -> Iterator[tuple[str, int, Calls]]:
    """Yield lazy updates of half of a table's rows."""
    rng = np.random.default_rng(0)
    slots = np.sort(rng.choice(2 * num_rows, num_rows, replace=False))
    gradient = rng.standard_normal((num_rows, width), np.float32)
    shape = (2 * num_rows, width)
    sparse = mx.nd.sparse.row_sparse_array((gradient, slots), shape=shape)
    for momentum in (0.0, 0.9):
        yield lazy_update(momentum, slots, gradient, sparse)


def lazy_update(momentum: float, slots: Array, gradient: Array, sparse: Any) -> tuple[str, int, Calls]:
    """Return the update by SGD, with or without momentum."""
    name = "sgd momentum" if momentum else "sgd"
    numbers = HyperParameters(lr=HYPER.lr)
    rule = build_for_rows(OptimizerSpec(name="sgd", hyper=numbers, params={"momentum": momentum}))
    weight = np.ones(sparse.shape, np.float32)
    state = tuple(
        np.zeros((len(weight), width), np.float32)
        for width in state_widths(rule, weight.shape[1], weight.dtype)
    )
    arrays = [mx.nd.array(table) for table in (weight, *state)]
    update = mx.nd.sparse.sgd_mom_update if momentum else mx.nd.sparse.sgd_update
    numbers_of_mxnet = {"momentum": momentum} if momentum else {}

    def theirs() -> None:
        update(arrays[0], sparse, *arrays[1:], out=arrays[0], lr=HYPER.lr, **numbers_of_mxnet)
        arrays[0].wait_to_read()

    def ours() -> None:
        update_rows(rule, weight, slots, gradient, state, hyper=HYPER, count=1)

    ours()
    theirs()
    np.testing.assert_allclose(weight, arrays[0].asnumpy(), rtol=1e-5)
    # What is read and written: weight and momentum both, the gradient only read.
    touched = (3 + 2 * len(state)) * gradient.nbytes
    calls = {"ours": ours, "numpy": lambda: without_scipy(ours), "mxnet": theirs}
    return name, touched, calls


def without_scipy(call: Callable[[], Any]) -> Any:
    """Return what a call returns where SciPy is not installed."""
    kernel = row_kernels.compiled_kernel
    row_kernels.compiled_kernel = lambda: None  # type: ignore[assignment]
    try:
        return call()
    finally:
        row_kernels.compiled_kernel = kernel


def main() -> None:
    """Measure all cases and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", help="ROWSxWIDTH, comma-separated")
    parser.add_argument("results", type=Path)
    arguments = parser.parse_args()
    assert row_kernels.compiled_kernel() is not None, "SciPy is not installed, or its kernel has changed"
    memcpy, measured = memcpy_bytes_per_s(), []
    for size in arguments.sizes.split(","):
        num_rows, width = map(int, size.split("x"))
        for operations in (merges, updates):
            for operation, num_bytes, calls in operations(num_rows, width):
                seconds = {variant: least_s(call) for variant, call in calls.items()}
                case = {"rows": num_rows, "width": width, "bytes": num_bytes}
                measured.append({"operation": operation, **case, "seconds": seconds})
    arguments.results.write_text(json.dumps({"memcpy_bytes_per_s": memcpy, "measured": measured}))


if __name__ == "__main__":
    main()
