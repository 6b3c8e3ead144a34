"""Sums of gradients become weights on the workers: all make the same update of a copy of their own.

This file must not know about the engine or about MXNet's KVStore interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.bridge.arrays import shapes_of
from kvstore_mpi.adapters.mxnet.exchange import row_weights
from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import check_keys, frozen_keys
from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable
from kvstore_mpi.adapters.mxnet.exchange.row_weights import SparseStaging
from kvstore_mpi.adapters.mxnet.updates.clipped_steps import ClippedSteps
from kvstore_mpi.adapters.mxnet.updates.parameter_order import tell_order
from kvstore_mpi.adapters.mxnet.updates.same_optimizers import SameOptimizers
from kvstore_mpi.adapters.mxnet.updates.updates import check_not_compressed
from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers.spec import check_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.updates.updates import Updater
    from kvstore_mpi.records import Key
    from kvstore_mpi.server_optimizers import OptimizerSpec


class LocalUpdates:
    """Every worker makes the same update of its own copy of the stored weights, from the same sums.

    So it is without servers, and with servers that do not know the optimizer: they then keep the last sum.
    """

    spec: OptimizerSpec | None = None
    takes_params = False
    notes_values = False
    on_workers = True

    def __init__(self, exchange: Exchange) -> None:
        """Start without an updater: the value of a key is the last sum."""
        self.updater: Any = None
        self.needs_sums = exchange.on_servers
        self.clipped: ClippedSteps | None = None
        self._exchange = exchange
        self._same: SameOptimizers | None = None
        self._given = 0  # optimizers so far
        self._weights: dict[Key, NDArray] = {}
        self._sparse: dict[Key, SparseStaging] = {}  # those that are row-sparse for their user

    @property
    def local(self) -> Any:
        """See ``Updates``."""
        return self.updater

    def set_optimizer(
        self, optimizer: Any, quorum: int, quorum_wait: float, compress: str | None
    ) -> LocalUpdates:
        """Update with an MXNet optimizer.

        Raises:
            UsageError: It, or one of its terms, is for servers.
        """
        check_keys(optimizer, self._exchange.stagings)
        tell_order(self._exchange, optimizer)
        given = {"quorum": quorum, "quorum_wait": quorum_wait, "compress": compress}
        terms = [f"{name}={term!r}" for name, term in given.items() if term]
        if not isinstance(optimizer, mx.optimizer.Optimizer) or terms:
            what = f"{', '.join(terms) or repr(optimizer)} is for servers that update"
            if not self._exchange.on_servers:
                raise UsageError(
                    f"{what}, and this job has none; start it with mpilaunch --servers 1 or more"
                )
            raise UsageError(
                f"{what}, and in this store the workers do, with {type(optimizer).__name__}: give another "
                "store to it, or an optimizer that servers have"
            )
        if self.clipped is not None:
            self.clipped.frozen = frozenset(frozen_keys(optimizer)) - self.clipped.without
        self.set_updater(mx.optimizer.get_updater(optimizer))
        self.compare(optimizer)
        return self

    def compare(self, optimizer: Any) -> None:
        """See in the steps that follow that the optimizers of all workers have the same numbers."""
        if self._exchange.worker.num_workers > 1:
            self._given += 1
            self._same = SameOptimizers(self._exchange, optimizer, self._given)

    def compensate_delays(self, how: str, **numbers: float) -> None:  # noqa: ARG002
        """Refuse: without servers nothing is delayed."""
        raise UsageError(f"{how!r} is for servers, and this job has none: no gradient is delayed")

    def clip_global_norm(self, max_norm: float, without: Sequence[Key]) -> None:
        """Clip the gradient of all keys together before each update that is made here.

        Raises:
            UsageError: The bound is none, or the store has an optimizer.
        """
        if self.updater is not None:
            raise UsageError(
                "clip_global_norm must be called before set_optimizer, which a Trainer calls in its first "
                "step"
            )
        check_number("max_norm", max_norm, 1e-30)
        self.clipped = ClippedSteps(self._exchange, float(max_norm), without)

    def average_weights(self, decay: float) -> None:
        """Refuse: whoever updates can average by itself."""
        raise UsageError(
            "average_weights is done by servers, and in this store the workers update, which all have the "
            f"same weights: after each step let a copy of each become {decay:g} copy + {1 - decay:g} weight"
        )

    def set_updater(self, updater: Updater) -> None:
        """Update with a function; it is called when a push is queued, and must not wait for arrays."""
        self.updater, self._same = updater, None
        for key, staging in self._exchange.stagings.items():
            if key not in self._weights and not isinstance(staging, RowTable):
                self._exchange.pull(key, 0)  # from servers; without them it is here
                self.key_created(key)

    def key_created(self, key: Key) -> None:
        """Keep the weight apart from the staging array, which carries gradients from now on.

        A table's array carries none.
        """
        staging = self._exchange.stagings[key]
        if self.updater is None or isinstance(staging, RowTable):
            return
        if staging.is_sparse:
            weight = SparseStaging(staging.shape, staging.dtype)
            weight.fill([staging.array])
            self._weights[key], self._sparse[key] = weight.array, weight
        else:
            with shapes_of(staging.shape):
                self._weights[key] = staging.array.copy()

    def give_up(self, key: Key) -> NDArray:
        """Update a key no more; return its weight."""
        self._sparse.pop(key, None)
        return self._weights.pop(key)

    def before_push(self, key: Key) -> None:
        """Note the numbers of the optimizer; the sum does not depend on them.

        Raises:
            UsageError: In a job that goes on the servers update the key; or gradients are to be compressed.
        """
        if self._exchange.counts_before.may_be:
            self._exchange.counts_before.check_own(key)
        if self._exchange.compress and not self._exchange.on_servers:
            check_not_compressed(self._exchange.compress)
        if self._same is None:
            return
        # States that were loaded may have brought another.
        if self._same.optimizer is not self.updater.optimizer:
            self.compare(self.updater.optimizer)
        self._same.before_push(key)

    def after_push(self, key: Key, *, sparse: bool) -> None:
        """Queue the update; row-sparse gradients stay so, for optimizers with lazy updates.

        Raises:
            UsageError: What is pushed would not be clipped, or a step lacks a key.
        """
        staging = self._exchange.stagings[key]
        self.hold(key, staging.array, lambda: [staging.buffer])
        if self.updater is None:
            return
        if sparse:
            of_key = staging.array.tostype("row_sparse"), self._weights[key], self._sparse.get(key)
            row_weights.update(self.updater, key, *of_key, meet=self._exchange.meet)
        else:
            with shapes_of(staging.shape):
                self.updater(key, staging.array, self._weights[key])

    def hold(self, key: Key, array: NDArray, parts: Callable[[], list[Any]]) -> None:
        """Let a sum wait for those of all other keys, if their norm is bounded; see ``ClippedSteps``."""
        if self.clipped is None:
            return
        if self.updater is None:
            raise UsageError(
                f"push of key {key!r} after clip_global_norm, but before set_optimizer: nothing would be "
                "clipped; a Trainer with update_on_kvstore=False clips with gluon.utils.clip_global_norm"
            )
        optimizer = getattr(self.updater, "optimizer", None)
        self.clipped.hold(key, array, parts, float(getattr(optimizer, "rescale_grad", 1.0)))

    def value(self, key: Key) -> NDArray:
        """Return the weight, or the last sum."""
        return self._weights[key] if self.updater is not None else self._exchange.stagings[key].array
