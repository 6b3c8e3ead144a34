"""What becomes of a sum of gradients: kept as it is, or turned into a new weight, here or on the servers.

This file must not know about the engine or about MXNet's KVStore interface.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Protocol

import mxnet as mx
from msgspec.structs import replace

from kvstore_mpi.adapters.mxnet.optimizer_spec import LiveWatch, spec_from_optimizer
from kvstore_mpi.adapters.mxnet.optimizer_states import (
    KeyState,
    counts_to_mxnet,
    states_from_mxnet,
    states_to_mxnet,
)
from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.esgd import DCASGD, StalenessAware
from kvstore_mpi.esgd.terms import bits_of
from kvstore_mpi.server_optimizers import OptimizerSpec, terms_of
from kvstore_mpi.worker.state_pieces import KeyStates

if TYPE_CHECKING:
    from collections.abc import Callable

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.exchange import Exchange
    from kvstore_mpi.records import Key

    Updater = Callable[[Key, NDArray, NDArray], None]


def _dc_asgd(lamda: float = 0.04) -> Callable[[OptimizerSpec], OptimizerSpec]:
    return DCASGD(learning_rate=0.0, lamda=lamda).around


def _staleness_aware() -> Callable[[OptimizerSpec], OptimizerSpec]:
    return StalenessAware("sgd", learning_rate=0.0).around


_COMPENSATIONS: dict[str, Callable[..., Callable[[OptimizerSpec], OptimizerSpec]]] = {
    "dc-asgd": _dc_asgd,
    "staleness-aware": _staleness_aware,
}


class Updates(Protocol):
    """What a store asks of the place where its weights are updated."""

    updater: Any
    """What MXNet knows as ``kv._updater``: has ``optimizer`` and ``states``; ``None`` without."""

    spec: OptimizerSpec | None
    """The servers' update rule, as rank 0 gave it; ``None`` without one."""

    takes_params: bool
    """The values that are pushed must be parameters, not gradients."""

    def set_optimizer(self, optimizer: Any, quorum: int, quorum_wait: float, compress: str | None) -> None:
        """Take an MXNet optimizer, or one of ``kvstore_mpi.esgd``."""
        ...

    def compensate_delays(self, how: str, **numbers: float) -> None:
        """Put a rule for delayed gradients around each MXNet optimizer that is taken from now on."""
        ...

    def set_updater(self, updater: Updater) -> None:
        """Take a function of key, summed gradient and stored weight that changes the weight."""
        ...

    def key_created(self, key: Key) -> None:
        """Take notice of a key whose initialisation is queued."""
        ...

    def before_push(self, key: Key) -> None:
        """Do what must be done before a push of this key is queued."""
        ...

    def after_push(self, key: Key, *, sparse: bool) -> None:
        """Do what must be done when a push is queued; ``sparse``: its values were row-sparse."""
        ...

    def value(self, key: Key) -> NDArray:
        """Return the dense array that holds the key's value, once the queued operations are over."""
        ...


class LocalUpdates:
    """Pure MPI: every worker makes the same update of its own copy of the stored weights."""

    spec: OptimizerSpec | None = None
    takes_params = False

    def __init__(self, exchange: Exchange) -> None:
        """Start without an updater: the value of a key is the last sum."""
        self.updater: Any = None
        self._exchange = exchange
        self._weights: dict[Key, NDArray] = {}

    def set_optimizer(self, optimizer: Any, quorum: int, quorum_wait: float, compress: str | None) -> None:
        """Update with an MXNet optimizer.

        Raises:
            UsageError: It, or one of its terms, is for servers.
        """
        if not isinstance(optimizer, mx.optimizer.Optimizer) or quorum or quorum_wait or compress:
            raise UsageError(
                f"{optimizer!r} is for servers, and this job has none; start it with mpilaunch --servers 1 "
                "or more"
            )
        self.set_updater(mx.optimizer.get_updater(optimizer))

    def compensate_delays(self, how: str, **numbers: float) -> None:  # noqa: ARG002
        """Refuse: without servers nothing is delayed."""
        raise UsageError(f"{how!r} is for servers, and this job has none: no gradient is delayed")

    def set_updater(self, updater: Updater) -> None:
        """Update with a function; it is called when a push is queued, and must not wait for arrays."""
        self.updater = updater
        for key in self._exchange.stagings:
            if key not in self._weights:
                self.key_created(key)

    def key_created(self, key: Key) -> None:
        """Keep the weight apart from the staging array, which carries gradients from now on."""
        if self.updater is not None:
            self._weights[key] = self._exchange.stagings[key].array.copy()

    def before_push(self, key: Key) -> None:
        """Nothing: the sum does not depend on the update."""

    def after_push(self, key: Key, *, sparse: bool) -> None:
        """Queue the update; row-sparse gradients stay so, for optimizers with lazy updates."""
        if self.updater is not None:
            gradient = self._exchange.stagings[key].array
            self.updater(key, gradient.tostype("row_sparse") if sparse else gradient, self._weights[key])

    def value(self, key: Key) -> NDArray:
        """Return the weight, or the last sum."""
        return self._weights[key] if self.updater is not None else self._exchange.stagings[key].array


class ServerUpdates:
    """The servers update; rank 0 tells them how, and what changes about it."""

    def __init__(self, exchange: Exchange, mode: str) -> None:
        """Start without an optimizer: sync servers keep the last sum, async servers refuse pushes."""
        self.updater: ServerUpdater | RuleUpdater | None = None
        self.spec: OptimizerSpec | None = None
        self.takes_params = False
        self._exchange = exchange
        self._mode = mode
        self._watch: LiveWatch | None = None
        self._around: Callable[[OptimizerSpec], OptimizerSpec] = lambda spec: spec

    def compensate_delays(self, how: str, **numbers: float) -> None:
        """Put a rule for delayed gradients around each MXNet optimizer that is taken from now on.

        Raises:
            UsageError: There is no such rule, or its numbers have other names, or nothing is delayed here.
        """
        if self._mode != "async":
            raise UsageError(f"{how!r} is for async-mpi: on sync-mpi no gradient is delayed")
        if how not in _COMPENSATIONS:
            raise UsageError(f"there is no {how!r}; there are {', '.join(_COMPENSATIONS)}")
        self._around = _COMPENSATIONS[how](**numbers)

    def set_optimizer(self, optimizer: Any, quorum: int, quorum_wait: float, compress: str | None) -> None:
        """Send an optimizer to the servers; all workers must call this.

        Raises:
            UsageError: It takes parameters, and the one before it gradients, or the other way round.
        """
        spec = self._describe(optimizer)
        self._give(
            optimizer,
            replace(spec, quorum=quorum, quorum_wait=float(quorum_wait), compress=bits_of(compress)),
        )
        if isinstance(optimizer, mx.optimizer.Optimizer):
            self.updater = ServerUpdater(self._exchange, optimizer, self._give_again)
        else:
            self.updater = RuleUpdater(self._exchange, optimizer)

    def _describe(self, optimizer: Any) -> OptimizerSpec:
        if isinstance(optimizer, mx.optimizer.Optimizer):
            return self._around(spec_from_optimizer(optimizer, self._exchange.stagings.keys()))
        try:
            spec: OptimizerSpec = optimizer.spec()
        except AttributeError:
            raise UsageError(
                f"{optimizer!r} is neither an optimizer of MXNet nor one of kvstore_mpi.esgd"
            ) from None
        return spec

    def set_updater(self, updater: Updater) -> None:
        """Refuse: a function cannot travel."""
        raise UnsupportedError(
            f"the updater {updater!r} is a function and cannot run on the servers; use set_optimizer, or "
            "a job without servers (mpilaunch --clients 1 --servers 0)"
        )

    def key_created(self, key: Key) -> None:
        """Nothing: the servers have the key."""

    def before_push(self, key: Key) -> None:
        """Send what has changed about the optimizer since the last push, in order with the pushes.

        Raises:
            UsageError: Async mode without an optimizer.
        """
        if self._mode == "async" and self.updater is None:
            raise UsageError(
                f"worker {self._exchange.worker.rank}: push of key {key!r} to an async store without an "
                "optimizer; call set_optimizer first (a Trainer does so with update_on_kvstore=True)"
            )
        live = self._watch.changed(key) if self._watch is not None else None
        if live is not None:
            worker, store = self._exchange.worker, self._exchange.store
            self._exchange.after_everything(lambda: worker.set_hyper(store, live.to_dict()))

    def after_push(self, key: Key, *, sparse: bool) -> None:
        """Nothing: the servers update."""

    def value(self, key: Key) -> NDArray:
        """Return the staging array, where pulls arrive."""
        return self._exchange.stagings[key].array

    def _give_again(self, optimizer: Any) -> None:
        """Give the servers an MXNet optimizer in place of another one."""
        self._give(optimizer, self._describe(optimizer))

    def _give(self, optimizer: Any, spec: OptimizerSpec) -> None:
        """Give the servers an optimizer."""
        worker, keys = self._exchange.worker, self._exchange.stagings.keys()
        params = terms_of(spec).params
        if self.spec is not None and params != self.takes_params:
            raise UsageError(_wrong_kind(self.spec.name, spec.name, params=self.takes_params))
        self.spec = OptimizerSpec.from_dict(worker.set_optimizer(self._exchange.store, spec.to_dict()))
        self.takes_params = params
        follows = isinstance(optimizer, mx.optimizer.Optimizer) and worker.rank == 0
        self._watch = LiveWatch(optimizer, keys) if follows else None


def _wrong_kind(first: str, second: str, *, params: bool) -> str:
    if params:
        return (
            f"this store's server optimizer {first!r} takes parameters, and {second!r} gradients: with a "
            "Trainer or Module the center would decay to zero; use kvstore_mpi.mxnet.ElasticTrainer, or "
            "kv.pushpull(key, params, out=center) yourself, and another store for gradients"
        )
    return (
        f"this store's server optimizer {first!r} takes gradients, as of a Trainer or Module, and "
        f"{second!r} parameters; a store can have one kind only, so create another one"
    )


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
        loaded = pickle.loads(data)  # noqa: S301  MXNet's file format, from the user's own file
        states, optimizer = loaded if isinstance(loaded, tuple) else (loaded, self.optimizer)
        layout = {key: (each.shape, each.dtype) for key, each in self._exchange.stagings.items()}
        converted = states_from_mxnet(optimizer, states, layout)
        self._exchange.drain()
        self._give(optimizer)
        self.optimizer = optimizer
        worker = self._exchange.worker
        if worker.rank == 0:
            worker.load_optimizer_states(
                self._exchange.store,
                {key: KeyStates(each.count, each.arrays, each.master) for key, each in converted.items()},
            )

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
        """Give the servers what ``get_states`` returned."""
        states = pickle.loads(data)  # noqa: S301  the user's own file
        self._exchange.drain()
        worker = self._exchange.worker
        if worker.rank == 0:
            loaded = {key: KeyStates(*each) for key, each in states.items()}
            worker.load_optimizer_states(self._exchange.store, loaded)
