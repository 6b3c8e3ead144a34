"""Moving averages of weights, kept beside them as a slot of the optimizer's state.

After each update of a weight w its average a becomes a' = d a + (1 - d) w, beginning with the first w. Of a
table only the rows that are updated move, and a row that is left alone for k updates would have come to

    a' = w + d^k (a - w),

since w stays: so each row knows its last update, and its average is brought up to date when it is next
updated or read. That is what all rows of a dense weight would have, to rounding. This file must not know
where averages are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import StoreTerms
from kvstore_mpi.server_optimizers.spec import FRESH, check_number
from kvstore_mpi.server_optimizers.wrappers import Wrapper

if TYPE_CHECKING:
    from kvstore_mpi import interfaces
    from kvstore_mpi.interfaces import Origin
    from kvstore_mpi.server_optimizers.rules import Array, Arrays

MOST_DECAY = 0.999999


class Averaged(Wrapper):
    """An optimizer of gradients beside which the servers keep averages of the weights.

    Its states are those of the inner one, then the average and, of a table, the number of each row's last
    update: 0 for a row that has had none.
    """

    name = "averaged"
    terms = StoreTerms()

    def __init__(self, optimizer: str, *, learning_rate: float, decay: float, **hyper: Any) -> None:
        """Describe the optimizer.

        Args:
            optimizer: Registered name of the one that updates.
            learning_rate: Its learning rate.
            decay: What is left of an average after an update, above 0 and below 1.
            hyper: Its other hyper-parameters, by the names of MXNet's constructor.

        Raises:
            UsageError: A number is out of bounds.
        """
        check_number("decay", decay, 1e-6, MOST_DECAY)
        super().__init__(optimizer, learning_rate=learning_rate, **hyper)
        self.own = {"decay": decay}

    def init(self, weight: Array) -> Arrays:
        """Return the inner rule's state, the average, and of a 2-D weight a column of zeros.

        Raises:
            UsageError: The weight has half precision, in which an average would stand still.
        """
        if weight.dtype == np.float16:
            raise UsageError(
                "averages of float16 weights need single precision: give the optimizer multi_precision=True"
            )
        last = (np.zeros((len(weight), 1), weight.dtype),) if weight.ndim > 1 else ()
        return (*super().init(weight), weight.copy(), *last)

    def update(
        self,
        weight: Array,
        gradient: Array,
        state: Arrays,
        hyper: interfaces.Hyper,
        count: int,
        *,
        origin: Origin = FRESH,
    ) -> None:
        """Let the inner rule update, then move the averages; see ``Rule.update``."""
        num_own = min(weight.ndim, 2)
        inner, own = state[:-num_own], state[-num_own:]
        decay = self.own["decay"]
        average = own[0]
        if len(own) > 1:
            average[...] = brought_up(weight, average, own[1], count - 1, decay)
            own[1][...] = count
        self.rule.update(weight, gradient, inner, hyper, count, origin=origin)
        with np.errstate(all="ignore"):
            average -= weight
            average *= decay
            average += weight


def brought_up(weight: Array, average: Array, last: Array, count: int, decay: float) -> Array:
    """Return the averages of rows after ``count`` updates of their table.

    Args:
        weight: The rows, as they have been since their last update.
        average: As it was after that.
        last: Its number, a column; 0 for rows that have had none.
        count: Updates of the table.
        decay: What is left of an average after an update.
    """
    with np.errstate(all="ignore"):
        missed = np.maximum(count - last, 0)
        left = np.where(last > 0, np.power(average.dtype.type(decay), missed), 0).astype(average.dtype)
        brought: Array = weight + left * (average - weight)
    return brought
