"""What keys of which only rows travel must come to over the MXNet store, whatever carries them.

The checks have the form of those in ``mxnet_contract.py`` and hold over any worker, with servers and
without. In async mode, in which every client's push is an update by itself, those of ``async_checks`` hold.
``mpilaunch -m kvstore_mpi.testing.mxnet_rows`` runs them all for this process's worker.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet import KVStoreMPI
from kvstore_mpi.adapters.mxnet.exchange.own_worker import own_worker
from kvstore_mpi.errors import UsageError
from kvstore_mpi.testing.adapter_contract import Turn, refused, run_alone
from kvstore_mpi.testing.mxnet_contract import Check, OpenStore, expect

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW_CHECKS: list[Check] = []

SUMS = {"sums_of_rows", "tables_of_every_type"}
"""Checks of what a key has without an optimizer, which async stores must have."""

ONE_UPDATE = {"the_first_push_makes_a_table", "multipliers_of_tables", "states_of_tables_are_saved"}
"""Checks with momentum or weight decay: two updates come to something else than one with their sum."""

V, D = 11, 3
"""Rows and columns of the tables."""


def check(function: Check) -> Check:
    """Add a check to those that every worker must pass."""
    ROW_CHECKS.append(function)
    return function


def async_checks(num_clients: int) -> list[Check]:
    """Return the checks of async stores; with several clients a round is as many updates."""
    left_out = SUMS | (ONE_UPDATE if num_clients > 1 else set())
    return [one for one in ROW_CHECKS if one.__name__ not in left_out]


def after_all(kv: KVStoreMPI) -> Turn:
    """Return a barrier for async stores, whose pulls wait for nobody else's push; others need none."""
    return kv if "async" in kv.type else None


def sparse(ids: Any, values: Any = None, shape: Any = (V, D), dtype: str = "float32") -> Any:
    """Return a row-sparse array; of no values, row ``i`` is ``i + 1``."""
    rows = np.asarray(ids, np.int64)
    if not rows.size:
        return mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype)
    content = rows + 1 if values is None else np.asarray(values)
    data = np.broadcast_to(content.reshape(-1, *[1] * (len(shape) - 1)), (rows.size, *shape[1:]))
    return mx.nd.sparse.row_sparse_array((mx.nd.array(data, dtype=dtype), rows), shape=shape, dtype=dtype)


def rows_of(array: Any) -> dict[int, float]:
    """Return the first element of each row of a row-sparse array."""
    return dict(zip(array.indices.asnumpy().tolist(), array.data.asnumpy()[:, 0].tolist()))


def only(*rows: int) -> Any:
    """Return a column with ones at these rows."""
    return np.isin(np.arange(V), rows)[:, None]


IOTA = np.arange(1, V + 1)[:, None]
"""What ``sparse(range(V))`` has in each row."""


def sgd(**options: Any) -> Any:
    """Return an optimizer whose steps can be computed in the head."""
    return mx.optimizer.create("sgd", learning_rate=1.0, **options)


def pull_all(kv: KVStoreMPI, key: Any) -> Any:
    """Return an array into which the value of a key is on its way."""
    out = mx.nd.zeros((V, D))
    kv.pull(key, out=out)
    return out


@check
def sums_of_rows(open_store: OpenStore) -> Iterator[Turn]:
    """Without an optimizer a key's value is the last sum: over devices and workers, and zero elsewhere."""
    kv = open_store()
    kv.init("e", sparse([0, 7]))
    start, out = mx.nd.zeros((V, D)), mx.nd.sparse.zeros("row_sparse", (V, D))
    kv.pull("e", out=start)
    kv.push("e", [sparse([4, 1]), sparse([4, 9])])
    yield None
    kv.pull("e", out=out, ignore_sparse=False)
    yield kv
    expect(start, IOTA * only(0, 7))
    assert rows_of(out) == {1: 2 * kv.num_workers, 4: 10 * kv.num_workers, 9: 10 * kv.num_workers}
    kv.push("e", sparse([2]))
    yield None
    kv.pull("e", out=out, ignore_sparse=False)
    dense = pull_all(kv, "e")
    yield kv
    assert rows_of(out) == {2: 3 * kv.num_workers}
    expect(dense, only(2) * 3 * kv.num_workers)


@check
def a_worker_without_rows(open_store: OpenStore) -> Iterator[Turn]:
    """Workers that have no rows push, too; and all may have none."""
    kv = open_store()
    kv.set_optimizer(sgd())
    kv.init(3, sparse(range(V)))
    yield kv
    kv.push(3, sparse([5] if kv.rank == 0 else []))
    yield None
    kv.push(3, sparse([]))
    yield after_all(kv)
    out = pull_all(kv, 3)
    yield kv
    expect(out, IOTA - 6 * only(5))


@check
def some_rows_by_any_ids(open_store: OpenStore) -> Iterator[Turn]:
    """Ids of any integer type and shape, repeated, unsorted or none, also in a recorded forward pass."""
    kv = open_store()
    kv.set_optimizer(sgd())
    kv.init("w", sparse(range(V)))
    yield kv
    kv.push("w", sparse([2, 10], [1, 1]))
    yield after_all(kv)
    outs = {}
    with mx.autograd.record():
        for dtype in ("int32", "int64", "uint8", "float16", "float32", "float64"):
            outs[dtype] = mx.nd.sparse.zeros("row_sparse", (V, D))
            kv.row_sparse_pull("w", out=outs[dtype], row_ids=mx.nd.array([[10, 2], [4, 2]], dtype=dtype))
        half = mx.nd.sparse.zeros("row_sparse", (V, D), dtype="float16")
        none = sparse([3])
        kv.row_sparse_pull("w", out=half, row_ids=mx.nd.array([0, 4]))
        kv.row_sparse_pull("w", out=none, row_ids=mx.nd.array([], dtype="int64"))
        assert mx.autograd.is_recording()
    yield kv
    for out in outs.values():
        assert rows_of(out) == {2: 3 - kv.num_workers, 4: 5, 10: 11 - kv.num_workers}
        assert out.data.shape == (3, D)
    assert rows_of(half) == {0: 1, 4: 5}
    expect(none, 0)


@check
def pushed_rows_may_change_at_once(open_store: OpenStore) -> Iterator[Turn]:
    """A gradient counts as it was at the call, though the next one is written behind it."""
    kv = open_store()
    kv.set_optimizer(sgd())
    kv.init("w", mx.nd.zeros((V, D)))
    yield kv
    gradient, outs = sparse([]), []
    for step in range(4):
        sparse([step, 8], [1, 1]).copyto(gradient)
        kv.push("w", gradient)
        sparse([0], [100]).copyto(gradient)
        yield after_all(kv)
        outs.append(pull_all(kv, "w"))
        yield after_all(kv)
    yield kv
    for step, out in enumerate(outs):
        expect(out, -kv.num_workers * (only(*range(step + 1)) + (step + 1) * only(8)))


@check
def the_same_array_gets_what_has_changed(open_store: OpenStore) -> Iterator[Turn]:
    """Arrays that have had the weight, that are new, that take turns, or are named twice: all get it."""
    kv = open_store()
    kv.set_optimizer(sgd())
    weights = [mx.nd.zeros((V, D)), mx.nd.zeros((V, D)), mx.nd.zeros((V, D), dtype="float64")]
    kv.broadcast("w", mx.nd.zeros((V, D)) + kv.rank, out=weights[:2])
    yield kv
    whole = mx.nd.ones((2 * V, D))
    halves = [whole[:V], whole[V:]]
    for step, outs in enumerate(
        (weights, weights[:2], weights[1:], [weights[0]] * 2, halves, halves, weights)
    ):
        kv.push("w", sparse([step], [1]))
        yield after_all(kv)
        kv.pull("w", out=outs)
        yield after_all(kv)
        for out in outs:
            expect(out, -kv.num_workers * only(*range(step + 1)))
    yield kv


@check
def the_first_push_makes_a_table(open_store: OpenStore) -> Iterator[Turn]:
    """A dense weight becomes one when its first gradient is row-sparse; dense ones may follow."""
    kv = open_store()
    kv.set_optimizer(sgd(momentum=0.5))
    weight = mx.nd.zeros((V, D))
    kv.broadcast("w", mx.nd.ones((V, D)) * (kv.rank + 2), out=weight)
    yield kv
    for gradient in (sparse([1, 2], [1, 1]), sparse([2], [1]), mx.nd.ones((V, D))):
        kv.push("w", gradient)
        yield None
        kv.pull("w", out=weight)
        yield None
    yield kv
    # Row 1 moves by 1, then with its momentum by 1 + 1/2; row 2 by 1, 1.5 and 1.75.
    expect(weight, 2 - kv.num_workers * (1 + 1.5 * only(1) + 3.25 * only(2)))


@check
def multipliers_of_tables(open_store: OpenStore) -> Iterator[Turn]:
    """Rate and weight decay are those of the key, also where the first push makes a table of it."""
    kv = open_store()
    optimizer = sgd(wd=0.5)
    optimizer.set_lr_mult({"d": 0.5, "s": 0.25})
    optimizer.set_wd_mult({"d": 0.0})
    kv.set_optimizer(optimizer)
    kv.init(["d", "s"], [mx.nd.ones((V, D)), sparse(range(V), np.ones(V))])
    yield kv
    kv.push(["d", "s"], [sparse([1], [8]), sparse([1], [8])])
    yield None
    outs = [pull_all(kv, "d"), pull_all(kv, "s")]
    yield kv
    expect(outs[0], 1 - 0.5 * 8 * kv.num_workers * only(1))
    expect(outs[1], 1 - 0.25 * (8 * kv.num_workers + 0.5) * only(1))


@check
def states_of_tables_are_saved(open_store: OpenStore) -> Iterator[Turn]:
    """A store that loads another's states goes on as that one would have."""
    moved = [1.0, 1.5, 1.75]
    with tempfile.TemporaryDirectory() as folder:
        saved = str(Path(folder) / "states")
        for number in range(2):
            kv = open_store()
            kv.set_optimizer(sgd(momentum=0.5))
            kv.init(["d", "s"], [mx.nd.zeros((V, D)), sparse([])])
            yield kv
            if number:
                kv.load_optimizer_states(saved)
                moved = moved[2:]
            yield kv
            for _ in moved[: 2 - number]:
                kv.push(["d", "s"], [sparse([1], [1]), sparse([1], [1])])
                yield None
            outs = [pull_all(kv, "d"), pull_all(kv, "s")]
            yield kv
            if not number:
                kv.save_optimizer_states(saved, dump_optimizer=True)
            yield kv
            for out in outs:
                expect(out, -kv.num_workers * sum(moved[: 2 - number]) * only(1))


@check
def a_pushpull_of_rows(open_store: OpenStore) -> Iterator[Turn]:
    """Pushpull writes the new weight to what it is given, of keys that are tables and of others."""
    kv = open_store()
    kv.set_optimizer(sgd())
    weights = [mx.nd.ones((V, D)), mx.nd.ones((V, D))]
    kv.init(["t", "d"], weights)
    yield kv
    for _ in range(2):
        kv.push("t", [sparse([1, 3]), sparse([3])])
        kv.push("d", mx.nd.ones((V, D)))
        yield after_all(kv)
        kv.pushpull("t" if kv.num_servers else "d", weights[0] * 0, out=weights[1])
        yield after_all(kv)
        kv.pull(["t", "d"], out=weights)
        yield after_all(kv)
    yield kv
    expect(weights[0], 1 - kv.num_workers * (4 * only(1) + 16 * only(3)))
    expect(weights[1], 1 - 2 * kv.num_workers)


@check
def rows_that_are_asked_for_ahead(open_store: OpenStore) -> Iterator[Turn]:
    """They have the pushes that came before the pull, and of a row that was not asked for, too."""
    kv = open_store()
    kv.set_optimizer(sgd())
    kv.init("w", sparse(range(V)))
    yield kv
    kv.prefetch("w", mx.nd.array([1, 2]))
    outs = [mx.nd.sparse.zeros("row_sparse", (V, D)) for _ in range(4)]
    for step, out in enumerate(outs):
        kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array([1, 2, step + 4]))
        yield after_all(kv)
        kv.prefetch("w", mx.nd.array([1, 2]))
        kv.push("w", sparse([2, 9, 10], [1, 1, 1]) if step % 2 else sparse([2], [1]))
        yield after_all(kv)
    yield kv
    for step, out in enumerate(outs):
        rows = rows_of(out)
        assert rows == {1: 2, 2: 3 - step * kv.num_workers, step + 4: step + 5}


@check
def tables_of_every_type(open_store: OpenStore) -> Iterator[Turn]:
    """Rows of each type are summed exactly, and of each shape, be it a table's or not."""
    kv = open_store()
    kinds: list[tuple[str, tuple[int, ...]]] = [
        ("float32", (V, 2, 2)),
        ("float64", (1, 1)),
        ("float32", (V,)),
    ]
    kinds += [(dtype, (V, D)) for dtype in ("float16", "float32", "float64", "int32", "int64", "uint8")]
    outs = {}
    for dtype, shape in kinds:
        key = f"{dtype}{shape}"
        outs[key] = mx.nd.zeros(shape, dtype=dtype)
        kv.init(key, outs[key])
    yield kv
    for (dtype, shape), key in zip(kinds, outs):
        kv.push(key, sparse([0], [kv.rank + 1], shape, dtype))
    yield None
    for key, out in outs.items():
        kv.pull(key, out=out)
    yield kv
    for out in outs.values():
        found = out.asnumpy()
        np.testing.assert_array_equal(found[0], kv.num_workers * (kv.num_workers + 1) / 2)
        np.testing.assert_array_equal(found[1:], 0)


@check
def mistakes_with_rows_are_refused(open_store: OpenStore) -> Iterator[Turn]:
    """What cannot work raises at the call, says what and where, and leaves the store usable."""
    kv = open_store()
    kv.set_optimizer(sgd())
    kv.init("w", sparse(range(V)))
    out, ids = mx.nd.sparse.zeros("row_sparse", (V, D)), mx.nd.array
    refused(UsageError, "11 rows", kv.row_sparse_pull, "w", out=out, row_ids=ids([0, V]))
    refused(UsageError, "-1 to 3", kv.row_sparse_pull, "w", out=out, row_ids=ids([3, -1]))
    refused(UsageError, "nan is none", kv.row_sparse_pull, "w", out=out, row_ids=ids([1, np.nan]))
    refused(UsageError, "inf is none", kv.row_sparse_pull, "w", out=out, row_ids=ids([1, np.inf]))
    refused(UsageError, "2.5 is none", kv.row_sparse_pull, "w", out=out, row_ids=ids([1, 2.5]))
    refused(UsageError, "11 rows", kv.prefetch, "w", ids([0, V]))
    refused(UsageError, "row-sparse", kv.row_sparse_pull, "w", out=mx.nd.zeros((V, D)), row_ids=ids([0]))
    refused(UsageError, "(11, 4)", kv.push, "w", sparse([0], shape=(V, 4)))
    refused(UsageError, "(12, 3)", kv.push, "w", sparse([0], shape=(12, D)))
    refused(UsageError, "float64", kv.push, "w", sparse([0], dtype="float64"))
    refused(UsageError, "duplicate init", kv.init, "w", sparse([0], shape=(V, 4)))
    refused(UsageError, "row-sparse gradients only", kv.push, "w", mx.nd.ones((V, D)))
    refused(UsageError, "int32", kv.pull, "w", out=mx.nd.zeros((V, D), dtype="int32"))
    kv.push("w", sparse([1], [1]))
    yield after_all(kv)
    weight = pull_all(kv, "w")
    yield kv
    expect(weight, IOTA - kv.num_workers * only(1))


def main() -> None:
    """Run all checks of a mode for this process's worker of a real job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    mode = parser.parse_args().mode
    checks = ROW_CHECKS
    if mode == "async":
        checks = async_checks(own_worker(__name__, mode).num_clients)
    for one in checks:
        run_alone(one, partial(KVStoreMPI, mode))
        print(f"passed: {one.__name__}", flush=True)  # noqa: T201  the report of a command


if __name__ == "__main__":
    main()
