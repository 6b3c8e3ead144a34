"""What scripts for MXNet's own stores rely on, beside the values that the contracts are about.

The checks have the form of those in ``mxnet_contract.py`` and hold over any worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.testing.adapter_contract import FLOATS, LARGE, SHAPE, refused
from kvstore_mpi.testing.mxnet_contract import expect, full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvstore_mpi.testing.adapter_contract import Turn
    from kvstore_mpi.testing.mxnet_contract import Check, OpenStore

COMPATIBILITY_CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that every worker must pass."""
    COMPATIBILITY_CHECKS.append(function)
    return function


@check
def sparse_pulls_convert_between_floats(open_store: OpenStore) -> Iterator[Turn]:
    """Row-sparse arrays may be of other floating-point types than the key's, too."""
    kv = open_store()
    kv.init(list(FLOATS), [full(2.5, dtype=dtype) for dtype in FLOATS])
    yield kv
    outs = []
    for stored in FLOATS:
        for wanted in FLOATS:
            rows, all_rows, none = (mx.nd.sparse.zeros("row_sparse", SHAPE, dtype=wanted) for _ in range(3))
            kv.row_sparse_pull(stored, out=rows, row_ids=mx.nd.array([1, 3]))
            kv.pull(stored, out=all_rows, ignore_sparse=False)
            kv.row_sparse_pull(stored, out=none, row_ids=mx.nd.array([]))
            outs.append((wanted, rows, all_rows, none))
    yield kv
    some = np.zeros(SHAPE)
    some[[1, 3]] = 2.5
    for wanted, rows, all_rows, none in outs:
        for array, value in ((rows, some), (all_rows, 2.5), (none, 0)):
            assert array.dtype == np.dtype(wanted)
            expect(array, value)
    whole = mx.nd.sparse.zeros("row_sparse", SHAPE, dtype="int32")
    refused(UsageError, "int32", kv.row_sparse_pull, "float32", out=whole, row_ids=mx.nd.array([1]))


# --- optimizers and schedules of the user's own --------------------------------------------------------


class Sequential(mx.lr_scheduler.LRScheduler):  # type: ignore[misc]
    """One scheduler after the other, as toolkits for MXNet have it; the servers do not know the class."""

    def __init__(self, *parts: tuple[int, Any]) -> None:
        """Take pairs of a number of updates and the scheduler that they have."""
        super().__init__()
        self.parts = parts

    def __call__(self, num_update: int) -> float:
        """Return the rate of the update with this number."""
        done = 0
        for length, scheduler in self.parts[:-1]:
            if num_update < done + length:
                return float(scheduler(num_update - done))
            done += length
        return float(self.parts[-1][1](num_update - done))


class Lion(mx.optimizer.Optimizer):  # type: ignore[misc]
    """An optimizer that MXNet does not have; its steps depend on the update's number."""

    def create_state(self, index: Any, weight: Any) -> Any:  # noqa: ARG002  MXNet's signature
        """Return the momentum."""
        return mx.nd.zeros(weight.shape, dtype=weight.dtype)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Step by the momentum's sign."""
        self._update_count(index)
        grad = self._preprocessed_grad(grad)
        rate = self._get_lr(index) / self._index_update_count[index]
        weight[:] -= rate * mx.nd.sign(0.9 * state + 0.1 * grad) + self._get_wd(index) * weight
        state[:] = 0.99 * state + 0.01 * grad

    def _preprocessed_grad(self, grad: Any) -> Any:
        return grad * self.rescale_grad


def schedule() -> Sequential:
    """Return a warm-up, a decay and a constant rate."""
    kinds = mx.lr_scheduler
    rise = kinds.PolyScheduler(max_update=2, base_lr=0.1, pwr=1, final_lr=0.4)
    return Sequential(
        (2, rise), (2, kinds.FactorScheduler(1, 0.5, base_lr=0.4)), (1, kinds.FactorScheduler(99))
    )


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "own_schedule": lambda: mx.optimizer.create("sgd", momentum=0.9, lr_scheduler=schedule()),
    "own_schedule_for_adam": lambda: mx.optimizer.create(
        "adam", lr_scheduler=schedule(), begin_num_update=1
    ),
    "own_optimizer": lambda: Lion(learning_rate=0.25, wd=0.125, rescale_grad=0.5),
    "own_optimizer_and_schedule": lambda: Lion(lr_scheduler=schedule()),
}
"""What must come to what one process comes to with the sums of all gradients."""

STEPS = 7
SHAPES = {"a": SHAPE, "b": LARGE}


def initial(key: str) -> Any:
    """Return rank 0's weights: they grow along the tensor, so that no part has the norm of the whole."""
    shape = SHAPES[key]
    return mx.nd.array(np.linspace(0.5, 2, int(np.prod(shape))).reshape(shape))


def gradient(rank: int, step: int, key: str) -> Any:
    """Return a worker's gradient, of small numbers that are added up exactly in any order."""
    size = int(np.prod(SHAPES[key]))
    return mx.nd.array((np.arange(size) * (rank + 2) + step) % 7 - 3).reshape(SHAPES[key])


def trained_in_one_process(make: Callable[[], Any], num_workers: int) -> dict[str, Any]:
    """Return the weights after all steps with the sums over ``num_workers`` workers."""
    weights = {key: initial(key) for key in SHAPES}
    updater = mx.optimizer.get_updater(make())
    for step in range(STEPS):
        for key, weight in weights.items():
            updater(key, sum(gradient(rank, step, key) for rank in range(num_workers)), weight)
    return {key: weight.asnumpy() for key, weight in weights.items()}


def _check_training(make: Callable[[], Any], *, keys_first: bool, atol: float) -> Check:
    """Return the check of one optimizer, given before the keys are created or after that."""

    def trains(open_store: OpenStore) -> Iterator[Turn]:
        kv, outs = open_store(), {key: full(0, shape) for key, shape in SHAPES.items()}
        if not keys_first:
            kv.set_optimizer(make())
        kv.init(list(SHAPES), [initial(key) + kv.rank for key in SHAPES])
        yield kv
        if keys_first:
            kv.set_optimizer(make())
        yield kv
        for step in range(STEPS):
            for key, out in outs.items():
                if step % 2:
                    kv.push(key, gradient(kv.rank, step, key))
                    kv.pull(key, out=out)
                else:
                    kv.pushpull(key, gradient(kv.rank, step, key), out=out)
            yield None
        yield kv
        for key, expected in trained_in_one_process(make, kv.num_workers).items():
            np.testing.assert_allclose(outs[key].asnumpy(), expected, rtol=1e-5, atol=atol)

    return trains


def _whole_tensors() -> Any:
    return mx.optimizer.create("lamb", learning_rate=0.25)


ATOL, LAMB_ATOL = 1e-6, 2e-3
"""MXNet sums the squares of LAMB's norms in float32, in one way for one array and in another for a list:
after these steps each of its results is 2e-4 from float64's. With norms of slices instead of the whole
tensor it would be 0.8."""

for _name, _make, _keys_first, _atol in (
    *((name, make, False, ATOL) for name, make in OPTIMIZERS.items()),
    *((f"{name}_after_the_keys", make, True, ATOL) for name, make in OPTIMIZERS.items()),
    # which may be spread over servers
    ("whole_tensors_after_the_keys", _whole_tensors, True, LAMB_ATOL),
):
    _one = _check_training(_make, keys_first=_keys_first, atol=_atol)
    _one.__name__ = _name
    check(_one)


@check
def the_trainer_tells_the_rate(open_store: OpenStore) -> Iterator[Turn]:
    """``learning_rate`` of a Trainer is the scheduler's of the last step, known to the servers or not."""
    trainers = []
    for make in (schedule, lambda: mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.4)):
        param = mx.gluon.Parameter("weight", shape=SHAPE)
        param.initialize(init="ones")
        options = {"lr_scheduler": make()}
        trainers.append((make(), param, mx.gluon.Trainer([param], "sgd", options, kvstore=open_store())))
    for step in range(1, STEPS + 1):
        for expected, param, trainer in trainers:
            with mx.autograd.record():
                loss = (param.data() * 2).sum()
            loss.backward()
            trainer.step(1)
            assert trainer.learning_rate == expected(step)
        yield None
    mx.nd.waitall()
