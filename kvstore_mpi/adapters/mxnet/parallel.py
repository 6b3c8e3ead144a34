"""Calls for a Trainer of Gluon's.

One makes that of a script for one process a Trainer of all workers, as Parallax does; one gives it the
weights of a job that goes on. This file must not know how a store works.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.adapters.mxnet.elastic import ElasticTrainer
from kvstore_mpi.adapters.mxnet.store import KVStoreMPI
from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import KVWorker

_MODES = ("sync", "async")


@raises_mxnet_errors
def parallel(trainer: Any, mode: str = "sync", *, worker: KVWorker | None = None) -> KVStoreMPI:
    """Let all workers train together, each with its share of the data; return their store.

    In a script for one process this call and ``shard`` are what there is to add. ``trainer.step`` is still
    told the size of the batch that this process has computed: with ``"sync"`` a step of W workers with B
    samples each is the step of one process with those W B samples, and gradients are divided by W B. A
    smaller batch at the end of an epoch is fine if all workers have it (``shard`` with
    ``remainder="drop"``); where sizes differ, rank 0's counts. With ``"async"`` each worker's batch is a
    step of its own.

    All workers begin with rank 0's weights after the first forward pass, which each makes with its own: let
    them have the same seed (``mx.random.seed``).

    ::

        trainer = gluon.Trainer(net.collect_params(), "adam")
        kv = kvstore_mpi.mxnet.parallel(trainer)
        mine = kvstore_mpi.shard(dataset, kv.num_workers, kv.rank, remainder="drop")

    Args:
        trainer: A ``gluon.Trainer``, before its first step; what store it was given by name does not count.
        mode: ``sync`` or ``async``.
        worker: Carries the values; this process's own if not given.

    Raises:
        UsageError: The trainer is none, has a store already, or there is no such mode.
    """
    _check(trainer, mode)
    store = mx.kv.create(f"{mode}-mpi") if worker is None else KVStoreMPI(mode, worker)
    trainer._kvstore_params["kvstore"] = store  # noqa: SLF001  Gluon takes it in its constructor only
    # What the sum over workers is divided by; amp.init_trainer has put its own number aside.
    workers = store.num_workers if mode == "sync" else 1
    for name in ("_scale", "_amp_original_scale"):
        if hasattr(trainer, name):
            setattr(trainer, name, getattr(trainer, name) / workers)
    let_sizes_count(trainer)
    return store


@raises_mxnet_errors
def take_up(trainer: Any) -> None:
    """Give a Trainer's parameters the store's values now, and not in its first step only.

    Call it before the first pass under ``autograd.record``, on all workers; where the shapes of parameters
    come from the data, after a first ``net(data)``. In a job that is resumed the gradients of the first
    step are then those of the saved weights, and in a new one those of rank 0's.

    ::

        net(data)
        kvstore_mpi.mxnet.take_up(trainer)

    Args:
        trainer: A ``gluon.Trainer`` with a store, or one that was given to ``parallel``, or an
            ``ElasticTrainer``, whose parameters begin with the center.

    Raises:
        UsageError: The trainer is none, or a parameter has no shape yet.
    """
    _check_is_trainer(trainer, "take_up")
    for param in trainer._params:  # noqa: SLF001  Gluon makes keys in steps only
        if param._deferred_init:  # noqa: SLF001
            raise UsageError(f"parameter {param.name} has no shape yet: call net(data) once before take_up")
    if isinstance(trainer, ElasticTrainer):
        trainer.join()
        return
    if not trainer._kv_initialized:  # noqa: SLF001
        trainer._init_kvstore()  # noqa: SLF001
        let_sizes_count(trainer)
    trainer._init_params()  # noqa: SLF001


def let_sizes_count(trainer: Any) -> None:
    """Let a Trainer with a store of ours follow the sizes that its ``step`` is told."""
    # Gluon refuses batches of another size where a store is distributed, as most stores would not notice.
    # Here they count; and the store may be opened before any size is known, by ``take_up`` or by a
    # row-sparse weight in a forward pass.
    trainer._check_and_rescale_grad = MethodType(_rescale, trainer)  # noqa: SLF001


def _check(trainer: Any, mode: str) -> None:
    """Raise where a trainer cannot be made parallel."""
    if mode not in _MODES:
        raise UsageError(f"mode must be {' or '.join(map(repr, _MODES))}, not {mode!r}")
    _check_is_trainer(trainer, "parallel")
    if trainer._kv_initialized:  # noqa: SLF001
        raise UsageError(
            "this Trainer has begun by itself: call parallel before its first step, save_states or "
            "load_states, and, where weights are row-sparse, before the first forward pass"
        )
    if isinstance(trainer._kvstore_params["kvstore"], mx.kv.KVStoreBase):  # noqa: SLF001
        raise UsageError(
            "this Trainer has been given a store: leave out kvstore=, or do without parallel and call "
            "trainer.step(batch_size * kv.num_workers)"
        )


def _check_is_trainer(trainer: Any, call: str) -> None:
    if not isinstance(trainer, mx.gluon.Trainer):
        raise UsageError(f"{call} is for a gluon.Trainer, and this is a {type(trainer).__name__}")


def _rescale(trainer: Any, scale: float) -> None:
    trainer._optimizer.rescale_grad = scale  # noqa: SLF001
