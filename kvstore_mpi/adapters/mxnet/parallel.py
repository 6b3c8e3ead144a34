"""One call that makes the Trainer of a script for one process a Trainer of all workers, as Parallax does.

This file must not know how a store works.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.mxnet_errors import raises_mxnet_errors
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
    # Gluon refuses batches of another size where a store is distributed, as most stores would not notice.
    # Here they count; and a row-sparse weight opens the store in a forward pass, before any size is known.
    trainer._check_and_rescale_grad = MethodType(_rescale, trainer)  # noqa: SLF001
    return store


def _check(trainer: Any, mode: str) -> None:
    """Raise where a trainer cannot be made parallel."""
    if mode not in _MODES:
        raise UsageError(f"mode must be {' or '.join(map(repr, _MODES))}, not {mode!r}")
    if not isinstance(trainer, mx.gluon.Trainer):
        raise UsageError(f"parallel is for a gluon.Trainer, and this is a {type(trainer).__name__}")
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


def _rescale(trainer: Any, scale: float) -> None:
    trainer._optimizer.rescale_grad = scale  # noqa: SLF001
