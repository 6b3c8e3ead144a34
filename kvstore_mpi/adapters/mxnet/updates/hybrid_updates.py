"""Tables are updated by servers, everything else by the workers of the one client of a job (Parallax).

A dense gradient is cheapest summed among the workers, which then make the same update; rows of a table go
to the server that has them. This file must not know about the engine or about MXNet's KVStore interface.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.updates.local_updates import LocalUpdates
from kvstore_mpi.adapters.mxnet.updates.optimizer_states import (
    KeyState,
    counts_to_mxnet,
    states_from_mxnet,
    states_to_mxnet,
)
from kvstore_mpi.adapters.mxnet.updates.server_updaters import unpickled
from kvstore_mpi.worker.state_parts import KeyStates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.updates.server_updates import ServerUpdates
    from kvstore_mpi.adapters.mxnet.updates.updates import Updater, Updates
    from kvstore_mpi.records import Key
    from kvstore_mpi.server_optimizers import OptimizerSpec


class HybridUpdates:
    """The servers update tables, and the workers what they sum of all that was initialised since."""

    on_workers = False
    takes_params = False
    notes_values = False
    needs_sums = False

    def __init__(self, exchange: Exchange, servers: ServerUpdates, optimizer: Any) -> None:
        """Let the workers have an optimizer that the servers have."""
        self._exchange = exchange
        self._servers = servers
        self._workers = LocalUpdates(exchange)
        self._take(optimizer)

    def _take(self, optimizer: Any) -> None:
        # Not by ``set_updater``, which would take the keys that are on the servers, too.
        self._workers.updater = mx.optimizer.get_updater(optimizer)
        self._workers.compare(optimizer)
        self.updater = HybridUpdater(self._exchange, self._servers.updater, self._workers.updater)
        self.spec: OptimizerSpec | None = self._servers.spec

    @property
    def local(self) -> Any:
        """See ``Updates``."""
        return self._workers.updater

    def _of(self, key: Key) -> Updates:
        return self._servers if self._exchange.is_on_servers(key) else self._workers

    def set_optimizer(
        self, optimizer: Any, quorum: int, quorum_wait: float, compress: str | None
    ) -> HybridUpdates:
        """Send another optimizer to the servers, and let the workers have it."""
        self._servers.set_optimizer(optimizer, quorum, quorum_wait, compress)
        self._take(optimizer)
        return self

    def compensate_delays(self, how: str, **numbers: float) -> None:
        """Refuse: nothing is delayed in a synchronous store."""
        self._servers.compensate_delays(how, **numbers)

    def clip_global_norm(self, max_norm: float, without: Sequence[Key]) -> None:
        """Refuse: dense keys are on the workers by now."""
        self._servers.clip_global_norm(max_norm, without)

    def average_weights(self, decay: float) -> None:
        """Refuse: dense keys are on the workers by now."""
        self._servers.average_weights(decay)

    def set_updater(self, updater: Updater) -> None:
        """Refuse: a function cannot travel to the servers."""
        self._servers.set_updater(updater)

    def key_created(self, key: Key) -> None:
        """See ``Updates``."""
        self._of(key).key_created(key)

    def move_to_workers(self, key: Key, states: KeyStates | None) -> None:
        """Update a key here from now on, of which the value is queued, with the states that servers had."""
        self._workers.key_created(key)
        if states is not None:
            staging = self._exchange.stagings[key]
            state = KeyState(states.updates, states.arrays, staging.shape, staging.dtype, states.master)
            updater = self._workers.updater
            updater.states.update(states_to_mxnet(updater.optimizer, {key: state}))
            updater.states_synced[key] = True
            counts_to_mxnet(updater.optimizer, {key: states.updates})

    def move_to_servers(self, key: Key) -> tuple[NDArray, KeyStates | None]:
        """Update a key here no more; return its weight, and the states for the servers if it has some."""
        updater, weight = self._workers.updater, self._workers.give_up(key)
        updater.states_synced.pop(key, None)
        found = {key: updater.states.pop(key)} if key in updater.states else {}
        layout = {key: (weight.shape, weight.dtype.__name__)}
        state = states_from_mxnet(updater.optimizer, found, layout).get(key)
        return weight, None if state is None else KeyStates(state.count, state.arrays, state.master)

    def before_push(self, key: Key) -> None:
        """See ``Updates``."""
        self._of(key).before_push(key)

    def after_push(self, key: Key, *, sparse: bool) -> None:
        """See ``Updates``."""
        self._of(key).after_push(key, sparse=sparse)

    def hold(self, key: Key, array: NDArray, parts: Callable[[], list[Any]]) -> None:
        """See ``Updates``."""
        self._of(key).hold(key, array, parts)

    def value(self, key: Key) -> NDArray:
        """See ``Updates``."""
        return self._of(key).value(key)


class HybridUpdater:
    """Saves and loads the states that servers have and those that this worker has, as one.

    Attributes:
        optimizer: This worker's optimizer object; on rank 0, changes to it reach the servers.
    """

    def __init__(self, exchange: Exchange, servers: Any, workers: Any) -> None:
        """Stand for both, where MXNet expects an ``Updater``."""
        self._exchange = exchange
        self._servers = servers
        self._workers = workers

    @property
    def optimizer(self) -> Any:
        """This worker's optimizer object."""
        return self._workers.optimizer

    @property
    def states(self) -> dict[Key, Any]:
        """All states in the form of MXNet's ``Updater.states``; waits for all pushes."""
        return {**self._servers.states, **self._workers.states}

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """Return states, and the optimizer if wanted, in MXNet's file format."""
        states = self.states
        return pickle.dumps((states, self.optimizer) if dump_optimizer else states)

    def set_states(self, data: bytes) -> None:
        """Take what ``get_states`` of this or of MXNet's own updater returned."""
        # Once, for both: Gluon and the servers follow the one object.
        states, optimizer = unpickled(data, self.optimizer)
        self._servers.take(states, optimizer)
        stagings = self._exchange.stagings
        on_servers = {key for key in stagings if self._exchange.is_on_servers(key)}
        mine = {key: state for key, state in states.items() if key not in on_servers}
        self._workers.set_states(pickle.dumps(mine))
        self._workers.optimizer = optimizer
