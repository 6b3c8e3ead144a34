"""Whether all workers update with the same numbers, where each goes by an optimizer of its own.

From the same sums they would otherwise make different weights, and nobody would be told: a learning rate
that one of them has alone, or a batch size where the last batch is smaller on some. Each notes its numbers
in every step, and now and then tells the coordinator a digest of all of them, which nothing waits for. What
is left is told at the next barrier, or when the worker leaves.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from kvstore_mpi.adapters.mxnet.updates.hyper_parameters import MXNetHyper
from kvstore_mpi.adapters.mxnet.updates.optimizer_spec import static_attributes
from kvstore_mpi.errors import UnsupportedError
from kvstore_mpi.records import OptimizerNumbers

if TYPE_CHECKING:
    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.records import Key

_INTERVAL = 64
"""Steps; the first ones are compared more often, since what is wrong in the script is wrong in those."""


def is_compared(step: int) -> bool:
    """Return whether numbers are compared after a step: 1, 2, 4, ... and then at each interval."""
    return step & (step - 1) == 0 if step < _INTERVAL else step % _INTERVAL == 0


class SameOptimizers:
    """What is noted of one optimizer of one store.

    Attributes:
        optimizer: This worker's.
    """

    def __init__(self, exchange: Exchange, optimizer: Any, given: int) -> None:
        """Start with nothing noted of an optimizer, the ``given``-th of the store."""
        self.optimizer = optimizer
        self._exchange = exchange
        self._given = given
        self._begin = int(optimizer.num_update)
        self._reader = MXNetHyper(optimizer, _static(optimizer))
        self._counts: dict[Key, int] = {}  # of pushes
        self._keys: list[Key] = []  # of the first step
        self._steps = 0
        self._noted: tuple[Any, ...] = ()
        self._multipliers: list[tuple[float, float]] = []  # of those keys
        self._shown: dict[str, float] = {}
        self._digest = zlib.crc32(type(optimizer).__name__.encode())

    def before_push(self, key: Key) -> None:
        """Note the numbers once in each step, and have them told at once in some.

        A step begins with the first push of a key that has more than any had before, whichever it is:
        workers may push in different orders, and a layer may be frozen later.
        """
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= self._steps:
            return
        if self._steps == 1:  # which keys the first step has is known when the second one begins
            self._keys = sorted(self._counts, key=str)
            self._note()
            self._exchange.worker.tell_numbers()
        self._begin_step()
        if self._keys and is_compared(self._steps):
            self._exchange.worker.tell_numbers()

    def _begin_step(self) -> None:
        self._steps += 1
        # At this step, as others may have made an update of it before they come to this key.
        numbers = self._reader.common(self._begin + self._steps)
        if numbers != self._noted:
            self._noted = numbers
            self._digest = zlib.crc32(repr((self._steps, numbers)).encode(), self._digest)
            self._shown = _shown(self.optimizer)
        self._note()

    def _note(self) -> None:
        # In 0.6 us for each key, a fraction of what its push takes.
        multipliers = [self._reader.multipliers(each) for each in self._keys]
        if multipliers != self._multipliers:
            self._multipliers = multipliers
            of_keys = list(zip(map(str, self._keys), multipliers))
            self._digest = zlib.crc32(repr((self._steps, of_keys)).encode(), self._digest)
        store, key = self._exchange.store, self._keys[0] if self._keys else ""
        self._exchange.worker.note_numbers(
            OptimizerNumbers(store, self._given, key, self._steps, self._digest, self._shown)
        )


def _shown(optimizer: Any) -> dict[str, float]:
    shown = {
        "learning rate": optimizer.learning_rate,
        "wd": optimizer.wd,
        "rescale_grad": optimizer.rescale_grad,
    }
    return {name: float(value) for name, value in shown.items()}


def _static(optimizer: Any) -> list[str]:
    """Return the attributes beside those that all optimizers have; of an optimizer of the user's none."""
    try:
        return [name for name in static_attributes(optimizer) if hasattr(optimizer, name)]
    except UnsupportedError:
        return []  # what they mean is not known here: a number of its own may be as it should be
