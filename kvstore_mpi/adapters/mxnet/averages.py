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


def average_of(state: KeyStates | None, value: Array, decay: float, *, is_table: bool) -> Array:
    """Return the average of a key.

    Args:
        state: What the servers have of it, as ``server_optimizers.averages`` says; ``None`` for nothing.
        value: Its value, as it is now.
        decay: What is left of an average after an update.
        is_table: Its rows have been updated one by one.
    """
    if state is None or not state.updates or not state.arrays:
        return value
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
    if not hasattr(store, "pull_averages"):
        raise UsageError("averaged is for a Trainer that has made a step with a store of kvstore_mpi")
    parameters = enumerate(trainer._params)  # noqa: SLF001
    trained = [(index, each) for index, each in parameters if each.grad_req != "null"]
    for index, parameter in trained:
        if parameter._stype != "default":  # noqa: SLF001
            raise UsageError(
                f"parameter {parameter.name} is row-sparse, and this worker has some of its rows only; ask "
                f"for its average with kv.pull_averages({index}, out=a dense array)"
            )
    own = [[array.copy() for array in parameter.list_data()] for _, parameter in trained]
    keys = [index for index, _ in trained]
    store.pull_averages(keys, [parameter.list_data() for _, parameter in trained])
    try:
        yield
    finally:
        for (_, parameter), copies in zip(trained, own):
            for copy, array in zip(copies, parameter.list_data()):
                copy.copyto(array)
