"""The servers turn sums of gradients into weights; rank 0 tells them how, and what changes about it.

This file must not know about the engine or about MXNet's KVStore interface.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import mxnet as mx
from msgspec.structs import replace

from kvstore_mpi.adapters.hyper_watch import HyperWatch, PushedSteps
from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import check_keys, frozen_keys
from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable
from kvstore_mpi.adapters.mxnet.updates.clipped_steps import check_frozen, pushed_again
from kvstore_mpi.adapters.mxnet.updates.hyper_parameters import MXNetHyper
from kvstore_mpi.adapters.mxnet.updates.local_updates import LocalUpdates
from kvstore_mpi.adapters.mxnet.updates.optimizer_spec import spec_from_optimizer, static_attributes
from kvstore_mpi.adapters.mxnet.updates.optimizer_states import counts_from_mxnet
from kvstore_mpi.adapters.mxnet.updates.parameter_order import tell_order
from kvstore_mpi.adapters.mxnet.updates.server_updaters import RuleUpdater, ServerUpdater
from kvstore_mpi.adapters.mxnet.updates.updates import check_not_compressed
from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.esgd import DCASGD, StalenessAware
from kvstore_mpi.server_optimizers import OptimizerSpec, decay_of, is_elementwise, terms_of
from kvstore_mpi.server_optimizers.averages import Averaged
from kvstore_mpi.server_optimizers.spec import check_number
from kvstore_mpi.server_optimizers.through_mxnet import resume
from kvstore_mpi.values.coding import coding_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.updates.updates import Updater, Updates
    from kvstore_mpi.records import Key

log = logging.getLogger("kvstore_mpi.mxnet")


def _alone(spec: OptimizerSpec) -> OptimizerSpec:
    return spec


def _dc_asgd(lamda: float = 0.04) -> Callable[[OptimizerSpec], OptimizerSpec]:
    return DCASGD(learning_rate=0.0, lamda=lamda).around


def _staleness_aware() -> Callable[[OptimizerSpec], OptimizerSpec]:
    return StalenessAware("sgd", learning_rate=0.0).around


_COMPENSATIONS: dict[str, Callable[..., Callable[[OptimizerSpec], OptimizerSpec]]] = {
    "dc-asgd": _dc_asgd,
    "staleness-aware": _staleness_aware,
}


_LOST_WITHOUT_OPTIMIZER = {
    "average_weights": (
        "no averages would be kept, as servers that only sum have no weights; let them update (a Trainer "
        "with update_on_kvstore=True)"
    ),
    "clip_global_norm": (
        "nothing would be clipped; a Trainer with update_on_kvstore=False clips with "
        "gluon.utils.clip_global_norm"
    ),
}
"""What calls that only servers can carry out come to where these have no optimizer, and what to do."""


class ServerUpdates:
    """The servers update; rank 0 tells them how, and what changes about it."""

    on_workers = False
    local: Any = None

    def __init__(self, exchange: Exchange, mode: str) -> None:
        """Start without an optimizer: sync servers keep the last sum, async servers refuse pushes."""
        self.updater: ServerUpdater | RuleUpdater | None = None
        self.spec: OptimizerSpec | None = None
        self.takes_params = False
        self.notes_values = False
        self.needs_sums = False
        self._exchange = exchange
        self._mode = mode
        self._optimizer: Any = None  # MXNet's, as rank 0 and this worker have it
        self._goes_on = exchange.counts_before.may_be
        self._has_warned = False
        self._summed: set[Key] = set()  # keys that were pushed without an optimizer
        self._watch: HyperWatch | None = None
        self._steps = PushedSteps()
        self._around: Callable[[OptimizerSpec], OptimizerSpec] = _alone
        self._added = ""  # the call that has put something around
        self._clip: tuple[float, Sequence[Key]] = (0.0, ())
        self._wants_servers = ""  # the call that only servers can carry out
        self._frozen: frozenset[Key] = frozenset()  # keys that the norms of steps leave out

    def clip_global_norm(self, max_norm: float, without: Sequence[Key]) -> None:
        """Clip the gradient of all keys together, with each MXNet optimizer that is taken from now on.

        Raises:
            UsageError: The bound is none, or a store of this kind has no steps, or it has an optimizer.
        """
        if self._mode != "sync":
            raise UsageError(
                "clip_global_norm is for sync-mpi: on async-mpi no step has all gradients; clip on the "
                "workers (gluon.utils.clip_global_norm), before they are pushed"
            )
        self._check_early("clip_global_norm")
        check_number("max_norm", max_norm, 1e-30)
        self._clip = (float(max_norm), without)
        self._wants_servers = "clip_global_norm"

    def compensate_delays(self, how: str, **numbers: float) -> None:
        """Put a rule for delayed gradients around each MXNet optimizer that is taken from now on.

        Raises:
            UsageError: There is no such rule, or its numbers have other names, or nothing is delayed here.
        """
        if self._mode != "async":
            raise UsageError(f"{how!r} is for async-mpi: on sync-mpi no gradient is delayed")
        if self._added == "average_weights":
            raise UsageError("compensate_delays cannot be combined with average_weights")
        if how not in _COMPENSATIONS:
            raise UsageError(f"there is no {how!r}; there are {', '.join(_COMPENSATIONS)}")
        self._around, self._added = _COMPENSATIONS[how](**numbers), "compensate_delays"

    def average_weights(self, decay: float) -> None:
        """Keep averages of the weights, with each MXNet optimizer that is taken from now on.

        Raises:
            UsageError: The number is none, or the store has an optimizer.
        """
        self._check_early("average_weights")
        if self._added == "compensate_delays":
            raise UsageError("average_weights cannot be combined with compensate_delays")
        self._around = Averaged("sgd", learning_rate=0.0, decay=decay).around
        self._added = self._wants_servers = "average_weights"

    def _check_early(self, call: str) -> None:
        if self.spec is not None:
            raise UsageError(
                f"{call} must be called before set_optimizer, which a Trainer calls in its first step"
            )

    def set_optimizer(
        self, optimizer: Any, quorum: int, quorum_wait: float, compress: str | None
    ) -> Updates:
        """Send an optimizer to the servers; all workers must call this.

        In a synchronous store an optimizer that the servers cannot have is applied by the workers.

        Raises:
            UsageError: It takes parameters, and the one before it gradients, or the other way round.
            UnsupportedError: Servers cannot have it, and the store is asynchronous.
        """
        check_keys(optimizer, self._exchange.stagings)
        reason = self._why_not_on_servers(optimizer)
        if reason and self._mode == "async":
            raise UnsupportedError(f"{reason}; in a sync-mpi store the workers would apply it instead")
        if reason and self._wants_servers:
            raise UnsupportedError(f"{reason}; {self._wants_servers} needs an optimizer that servers have")
        if reason:
            self._check_first(optimizer, reason)
            return LocalUpdates(self._exchange).set_optimizer(optimizer, quorum, quorum_wait, compress)
        tell_order(self._exchange, optimizer)
        spec = self._describe(optimizer)
        is_mxnets = isinstance(optimizer, mx.optimizer.Optimizer)
        self._give(
            optimizer,
            replace(spec, quorum=quorum, quorum_wait=float(quorum_wait), compress=coding_of(compress)),
            # On the servers all begins anew; its schedule goes on, as it does in one process.
            counts=counts_from_mxnet(optimizer) if is_mxnets else {},
        )
        if is_mxnets:
            self.updater = ServerUpdater(self._exchange, optimizer, self._give_again)
        else:
            self.updater = RuleUpdater(self._exchange, optimizer)
        return self

    def _why_not_on_servers(self, optimizer: Any) -> str:
        """Return why an optimizer must be applied by the workers, or nothing.

        Keys that were created for the optimizer before may be spread over the servers.
        """
        try:
            spec = self._describe(optimizer)
        except UnsupportedError as error:
            return str(error)
        # Without sums that all workers share the servers must have it, and say if they cannot.
        several = self._exchange.worker.num_servers > 1 and self._mode == "sync"
        spread = several and self._exchange.stagings
        if self.spec is None and spread and terms_of(spec).whole:
            return (
                f"{spec.name} needs whole tensors, and the keys were created before set_optimizer and may "
                "be spread over servers"
            )
        stagings = self._exchange.stagings
        tables = [
            key
            for key, staging in stagings.items()
            if isinstance(staging, RowTable) and not is_elementwise(spec, dtype=staging.dtype)
        ]
        if tables:
            problem = f"{spec.name} cannot update single rows, and key {tables[0]!r} is a table of such"
            if terms_of(spec).params:
                raise UsageError(f"{problem}; create another store for parameters")
            return problem
        return ""

    def _check_first(self, optimizer: Any, reason: str) -> None:
        name = type(optimizer).__qualname__
        if self.spec is not None:
            raise UsageError(
                f"the servers of this store update with {self.spec.name!r} already, and cannot take {name} "
                f"instead ({reason}); create another store for it"
            )
        if self._exchange.worker.rank == 0:
            text = (
                "each worker applies %s by itself, to sums from the servers: %s. What servers save with "
                "--snapshot-dir are then sums, not parameters"
            )
            log.warning(text, name, reason)

    def _describe(self, optimizer: Any) -> OptimizerSpec:
        if isinstance(optimizer, mx.optimizer.Optimizer):
            keys = self._exchange.stagings.keys()
            its = self._around(spec_from_optimizer(optimizer, keys, evaluates=self._mode == "sync"))
            return replace(its, clip_norm=self._clip[0], unpushed=self._unpushed(optimizer))
        try:
            spec: OptimizerSpec = optimizer.spec()
        except AttributeError:
            raise UsageError(
                f"{optimizer!r} is neither an optimizer of MXNet nor one of kvstore_mpi.esgd"
            ) from None
        if self._added:
            raise UsageError(
                f"{self._added} is for optimizers of MXNet, and {type(optimizer).__name__} is none, so "
                "that it would count for nothing: leave the call out, or give this store one of MXNet's"
            )
        return replace(spec, clip_norm=self._clip[0])

    def _unpushed(self, optimizer: Any) -> list[Key]:
        """Return keys that are never pushed: those that the user has named, and frozen ones of Gluon."""
        max_norm, without = self._clip
        if not max_norm:
            return []
        return [*dict.fromkeys([*without, *frozen_keys(optimizer)])]

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
            UsageError: There is no optimizer, and the store is asynchronous or was asked for what needs it;
                or a step that is to be clipped lacks a key.
        """
        if self._mode == "async" and self.updater is None:
            raise UsageError(
                f"worker {self._exchange.worker.rank}: push of key {key!r} to an async store without an "
                "optimizer; call set_optimizer first (a Trainer does so with update_on_kvstore=True)"
            )
        if self._optimizer is None:
            if self._wants_servers and self.spec is None:
                raise UsageError(
                    f"push of key {key!r} after {self._wants_servers}, but before set_optimizer: "
                    f"{_LOST_WITHOUT_OPTIMIZER[self._wants_servers]}"
                )
            if self.spec is None and key not in self._summed:
                self._before_first_sum(key)
            return
        if self._frozen:
            check_frozen(key, self._frozen)
        # With a bound on the norm a step at a time: to change numbers waits for all pushes before, and
        # servers hold those of a step until its last one is there.
        clips = self.spec is not None and self.spec.clip_norm
        missing = self._steps.lacked(key) if clips else ()
        if missing and (missing := missing.intersection(self._awaited())):
            raise pushed_again(key, missing)
        counted, may_change = self._steps.push(key, self._awaited) if clips else ([key], True)
        for each in counted:
            self._count(each)
        if self._watch is None or not may_change:
            return
        hyper = self._watch.changed(*counted, others=self._exchange.stagings if clips else ())
        if hyper is not None:
            worker, store = self._exchange.worker, self._exchange.store
            self._exchange.after_everything(lambda: worker.set_hyper(store, hyper.to_dict()))

    def _awaited(self) -> list[Key]:
        """Return the keys that each step is to have, as the servers know them."""
        without = set() if self.spec is None else {*self.spec.unpushed}
        stagings = self._exchange.stagings.items()
        return [key for key, staging in stagings if staging.buffer.size and key not in without]

    def _count(self, key: Key) -> None:
        """Count an update of a key, which nobody else does here."""
        # A scheduler, and whoever asks for the learning rate, goes by it.
        if self._goes_on and key not in self._optimizer._index_update_count:  # noqa: SLF001  as below
            resume(self._optimizer, key, self._exchange.counts_before.of(key))
        self._optimizer._update_count(key)  # noqa: SLF001  as each optimizer's own update does

    def _before_first_sum(self, key: Key) -> None:
        """Say once what snapshots have of keys that are summed alone; in a job that goes on, compare."""
        self._summed.add(key)
        worker = self._exchange.worker
        self._exchange.counts_before.check_own(key)
        check_not_compressed(self._exchange.compress)
        is_float = "float" in self._exchange.stagings.known(key).dtype  # sums of integers go on
        if worker.has_snapshots and is_float and not self._has_warned and not worker.rank:
            self._has_warned = True
            text = (
                "key %r is pushed to a store without an optimizer: what servers save of it with "
                "--snapshot-dir is a sum, and no parameter with which --resume could go on; if gradients "
                "are pushed, let the servers update (update_on_kvstore=True)"
            )
            log.warning(text, key)

    def after_push(self, key: Key, *, sparse: bool) -> None:
        """Nothing: the servers update."""

    def hold(self, key: Key, array: NDArray, parts: Callable[[], list[Any]]) -> None:
        """Nothing: servers hold sums themselves."""

    def value(self, key: Key) -> NDArray:
        """Return the staging array, where pulls arrive."""
        return self._exchange.stagings[key].array

    def _give_again(self, optimizer: Any) -> None:
        """Give the servers an MXNet optimizer instead of another one.

        Raises:
            UnsupportedError: Averages would begin anew.
        """
        if decay_of(self.spec):
            raise UnsupportedError(
                "optimizer states of MXNet's form have no averages, which would begin anew: let a job that "
                "goes on take up snapshots, which have them (mpilaunch --snapshot-dir, --resume)"
            )
        compress = 0 if self.spec is None else self.spec.compress
        # The states that follow bring what it has counted.
        self._give(optimizer, replace(self._describe(optimizer), compress=compress), counts={})

    def _give(self, optimizer: Any, spec: OptimizerSpec, counts: Mapping[Key, int]) -> None:
        """Give the servers an optimizer, which has counted updates of keys that they have not."""
        worker, keys = self._exchange.worker, self._exchange.stagings.keys()
        terms = terms_of(spec)
        params = terms.params
        if self.spec is not None and params != self.takes_params:
            raise UsageError(_wrong_kind(self.spec.name, spec.name, params=self.takes_params))
        # It would overtake pushes that still wait here. Of a synchronous store they end with those of all.
        if any(staging.was_pushed for staging in self._exchange.stagings.values()):
            self._exchange.drain()
        self._goes_on = self._goes_on and self.spec is None  # with another optimizer all begins anew
        self.spec = OptimizerSpec.from_dict(worker.set_optimizer(self._exchange.store, spec.to_dict()))
        self.takes_params = params
        self._frozen = frozenset(self.spec.unpushed).difference(self._clip[1])
        self.notes_values = params or terms.bases or terms.staleness
        self._optimizer = optimizer if isinstance(optimizer, mx.optimizer.Optimizer) else None
        follows = self._optimizer is not None and worker.rank == 0
        self._watch, self._steps = None, PushedSteps()
        if follows:
            static = static_attributes(optimizer)
            reader = MXNetHyper(optimizer, static, evaluates=self._mode == "sync", counts=counts)
            self._watch = HyperWatch(reader, keys)


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
