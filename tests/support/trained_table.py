"""A small table that the workers of a job in one process train together, and what it is then."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import Rows
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvstore_mpi.worker.worker import Worker

Array = np.ndarray[Any, Any]

SHAPE = (23, 3)
SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={}).to_dict()


def initial() -> Array:
    """Return the table before the first step."""
    return np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)


def wait(call: Callable[..., None], *args: Any, **named: Any) -> None:
    """Make an asynchronous call and wait for its end."""
    ended = threading.Event()
    errors: list[BaseException | None] = []

    def done(error: BaseException | None) -> None:
        errors.append(error)
        ended.set()

    call(*args, done=done, **named)
    assert ended.wait(20)
    if errors[0] is not None:
        raise errors[0]


def init(worker: Worker, store: int, value: Array | None = None, **how: Any) -> Array:
    """Create the table; return it as this worker has it then."""
    if value is None:
        value = initial() if worker.rank == 0 else np.zeros(SHAPE, np.float32)
    wait(worker.init_rows, store, "t", SHAPE, "float32", value=value, **how)
    return value


def rows_of(worker: Worker, step: int, count: int = 5) -> Rows:
    """Return some rows of one worker in one step; integers, so that sums are exact in any order."""
    random = np.random.default_rng([worker.rank, step])
    size = random.integers(0, count + 1)
    ids = np.sort(random.choice(SHAPE[0], size=size, replace=False)).astype(np.int64)
    return Rows(ids, random.integers(-8, 9, (ids.size, SHAPE[1])).astype(np.float32))


def scatter(table: Array, out: Iterable[Rows]) -> None:
    """Write rows into a table."""
    for ids, values in out:
        table[ids] = values


def expected(workers: Sequence[Worker], steps: int, rate: float = 0.5) -> Array:
    """Return what one process would have after some steps."""
    table = initial()
    for step in range(steps):
        total = np.zeros(SHAPE, np.float32)
        for worker in workers:
            ids, values = rows_of(worker, step)
            total[ids] += values
        table -= np.float32(rate) * total
    return table
