"""What MXNet's store must do beside what the store of any framework must.

``MXNetAdapter`` is what ``adapter_contract.py`` needs to know of MXNet. The checks here are generators of
the same form, but are given what opens a store, and use MXNet's arrays. After a turn all workers in a
process wait for MXNet: its operators share scratch memory, so one worker's pending updates can block
another's backward pass there. ``mpilaunch -m kvstore_mpi.testing.mxnet_contract`` runs all checks for this
process's worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet import KVStoreMPI
from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.testing import adapter_contract as any_framework
from kvstore_mpi.testing.adapter_contract import SHAPE, AdapterUnderTest, Array, Turn, refused, run_alone

OpenStore = Callable[[], KVStoreMPI]
Check = Callable[[OpenStore], Iterator[Turn]]


class MXNetAdapter(AdapterUnderTest):
    """MXNet's stores and arrays."""

    dtypes = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")

    def __init__(self, open_store: OpenStore) -> None:
        """Open stores by ``open_store``."""
        self._open_store = open_store

    def open_store(self) -> KVStoreMPI:
        """See ``AdapterUnderTest``."""
        return self._open_store()

    def array(self, value: Array, device: int = 0) -> Any:
        """See ``AdapterUnderTest``."""
        with mx.util.np_shape(True):
            if not value.size:
                return mx.nd.zeros(value.shape, dtype=value.dtype.name, ctx=mx.cpu(device))
            flat = mx.nd.array(value.reshape(-1), dtype=value.dtype.name, ctx=mx.cpu(device))
            return flat.reshape(value.shape)

    def numpy(self, array: Any) -> Array:
        """See ``AdapterUnderTest``."""
        with mx.util.np_shape(True):
            found: Array = array.asnumpy()
        return found


def _over_mxnet(one: any_framework.Check) -> Check:
    """Return a check of any framework as one of MXNet."""

    @functools.wraps(one)
    def run(open_store: OpenStore) -> Iterator[Turn]:
        return one(MXNetAdapter(open_store))

    return run


CHECKS: list[Check] = [_over_mxnet(one) for one in any_framework.CHECKS]


def check(function: Check) -> Check:
    """Add a check to those that every worker must pass."""
    CHECKS.append(function)
    return function


def run_together(one: Check, openers: Sequence[OpenStore]) -> None:
    """Run a check for all workers of a job, in turns between its rendezvous."""
    any_framework.run_together(one, openers, mx.nd.waitall)


def full(value: float, shape: Any = SHAPE, dtype: str = "float32", ctx: Any = None) -> Any:
    """Return an array that holds one value."""
    return mx.nd.full(shape, value, dtype=dtype, ctx=ctx or mx.cpu())


def expect(array: Any, value: Any) -> None:
    """Compare an array with what it must be, exactly."""
    np.testing.assert_array_equal(array.asnumpy(), np.broadcast_to(value, array.shape))


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
def pull_after_push_in_a_loop(open_store: OpenStore) -> Iterator[Turn]:
    """Each pull is of the round of the push before it, whoever pulls what, how late and how often."""
    kv = open_store()
    kv.init(["all", "one", "late"], [full(0)] * 3)
    seen: list[tuple[int, Any]] = []

    def pull(key: str, step: int) -> None:
        seen.append((step, full(-1)))
        kv.pull(key, out=seen[-1][1])

    for step in range(6):
        for key in ("all", "one", "late"):
            kv.push(key, full(kv.rank + 1 + step))
            if key == "all" or (key == "one" and kv.rank == step % 3):
                pull(key, step)
        for _ in range(step % 3):
            pull("late", step)
    yield kv
    pull("late", 5)
    yield kv
    for step, out in seen:
        expect(out, kv.num_workers * (kv.num_workers + 1) // 2 + kv.num_workers * step)


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
def what_mxnet_offers_and_this_store_does_not_is_refused(open_store: OpenStore) -> Iterator[Turn]:
    """It raises at the call, says what and where, and leaves the store usable."""
    kv = open_store()
    kv.init("a", full(0))
    refused(UsageError, "NDArray", kv.push, "a", np.zeros(SHAPE))
    refused(UsageError, "row-sparse", kv.row_sparse_pull, "a", out=full(0), row_ids=mx.nd.array([0]))
    refused(UnsupportedError, "not supported", kv.set_gradient_compression, {"type": "1bit"})
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
    from kvstore_mpi.testing.mxnet_compatibility import COMPATIBILITY_CHECKS  # noqa: PLC0415  it imports this file
    from kvstore_mpi.testing.mxnet_training import TRAINING_CHECKS  # noqa: PLC0415  and so does this

    for one in [*CHECKS, *COMPATIBILITY_CHECKS, *TRAINING_CHECKS]:
        run_alone(one, KVStoreMPI)
        print(f"passed: {one.__name__}", flush=True)  # noqa: T201  the report of a command


if __name__ == "__main__":
    main()
