"""Update rules on some rows of a table, and the rule that has one number to a row.

Lazy, as MXNet defines it for row-sparse gradients: what a rule does, it does to the rows that have a
gradient, and to their states; the others are left as they are, without decay and without momentum. This
file must not know which rows a slot stands for, or where gradients come from.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.server_optimizers.rules import SGD, Rule, scale_and_clip
from kvstore_mpi.server_optimizers.spec import FRESH
from kvstore_mpi.values.row_kernels import RowAdder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.interfaces import Hyper, Origin, ServerOptimizer
    from kvstore_mpi.server_optimizers.rules import Array, Arrays

_BLOCK_BYTES = 1 << 18
"""Of one table, what is worked on at a time: with states and temporaries it stays in the cache."""


class GroupAdaGrad(Rule, frozen=True):
    """AdaGrad with one rate to a row: g = clip(r), h += mean of g² over the row; w -= lr g / sqrt(h + eps).

    The state is a column. As in MXNet, weight decay plays no part; there it is an error.
    """

    eps: float = 1e-5

    def init(self, weight: Array) -> Arrays:
        """Return a column of zeros for a 2-D weight."""
        return tuple(state[:, :1].copy() for state in super().init(weight))

    def num_states(self) -> int:
        """Return how many arrays the state has."""
        return 1

    def apply(self, weight: Array, gradient: Array, state: Arrays, hyper: Hyper, step: int) -> None:  # noqa: ARG002
        """Carry out one update of a 2-D weight."""
        (history,) = state
        scale_and_clip(gradient, hyper)
        history += np.mean(gradient * gradient, axis=1, keepdims=True)
        gradient *= hyper.lr
        gradient /= np.sqrt(history + history.dtype.type(self.eps))
        weight -= gradient


def update_rows(
    optimizer: ServerOptimizer,
    weight: Array,
    slots: Array,
    gradient: Array,
    state: Arrays,
    *,
    hyper: Hyper,
    count: int,
    origin: Origin = FRESH,
) -> None:
    """Update some rows of a table and of its states in place.

    Args:
        optimizer: What ``registry.build_for_rows`` returned.
        weight: 2-D, C-contiguous: the table.
        slots: int64, 1-D, not repeated: the rows of ``weight`` that the gradient is for, in any order.
        gradient: 2-D, a row for each slot; of any type that can be converted to that of ``weight``. Only
            read: it may be what came over the wire.
        state: Tables with as many rows as ``weight``, as wide as ``state_widths`` says, zero for rows that
            have not been updated yet.
        hyper: The numbers of this update.
        count: Number of the table's update, from 1.
        origin: Whose gradient this is.
    """
    if not len(slots) or not weight.shape[1]:
        return
    # The kernels write wherever a slot points to.
    assert 0 <= slots.min() <= slots.max() < len(weight), "a slot outside the table"
    if _is_descent(optimizer, hyper) and gradient.dtype == weight.dtype != np.float16:
        RowAdder().add(weight, slots, gradient, -hyper.lr * hyper.rescale_grad)
        return
    single = np.float32 if weight.dtype == np.float16 else weight.dtype
    for part, rows in gathered((weight, *state), slots):
        # A copy, since rules spoil their gradient; it is small enough to stay in the cache.
        step = gradient[part].astype(single)
        optimizer.update(rows[0], step, tuple(rows[1:]), hyper, count, origin=origin)


def gathered(tables: Sequence[Array], slots: Array) -> Iterator[tuple[slice, list[Array]]]:
    """Yield copies of the rows of some tables, block by block, and put back what has become of them.

    Args:
        tables: As ``update_rows`` takes them; the first one is as wide as any.
        slots: In bounds and not repeated.

    Yields:
        Which slots, and for each table its rows there: in the cache, and writable.
    """
    widest = tables[0]
    block = min(len(slots), max(1, _BLOCK_BYTES // max(1, widest.shape[1] * widest.itemsize)))
    scratch = [np.empty((block, table.shape[1]), table.dtype) for table in tables]
    for lo in range(0, len(slots), block or 1):
        part = slice(lo, min(lo + block, len(slots)))
        rows = [array[: part.stop - lo] for array in scratch]
        for table, copies in zip(tables, rows):
            # Slots are in bounds; with the mode that checks it NumPy makes another copy first.
            np.take(table, slots[part], axis=0, out=copies, mode="clip")
        yield part, rows
        for table, copies in zip(tables, rows):
            np.put(_items(table), slots[part], _items(copies), mode="clip")


def state_widths(optimizer: ServerOptimizer, width: int, dtype: np.dtype[Any]) -> list[int]:
    """Return the widths of the tables that are an optimizer's state for a table of some width.

    Raises:
        UsageError: The optimizer cannot update this type.
    """
    return [math.prod(state.shape[1:]) for state in optimizer.init(np.empty((0, width), dtype))]


def _is_descent(optimizer: ServerOptimizer, hyper: Hyper) -> bool:
    """Return whether an update only adds a multiple of the gradient, which needs no second look."""
    plain = type(optimizer) is SGD and not optimizer.num_states()
    return plain and not hyper.wd and (hyper.clip_gradient is None or hyper.clip_gradient <= 0)


def _items(table: Array) -> Array:
    """View each row as one item, which NumPy moves twice as fast as a row of numbers."""
    return table.view(np.dtype((np.void, table.shape[1] * table.itemsize))).reshape(-1)
