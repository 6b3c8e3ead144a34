"""Whether all workers update with the same numbers, where each goes by an optimizer of its own.

From the same sums they would otherwise make different weights, and nobody would be told: a learning rate
that one of them has alone, or a batch size where the last batch is smaller on some. Each notes its numbers
in every step, and now and then they add up what they have noted; who has no equal share of the sum differs.
That is one sum of 40 bytes in 64 steps, which nothing waits for.
"""

from __future__ import annotations

import zlib
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.hyper_parameters import MXNetHyper
from kvstore_mpi.adapters.mxnet.optimizer_spec import static_attributes
from kvstore_mpi.errors import MismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from kvstore_mpi.adapters.mxnet.exchange import Exchange
    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import Key

    Array = np.ndarray[Any, Any]

_INTERVAL = 64
"""Steps; the first ones are compared more often, since what is wrong in the script is wrong in those."""

_KEY = "numbers of optimizers"
_SHOWN = ("learning rate", "wd", "rescale_grad")
_LAST = -(1 << 30)
"""Nothing waits for these sums, and weights may have any priority of MXNet's."""


def is_compared(step: int) -> bool:
    """Return whether numbers are compared after a step: 1, 2, 4, ... and then at each interval."""
    return step & (step - 1) == 0 if step < _INTERVAL else step % _INTERVAL == 0


class SameOptimizers:
    """The comparison for one optimizer of one store."""

    def __init__(self, exchange: Exchange, optimizer: Any) -> None:
        """Start with nothing noted; the optimizer is this worker's."""
        self._exchange = exchange
        self._optimizer = optimizer
        self._reader = MXNetHyper(optimizer, _static(optimizer))
        self._first_step: set[Key] | None = set()
        self._beat: Key | None = None
        self._steps = 0
        self._noted: tuple[Any, ...] = ()
        self._digest = zlib.crc32(type(optimizer).__name__.encode())
        self._store = -1  # in which they are added up
        self._sums: Array = np.empty(0)
        self._array = mx.nd.zeros(1)  # by which the engine queues one sum behind the other
        self._created: Future[BaseException | None] = Future()

    def before_push(self, key: Key) -> None:
        """Note the numbers once in each step, and compare them in some."""
        if self._first_step is None:
            if key == self._beat:
                self._note()
        elif key not in self._first_step:
            self._first_step.add(key)
        else:
            # Workers may push in different orders: all choose the same key out of those of the first step.
            self._beat = min(self._first_step, key=str)
            self._note(self._first_step)
            self._first_step = None
            if key == self._beat:
                self._note()

    def _note(self, keys: Collection[Key] = ()) -> None:
        self._steps += 1
        numbers = self._reader.common()
        if numbers != self._noted:
            self._noted = numbers
            multipliers = sorted((str(each), *self._reader.multipliers(each)) for each in keys)
            noted = repr((self._steps, numbers, multipliers))
            self._digest = zlib.crc32(noted.encode(), self._digest)
        if is_compared(self._steps):
            self._compare()

    def _compare(self) -> None:
        if not self._sums.size:
            self._make_sums()
        optimizer = self._optimizer
        shown = optimizer.learning_rate, optimizer.wd, optimizer.rescale_grad
        # Added up exactly: a digest has 32 bits.
        own = np.array([zlib.crc32(str(self._beat).encode()), self._digest, *shown], np.float64)
        # The push that this comes before goes out all the same: others wait for it.
        self._exchange.queue_beside(partial(self._add_up, self._steps, own), self._array, _LAST)

    def _make_sums(self) -> None:
        # Behind all that the script has created, whose numbers a job finds in snapshots.
        exchange = self._exchange
        worker = exchange.worker
        self._store = worker.open_store("sync" if exchange.routes is None else "client")
        self._sums = worker.exchange_buffer(2 + len(_SHOWN), "float64")
        worker.init(self._store, _KEY, self._sums.shape, self._sums, self._created.set_result, scratch=True)

    def _add_up(self, step: int, own: Array, done: Done) -> None:
        """Add up the numbers of all workers; in an operation of the engine."""
        # The initial value of the sums is written when it comes.
        self._created.add_done_callback(lambda result: self._push(result.result(), step, own, done))

    def _push(self, error: BaseException | None, step: int, own: Array, done: Done) -> None:
        if error is not None:
            done(error)
            return
        self._sums[:] = own
        self._exchange.worker.pushpull(self._store, _KEY, _LAST, partial(self._end, step, own, done))

    def _end(self, step: int, own: Array, done: Done, error: BaseException | None) -> None:
        done(error or self._difference(step, own))

    def _difference(self, step: int, own: Array) -> MismatchError | None:
        worker = self._exchange.worker
        beat, digest, *means = (self._sums / worker.num_workers).tolist()
        if beat != own[0] or digest == own[1]:
            return None  # workers that push different keys in their steps have no step in common
        differ = [
            f"{name} {mine:g} here, {mean:g} in the mean of all"
            for name, mine, mean in zip(_SHOWN, own[2:].tolist(), means)
            if mine != mean
        ]
        return MismatchError(
            f"worker {worker.rank}: its {type(self._optimizer).__name__} had other numbers than those of "
            f"other workers in the first {step} steps ({'; '.join(differ) or 'by now they are equal'}), so "
            "that weights differ: where workers update, all must have the same optimizer, learning rate, "
            "multipliers and batch size in each step, the last of an epoch, too"
        )


def _static(optimizer: Any) -> list[str]:
    """Return the attributes beside those that all optimizers have; of an optimizer of the user's none."""
    try:
        return static_attributes(optimizer)
    except UnsupportedError:
        return []  # what they mean is not known here: a number of its own may be as it should be
