"""What the servers of a group of fake workers do with a sum: the project's own optimizers, on whole keys.

This file must not know when a push is complete, or who is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvstore_mpi.server_optimizers import (
    HyperParameters,
    OptimizerSpec,
    Origin,
    build,
    hyper_for,
    pseudo_gradient,
    terms_of,
)
from kvstore_mpi.worker.state_parts import KeyStates

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import ServerOptimizer
    from kvstore_mpi.records import Key

Array = np.ndarray[Any, Any]


class Rule(Protocol):
    """What the servers of a group do with a sum."""

    def set_hyper(self, hyper: dict[str, Any]) -> None:
        """Change hyper-parameters."""
        ...

    def update(self, key: Key, value: Array, pushed: list[Array]) -> Array:
        """Update a flat value in place with what workers have pushed; return what they are answered."""
        ...

    def update_rows(self, key: Key, table: Array, ids: Array, gradient: Array) -> None:
        """Update some rows of a table, and their states, and no others; the gradient is a whole table."""
        ...

    def states(self) -> dict[Key, KeyStates]:
        """Return the states of all keys that have been updated."""
        ...

    def load(self, states: dict[Key, KeyStates]) -> None:
        """Replace the states of these keys."""
        ...


class OptimizerRule:
    """The project's own server optimizers, on whole keys."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Build the rule that ``OptimizerSpec.to_dict`` describes."""
        self._spec = OptimizerSpec.from_dict(spec)
        self._hyper: HyperParameters = self._spec.hyper
        self._optimizer: ServerOptimizer = build(self._spec)
        self._terms = terms_of(self._spec)
        self._states: dict[Key, KeyStates] = {}

    def set_hyper(self, hyper: dict[str, Any]) -> None:
        """See ``Rule``."""
        self._hyper = HyperParameters.from_dict(hyper)

    def update(self, key: Key, value: Array, pushed: list[Array]) -> Array:
        """See ``Rule``."""
        before = value.copy()
        if self._terms.params:
            gradient = np.empty_like(value, np.float32 if value.dtype == np.float16 else None)
            pseudo_gradient(gradient, value, pushed)
        else:
            gradient = sum_of(pushed)
        state = self._states.get(key) or self._new_state(value)
        weight = value if state.master is None else state.master
        count = state.updates + 1
        hyper = hyper_for(self._hyper, key, count)
        self._optimizer.update(
            weight,
            gradient.astype(weight.dtype),
            tuple(state.arrays),
            hyper,
            count,
            origin=Origin(len(pushed)),
        )
        value[:] = weight
        self._states[key] = state._replace(updates=count)
        return before if self._terms.before else value

    def update_rows(self, key: Key, table: Array, ids: Array, gradient: Array) -> None:
        """See ``Rule``; updates everything and puts the other rows back."""
        state = self._states.setdefault(key, self._new_state(table.reshape(-1)))
        masters = [] if state.master is None else [state.master]
        whole = [each.reshape(table.shape) for each in (table, *masters, *state.arrays)]
        before = [each.copy() for each in whole]
        self.update(key, table.reshape(-1), [gradient.reshape(-1)])
        others = np.setdiff1d(np.arange(len(table)), ids)
        for now, then in zip(whole, before):
            now[others] = then[others]

    def _new_state(self, value: Array) -> KeyStates:
        halves = self._spec.multi_precision and value.dtype == np.float16
        master = value.astype(np.float32) if halves else None
        arrays = self._optimizer.init(value if master is None else master)
        return KeyStates(0, list(arrays), master)

    def states(self) -> dict[Key, KeyStates]:
        """See ``Rule``."""
        return dict(self._states)

    def load(self, states: dict[Key, KeyStates]) -> None:
        """See ``Rule``."""
        for key, each in states.items():
            self._states[key] = KeyStates(
                each.updates, [array.copy() for array in each.arrays], each.master
            )


def sum_of(pushed: list[Array]) -> Array:
    """Return the sum of what workers have pushed, in their order; a new array."""
    total = pushed[0].copy()
    for each in pushed[1:]:
        total += each
    return total
