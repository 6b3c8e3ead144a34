"""What stands for the servers where MXNet expects an ``Updater``: saves and loads their states.

This file must not know how an optimizer reaches the servers.
"""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.adapters.mxnet.updates.optimizer_states import (
    KeyState,
    counts_to_mxnet,
    of_other_keys,
    states_from_mxnet,
    states_to_mxnet,
)
from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers import build
from kvstore_mpi.worker.state_parts import KeyStates

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.interfaces import ServerOptimizer
    from kvstore_mpi.records import Key


def unpickled(data: bytes, optimizer: Any) -> tuple[dict[Key, Any], Any]:
    """Return the states and the optimizer of a file; ``optimizer`` if the file has none."""
    loaded = pickle.loads(data)  # noqa: S301  MXNet's file format, from the user's own file
    return loaded if isinstance(loaded, tuple) else (loaded, optimizer)


class ServerUpdater:
    """Stands for the servers where MXNet expects an ``Updater``.

    Attributes:
        optimizer: This worker's optimizer object; on rank 0, changes to it reach the servers.
    """

    def __init__(self, exchange: Exchange, optimizer: Any, give: Callable[[Any], None]) -> None:
        """Stand for servers that have this optimizer, and that ``give`` gives another one."""
        self.optimizer = optimizer
        self._exchange = exchange
        self._give = give

    @property
    def states(self) -> dict[Key, Any]:
        """The servers' states in the form of MXNet's ``Updater.states``; waits for all pushes."""
        return states_to_mxnet(self.optimizer, self._fetch())

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """Return states, and the optimizer if wanted, in MXNet's file format."""
        fetched = self._fetch()
        states = states_to_mxnet(self.optimizer, fetched)
        if not dump_optimizer:
            return pickle.dumps(states)
        counts_to_mxnet(self.optimizer, {key: state.count for key, state in fetched.items()})
        return pickle.dumps((states, self.optimizer))

    def set_states(self, data: bytes) -> None:
        """Give the servers what ``get_states`` of this or of MXNet's own updater returned."""
        self.take(*unpickled(data, self.optimizer))

    def take(self, states: dict[Key, Any], optimizer: Any) -> None:
        """Give the servers states in the form of MXNet's ``Updater.states``, and their optimizer."""
        layout = {key: (each.shape, each.dtype) for key, each in self._exchange.stagings.items()}
        converted = states_from_mxnet(optimizer, states, layout)
        self._exchange.drain()
        self._give(optimizer)
        self.optimizer = optimizer
        worker = self._exchange.worker
        if worker.rank == 0:
            loaded = {
                key: KeyStates(each.count, each.arrays, each.master) for key, each in converted.items()
            }
            worker.load_optimizer_states(self._exchange.store, loaded)
            # The first push may still make a table of a key, which the servers take for another one.
            for key, state in loaded.items():
                staging = self._exchange.stagings[key]
                staging.loaded = None if staging.was_pushed else state

    def _fetch(self) -> dict[Key, KeyState]:
        """Return the states of the keys that have been updated."""
        self._exchange.drain()
        stagings = self._exchange.stagings
        fetched = self._exchange.worker.optimizer_states(self._exchange.store)
        return {
            key: KeyState(each.updates, each.arrays, stagings[key].shape, stagings[key].dtype, each.master)
            for key, each in fetched.items()
            if each.updates
        }


class RuleUpdater:
    """Stands for servers with an optimizer of ``kvstore_mpi.esgd``: saves and loads its states.

    Attributes:
        optimizer: The optimizer as the user named it.
    """

    def __init__(self, exchange: Exchange, optimizer: Any) -> None:
        """Stand for servers that have this optimizer."""
        self.optimizer = optimizer
        self._exchange = exchange

    def get_states(self, dump_optimizer: bool = False) -> bytes:  # noqa: ARG002  it is given anew in any case
        """Return the states; waits for all pushes."""
        self._exchange.drain()
        states = self._exchange.worker.optimizer_states(self._exchange.store)
        return pickle.dumps({key: tuple(each) for key, each in states.items()})

    def set_states(self, data: bytes) -> None:
        """Give the servers what ``get_states`` returned.

        Raises:
            UsageError: It is of other keys, or of another optimizer.
        """
        states = pickle.loads(data)  # noqa: S301  the user's own file
        loaded = self._of_these_keys(states)
        self._exchange.drain()
        worker = self._exchange.worker
        if worker.rank == 0:
            worker.load_optimizer_states(self._exchange.store, loaded)

    def _of_these_keys(self, states: dict[Key, Any]) -> dict[Key, KeyStates]:
        """Return the states of the keys that there are, all of which this optimizer can have."""
        stagings = self._exchange.stagings
        if states and not any(key in stagings for key in states):
            raise of_other_keys(states, stagings)
        loaded = {}
        rule = build(self.optimizer.spec())
        for key, state in states.items():
            if (staging := stagings.get(key)) is None:
                continue
            if not _fits(state, rule.bind(key, staging.shape), math.prod(staging.shape)):
                raise UsageError(
                    f"the saved optimizer state of key {key!r} does not fit {self.optimizer!r} on "
                    f"{staging.shape}; load states that were saved with the same model and optimizer"
                )
            loaded[key] = KeyStates(*state)
        return loaded


def _fits(state: Any, rule: ServerOptimizer, size: int) -> bool:
    """Tell whether a saved state is one that a rule has for a key of this size, or may begin with."""
    match state:
        case (int(), list() as arrays, master):
            pass
        case _:  # as MXNet saves it
            return False
    expected = [each.size for each in rule.init(np.zeros(size, np.float32))]
    sizes = [array.size for array in arrays]
    return sizes in ([], expected) and (master is None or master.size == size)
