"""Exact updates of a table: what rows without a gradient have missed, made up for when they are needed.

A lazy update leaves a row without a gradient alone, while dense training would decay it and let its
momentum run on. Here each row knows its last step, and the steps since then are carried out at once when
the row is next read or updated. With w weight, m momentum, mu its factor and a = lr wd, a step without a
gradient is

    sgd                w' = (1 - a) w
    sgd with momentum  m' = mu m - a w;     w' = w + m'
    nag with momentum  w' = (1 - a - mu a) w + mu² m;     m' = mu m - a w'

These are linear, so that any number of steps is one matrix of two by two; learning rate, decay and even
momentum may change from step to step. For these rules the result is that of dense training, up to rounding
(it is rounded once, not once a step). It cannot be for Adam and RMSProp, whose steps without a gradient
divide by a root that shrinks, and where the decay is part of the gradient: those are lazy, or need dense
gradients. AdaGrad has nothing to make up for where MXNet takes rows, without decay. This file must not know
where rows lie, or when they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvstore_mpi.errors import UnsupportedError
from kvstore_mpi.server_optimizers.rows import gathered
from kvstore_mpi.server_optimizers.rules import NAG, SGD

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Hyper, ServerOptimizer
    from kvstore_mpi.server_optimizers.rules import Array, Arrays

Step = tuple[float, float, float, float]
"""ww, wm, mw, mm of a step without a gradient: w' = ww w + wm m, and m' = mw w + mm m."""

_NOTHING: Step = (1.0, 0.0, 0.0, 1.0)


def is_exact(optimizer: ServerOptimizer) -> bool:
    """Return whether what rows have missed can be made up for."""
    return isinstance(optimizer, SGD)


class MissedSteps:
    """What the rows of one table have missed.

    The owner calls ``catch_up`` before it reads or updates rows, and ``note`` after each update of the
    table. It keeps 8 bytes for each row, and as much as ten numbers for each change of a hyper-parameter;
    who has caught up with all rows may go on with a new object.
    """

    def __init__(self, optimizer: ServerOptimizer, num_rows: int) -> None:
        """Start before the first step.

        Args:
            optimizer: What updates the table.
            num_rows: Of the table.

        Raises:
            UnsupportedError: Steps of this optimizer cannot be made up for.
        """
        if not is_exact(optimizer):
            raise UnsupportedError(
                f"steps of {type(optimizer).__name__} without a gradient cannot be made up for later; let "
                "updates be lazy, or use dense gradients (sparse_grad=False)"
            )
        self._optimizer = optimizer
        self._last: Array = np.zeros(num_rows, np.int64)
        self._num_steps = 0
        # Steps that follow each other and are equal are a run: its first step, its matrix, and the product
        # of all steps after it. The matrices are columns.
        self._firsts: Array = np.empty(0, np.int64)
        self._runs: Array = np.empty((4, 0))
        self._after: Array = np.empty((4, 0))

    @property
    def num_runs(self) -> int:
        """How often a hyper-parameter has changed, which each further step takes time for."""
        return len(self._firsts)

    def grow(self, num_rows: int) -> None:
        """Let the table have more rows: they have missed nothing."""
        new = np.full(num_rows - len(self._last), self._num_steps)
        self._last = np.concatenate([self._last, new])

    def renew(self, slots: Array) -> None:
        """Let other rows have these slots: they have missed nothing."""
        self._last[slots] = self._num_steps

    def note(self, slots: Array, hyper: Hyper) -> None:
        """The table has been updated; the rows of these slots were caught up with before."""
        step = _step_of(self._optimizer, hyper)
        self._num_steps += 1
        self._last[slots] = self._num_steps
        if not self.num_runs or step != tuple(self._runs[:, -1]):
            self._firsts = np.append(self._firsts, self._num_steps)
            self._runs = np.column_stack([self._runs, step])
            self._after = np.column_stack([self._after, _NOTHING])
        earlier = self._after[:, :-1]
        earlier[...] = _product(np.reshape(step, (4, 1)), earlier)

    def catch_up(self, weight: Array, state: Arrays, slots: Array) -> None:
        """Carry out all steps that some rows have missed.

        Args:
            weight: The table, as of ``rows.update_rows``.
            state: Its states.
            slots: int64, 1-D, not repeated: the rows.
        """
        late = slots[self._last[slots] < self._num_steps]
        if not len(late) or not weight.shape[1]:
            return
        last = self._last[late]
        self._last[late] = self._num_steps
        self._carry_out((weight, *state), late, last)

    def _carry_out(self, tables: Arrays, slots: Array, last: Array) -> None:
        """Multiply the rows of weight and momentum, or of the weight alone."""
        single = np.result_type(tables[0], np.float32)
        products = self._since(last).astype(single)
        for part, rows in gathered(tables, slots):
            ww, wm, mw, mm = products[:, part, None]
            before = rows[0] * mw
            rows[0] *= ww
            if len(rows) > 1:
                rows[0] += rows[1] * wm
                rows[1] *= mm
                rows[1] += before

    def _since(self, last: Array) -> Array:
        """Return the products of all steps after each of ``last``, as columns."""
        distinct, positions = np.unique(last, return_inverse=True)
        run = np.searchsorted(self._firsts, distinct + 1, side="right") - 1
        ends = np.append(self._firsts[1:], self._num_steps + 1)
        powers = _power(self._runs[:, run], ends[run] - 1 - distinct)
        product: Array = _product(self._after[:, run], powers)[:, positions.reshape(-1)]
        return product


def _step_of(optimizer: ServerOptimizer, hyper: Hyper) -> Step:
    """Return what a step without a gradient does."""
    decay = hyper.lr * hyper.wd
    if isinstance(optimizer, NAG) and optimizer.num_states():
        mu = optimizer.momentum
        ww, wm = 1.0 - decay - mu * decay, mu * mu
        return ww, wm, -decay * ww, mu - decay * wm
    if isinstance(optimizer, SGD) and optimizer.num_states():
        return 1.0 - decay, optimizer.momentum, -decay, optimizer.momentum
    return 1.0 - decay, 0.0, 0.0, 1.0


def _product(later: Array, earlier: Array) -> Array:
    """Multiply matrices, column by column."""
    a, b, c, d = later
    e, f, g, h = earlier
    return np.stack([a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h])


def _power(matrices: Array, exponents: Array) -> Array:
    """Raise each matrix to its power by repeated squaring."""
    result: Array = np.tile(np.reshape(_NOTHING, (4, 1)), len(exponents))
    rest, square = exponents.copy(), matrices
    while rest.any():
        result = np.where(rest & 1, _product(square, result), result)
        square = _product(square, square)
        rest >>= 1
    return result
