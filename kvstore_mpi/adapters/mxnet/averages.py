"""The servers' averages of weights, in a Trainer's parameters."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers.averages import brought_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from kvstore_mpi.worker.state_parts import KeyStates

    Array = np.ndarray[Any, Any]


def has_average(state: KeyStates) -> bool:
    """Tell whether a key has been updated: before that its average is its value."""
    return bool(state.updates and state.arrays)


def average_of(state: KeyStates, value: Array, decay: float, *, is_table: bool) -> Array:
    """Return the average of a key.

    Args:
        state: What the servers have of it, as ``server_optimizers.averages`` says; it has one.
        value: Its value, as it is now.
        decay: What is left of an average after an update.
        is_table: Its rows have been updated one by one.
    """
    if not is_table:
        return state.arrays[-1].reshape(value.shape)
    # The master has the digits that a float16 row lacks.
    weight = value if state.master is None else state.master
    rows = weight.reshape(len(value), -1)
    average, last = state.arrays[-2].reshape(rows.shape), state.arrays[-1].reshape(-1, 1)
    return brought_up(rows, average, last, state.updates, decay).reshape(value.shape)


@contextlib.contextmanager
def averaged(trainer: Any) -> Iterator[None]:
    """Have the servers' averages in the parameters within a ``with``, to evaluate or to save them.

    Afterwards the parameters are what they were, to the bit. Each worker can do so by itself.

    Args:
        trainer: A ``gluon.Trainer`` that has made a step with a store of which ``average_weights`` was
            called.

    Raises:
        UsageError: There are no averages, or a parameter is on the servers only.
    """
    store = trainer._kvstore  # noqa: SLF001  Gluon has no other way to it
    if not hasattr(store, "_averages"):
        raise UsageError("averaged is for a Trainer that has made a step with a store of kvstore_mpi")
    parameters = dict(enumerate(trainer._params))  # noqa: SLF001
    # By what the servers have, and not by what is trained now: a layer that is frozen by now has been
    # updated before. What never is, as a running mean, is this worker's own.
    averages = store._averages(parameters)  # noqa: SLF001  a part of it
    for key in averages:
        if parameters[key]._stype != "default":  # noqa: SLF001
            raise UsageError(
                f"parameter {parameters[key].name} is row-sparse, and this worker has some of its rows "
                f"only; ask for its average with kv.pull_averages({key}, out=a dense array)"
            )
    arrays = {key: parameters[key].list_data() for key in averages}
    own = {key: [array.copy() for array in each] for key, each in arrays.items()}
    for key, each in arrays.items():
        for array in each:
            array[:] = averages[key]
    try:
        yield
    finally:
        for key, each in arrays.items():
            for copy, array in zip(own[key], each):
                copy.copyto(array)
