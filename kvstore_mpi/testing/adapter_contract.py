"""What the MXNet store must do over any worker, fake or real, alone or with others.

Each check is a generator that one worker runs; ``yield kv`` means "go on when all workers have come here",
and ``yield None`` "in a process with several workers, let the others catch up": MXNet's operators share
scratch memory, so one worker's pending updates can block another's backward pass there.
``run_together`` runs all workers of a fake group in one process and one thread, as MXNet demands.
``run_alone`` runs this process's worker of a real job; so does
``mpilaunch -m kvstore_mpi.testing.adapter_contract``, for all checks. Expected values are computed from
``kv.rank`` and ``kv.num_workers``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet import KVStoreMPI
from kvstore_mpi.errors import UnsupportedError, UsageError

OpenStore = Callable[[], KVStoreMPI]
Turn = KVStoreMPI | None
Check = Callable[[OpenStore], Iterator[Turn]]

DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")
SHAPE = (5, 3)
LARGE = (3, 40_001)
"""More than two slices, and no multiple of one."""

_ENDED: Any = object()

CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that every worker must pass."""
    CHECKS.append(function)
    return function


def run_together(one: Check, openers: list[OpenStore]) -> None:
    """Run a check for all workers of a job, in turns between its meeting points."""
    for turns in itertools.zip_longest(*(one(opener) for opener in openers), fillvalue=_ENDED):
        if len(openers) > 1:
            mx.nd.waitall()
        assert _ENDED not in turns, "the workers take different ways"


def run_alone(one: Check, opener: OpenStore) -> None:
    """Run a check for this process's worker; the others run it in their processes."""
    for kv in one(opener):
        if kv is not None:
            kv.barrier()


def full(value: float, shape: Any = SHAPE, dtype: str = "float32", ctx: Any = None) -> Any:
    """Return an array that holds one value."""
    return mx.nd.full(shape, value, dtype=dtype, ctx=ctx or mx.cpu())


def expect(array: Any, value: Any) -> None:
    """Compare an array with what it must be, exactly."""
    np.testing.assert_array_equal(array.asnumpy(), np.broadcast_to(value, array.shape))


def refused(kind: Any, words: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Make sure that a call raises an error of this kind that says this."""
    said = "nothing"
    try:
        call(*args, **kwargs)
    except kind as error:
        said = str(error)
    assert words in said, f"{words!r} was to be said, but {said} was"


def sum_of_ranks(kv: KVStoreMPI) -> int:
    """Return the sum of ``rank + 1`` over all workers."""
    return kv.num_workers * (kv.num_workers + 1) // 2


# --- values ----------------------------------------------------------------------------------------


@check
def init_takes_rank_zeros_value(open_store: OpenStore) -> Iterator[Turn]:
    """Init and broadcast give every worker what rank 0 has."""
    kv = open_store()
    kv.init("a", full(kv.rank + 7))
    out = full(0)
    kv.pull("a", out=out)
    first, second = full(kv.rank + 8), full(0)
    kv.broadcast("b", first, out=[first, second])
    yield kv
    expect(out, 7)
    expect(first, 8)
    expect(second, 8)


@check
def every_dtype_is_summed(open_store: OpenStore) -> Iterator[Turn]:
    """Pushpull sums each dtype over workers and devices; push and pull do the same."""
    kv = open_store()
    outs = {}
    for dtype in DTYPES:
        kv.init(dtype, full(0, dtype=dtype))
        values = [full(kv.rank + 1, dtype=dtype), full(1, dtype=dtype, ctx=mx.cpu(1))]
        outs[dtype] = [full(0, dtype=dtype), full(0, dtype=dtype, ctx=mx.cpu(1)), full(0, dtype=dtype)]
        kv.pushpull(dtype, values, out=outs[dtype][:2])
        kv.push(dtype, values)
        kv.pull(dtype, out=outs[dtype][2])
    yield kv
    for dtype, arrays in outs.items():
        for out in arrays:
            assert out.dtype == np.dtype(dtype)
            expect(out, sum_of_ranks(kv) + kv.num_workers)


@check
def large_arrays_and_integers_are_exact(open_store: OpenStore) -> Iterator[Turn]:
    """Every element of an array of several slices has its place, and 64-bit integers all their bits."""
    kv = open_store()
    pattern = np.arange(np.prod(LARGE)).reshape(LARGE)
    floats, integers = mx.nd.array(pattern), mx.nd.array(pattern + 2**60, dtype="int64")
    kv.init(["f", "i"], [floats, integers])
    kv.pushpull(["f", "i"], [floats, integers])
    yield kv
    expect(floats, (pattern.astype(np.float32) * kv.num_workers))
    expect(integers, (pattern + 2**60) * kv.num_workers)


@check
def lists_of_keys_and_devices(open_store: OpenStore) -> Iterator[Turn]:
    """Keys come alone or in lists, repeated or not, strings or integers of 64 bits."""
    kv = open_store()
    keys = [3, np.int64(2**40), 5]
    kv.init(keys, [full(0)] * 3)
    kv.push(keys, [[full(1), full(2)], [full(3)], full(4)])
    outs = [[full(0), full(0)], [full(0)], full(0)]
    kv.pull(keys, out=outs)
    kv.push([5, 3, 5], [full(10), full(20), full(30)])
    again = [full(0) for _ in range(3)]
    kv.pull([5, 5, 3], out=again)
    yield kv
    expect(outs[0][0], 3 * kv.num_workers)
    expect(outs[0][1], 3 * kv.num_workers)
    expect(outs[1][0], 3 * kv.num_workers)
    expect(outs[2], 4 * kv.num_workers)
    expect(again[0], 40 * kv.num_workers)
    expect(again[1], 40 * kv.num_workers)
    expect(again[2], 20 * kv.num_workers)


@check
def results_may_overlap_values(open_store: OpenStore) -> Iterator[Turn]:
    """In place, without out, the same array several times, slices of one array."""
    kv = open_store()
    weight = full(1)
    kv.broadcast("a", weight, out=[weight, weight])
    kv.pushpull("a", weight)
    kv.pushpull("a", [weight, weight], out=[weight] * 3)
    whole = mx.nd.array(np.arange(4.0).reshape(4, 1))
    kv.init("rows", mx.nd.zeros((2, 1)))
    kv.pushpull("rows", [whole[0:2], whole[1:3]], out=[whole[2:4], whole[0:2]])
    yield kv
    expect(weight, 2 * kv.num_workers**2)
    expect(whole, kv.num_workers * np.array([[1], [3], [1], [3]]))


@check
def gradients_stay_as_they_are(open_store: OpenStore) -> Iterator[Turn]:
    """Neither push nor pushpull with out changes what was pushed."""
    kv = open_store()
    kv.init("a", full(0))
    gradient, out = full(kv.rank + 1), full(0)
    kv.pushpull("a", gradient, out=out)
    kv.push("a", gradient)
    kv.pull("a", out=out)
    yield kv
    expect(gradient, kv.rank + 1)
    expect(out, sum_of_ranks(kv))


@check
def pushed_values_may_change_at_once(open_store: OpenStore) -> Iterator[Turn]:
    """A value counts as it was at the call, and a later call's value does not overtake it."""
    kv = open_store()
    kv.init("a", full(0))
    value, outs = full(0), []
    for step in range(5):
        value[:] = step + kv.rank
        outs.append(full(-1))
        kv.pushpull("a", value, out=outs[-1])
        value[:] = -100
    yield kv
    for step, out in enumerate(outs):
        expect(out, step * kv.num_workers + sum_of_ranks(kv) - kv.num_workers)


@check
def workers_may_order_keys_differently(open_store: OpenStore) -> Iterator[Turn]:
    """Keys are matched by name: each worker may go through them in its own order."""
    kv = open_store()
    keys = [f"k{index}" for index in range(8)]
    for key in keys:
        kv.init(key, full(0))
    outs = {key: full(0) for key in keys}
    order = keys if kv.rank % 2 else keys[::-1]
    for key in order[kv.rank :] + order[: kv.rank]:
        kv.pushpull(key, full(int(key[1:]) + kv.rank), out=outs[key], priority=-int(key[1:]))
    yield kv
    for key in keys:
        expect(outs[key], int(key[1:]) * kv.num_workers + sum_of_ranks(kv) - kv.num_workers)


@check
def empty_and_zero_dimensional_arrays(open_store: OpenStore) -> Iterator[Turn]:
    """Arrays without elements and without dimensions are keys like others."""
    kv = open_store()
    with mx.util.np_shape(True):
        empty, point, out = mx.nd.zeros((0, 3)), mx.nd.ones(()), mx.nd.zeros(())
    kv.init(["empty", "point"], [empty, point])
    kv.pushpull("empty", empty)
    kv.pushpull("point", point, out=out)
    kv.push("empty", empty)
    kv.pull("empty", out=empty)
    yield kv
    with mx.util.np_shape(True):
        assert empty.shape == (0, 3)
        expect(out, kv.num_workers)


@check
def numpy_interface(open_store: OpenStore) -> Iterator[Turn]:
    """Arrays of ``mx.np`` go in and out."""
    kv = open_store()
    with mx.util.np_shape(True):
        value, out, point = mx.np.ones(SHAPE), mx.np.zeros(SHAPE), mx.np.ones(())
        kv.init("a", value)
        kv.broadcast("b", point, out=[point])
        kv.pushpull("a", value, out=out)
        kv.pushpull("b", [point])
    yield kv
    with mx.util.np_shape(True):
        expect(out, kv.num_workers)
        expect(point, kv.num_workers)


@check
def weights_in_onednns_layout(open_store: OpenStore) -> Iterator[Turn]:
    """Weights that an inference pass has put in another layout are read and written right."""
    kv = open_store()
    shape = (64, 64, 3, 3)
    pattern = (np.arange(np.prod(shape)) % 97).reshape(shape).astype(np.float32)
    weights = [mx.nd.array(pattern), mx.nd.array(pattern)]
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))  # meets values in the plain layout
    kv.init("w", weights[0])
    for _ in range(2):
        for weight in weights * 3:
            images = mx.nd.ones((2, 64, 8, 8))
            mx.nd.Convolution(images, weight, kernel=(3, 3), num_filter=64, no_bias=True).wait_to_read()
        yield None
        kv.pushpull("w", weights)
        yield None
    for weight in weights:
        expect(weight, pattern * (1 - 2 * kv.num_workers) ** 2)


@check
def calls_inside_autograd_record(open_store: OpenStore) -> Iterator[Turn]:
    """Calls while autograd records leave no trace in the record."""
    kv = open_store()
    data, weight = full(2), full(0)
    for array in (data, weight):
        array.attach_grad()
    kv.init("a", weight)
    with mx.autograd.record():
        value = data * data
        kv.pushpull("a", value, out=weight)
        result = weight * value
        assert mx.autograd.is_recording()
    result.backward()
    yield kv
    expect(weight.grad, 4)
    expect(data.grad, 4 * kv.num_workers * 4)


@check
def stores_do_not_meet(open_store: OpenStore) -> Iterator[Turn]:
    """Two stores of one process have the same keys with different shapes and values."""
    first, second = open_store(), open_store()
    one, two = full(1), full(2, shape=(7,))
    first.init(0, one)
    second.init(0, two)
    first.pushpull(0, one)
    second.pushpull(0, two)
    yield first
    expect(one, first.num_workers)
    expect(two, 2 * first.num_workers)


@check
def not_a_number_passes(open_store: OpenStore) -> Iterator[Turn]:
    """NaN and infinity are values like others."""
    kv = open_store()
    value = mx.nd.array([np.nan, np.inf, -np.inf, 1])
    kv.init("a", value)
    kv.pushpull("a", value)
    yield kv
    expect(value, [np.nan, np.inf, -np.inf, kv.num_workers])


# --- row-sparse values -----------------------------------------------------------------------------


@check
def row_sparse_values(open_store: OpenStore) -> Iterator[Turn]:
    """Row-sparse values are summed; rows come in any order, type and shape, repeated or not at all."""
    kv = open_store()
    shape = (6, 2)
    kv.init("e", mx.nd.ones(shape).tostype("row_sparse"))
    yield None
    start = mx.nd.sparse.zeros("row_sparse", shape)
    kv.row_sparse_pull("e", out=start, row_ids=mx.nd.array([1, 4, 1], dtype="float16"))
    value = mx.nd.sparse.row_sparse_array((mx.nd.ones((2, 2)), [kv.rank % 6, 5]), shape=shape)
    kv.push("e", [value, value])
    kv.pull("e", out=start)
    total = np.zeros(shape)
    for rank in range(kv.num_workers):
        total[rank % 6] += 2
        total[5] += 2
    outs = [mx.nd.sparse.zeros("row_sparse", shape) for _ in range(4)]
    dense = mx.nd.zeros(shape)
    yield kv
    expect(start, np.array([0, 1, 0, 0, 1, 0])[:, None])
    kv.pull("e", out=[outs[0], dense])
    kv.row_sparse_pull("e", out=outs[:2], row_ids=mx.nd.array([[5, 0], [0, 5]], dtype="int64"))
    some = [mx.nd.array([2, 5, 3]), mx.nd.array(np.array([]), dtype="int32")]
    kv.row_sparse_pull("e", out=outs[2:], row_ids=some)
    yield kv
    expect(dense, total)
    for out in outs[:2]:
        assert out.indices.asnumpy().tolist() == [0, 5]
        expect(out, total * np.array([1, 0, 0, 0, 0, 1])[:, None])
    assert outs[2].indices.asnumpy().tolist() == [2, 3, 5]
    expect(outs[2], total * np.array([0, 0, 1, 1, 0, 1])[:, None])
    expect(outs[3], 0)
    kv.pull("e", out=outs[3], ignore_sparse=False)
    yield kv
    expect(outs[3], total)


# --- what is refused -------------------------------------------------------------------------------


@check
def mistakes_are_refused_at_once(open_store: OpenStore) -> Iterator[Turn]:
    """What cannot work raises at the call, says what and where, and leaves the store usable."""
    kv = open_store()
    kv.init("a", full(0))
    refused(UsageError, "'b' has not been initialised", kv.push, "b", full(0))
    refused(UsageError, "'b' has not been initialised", kv.pull, "b", out=full(0))
    refused(UsageError, "(2, 2) float32", kv.init, "a", full(0, shape=(2, 2)))
    refused(UsageError, "(2, 2) float32", kv.pushpull, "a", full(0, shape=(2, 2)))
    refused(UsageError, "int32", kv.pull, "a", out=full(0, dtype="int32"))
    refused(UsageError, "float64", kv.pushpull, "a", full(0), out=full(0, dtype="float64"))
    refused(UsageError, "mixed key types", kv.init, 3, full(0))
    refused(UsageError, "NDArray", kv.push, "a", np.zeros(SHAPE))
    refused(UsageError, "strings or integers", kv.push, 1.5, full(0))
    refused(UsageError, "2 keys", kv.push, ["a", "a"], [full(0)])
    refused(UsageError, "row-sparse", kv.row_sparse_pull, "a", out=full(0), row_ids=mx.nd.array([0]))
    refused(UnsupportedError, "not supported yet", kv.set_gradient_compression, {"type": "2bit"})
    refused(UnsupportedError, "commands", kv._send_command_to_servers, 0, "")  # noqa: SLF001
    refused(UsageError, "set_optimizer first", kv.save_optimizer_states, "unused")
    refused(ValueError, "unknown capability", kv.is_capable, "flight")
    kv.set_gradient_compression({"type": "none"})
    assert kv.is_capable("optimizer")
    value = full(1)
    kv.pushpull("a", value)
    yield kv
    expect(value, kv.num_workers)


def main() -> None:
    """Run all checks for this process's worker of a real job."""
    from kvstore_mpi.testing.adapter_compatibility import COMPATIBILITY_CHECKS  # noqa: PLC0415  it imports this file
    from kvstore_mpi.testing.adapter_training import TRAINING_CHECKS  # noqa: PLC0415  and so does this

    for one in [*CHECKS, *COMPATIBILITY_CHECKS, *TRAINING_CHECKS]:
        run_alone(one, KVStoreMPI)
        print(f"passed: {one.__name__}", flush=True)  # noqa: T201  the report of a command


if __name__ == "__main__":
    main()
