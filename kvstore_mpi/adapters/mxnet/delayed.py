"""Updates that are made of the gradients of several batches: a larger batch than there are devices for.

The delayed gradient update of Pal et al. (2019), section 4: each worker goes forward and backward k times
before gradients are summed among workers and the weights updated, once. So a job of N workers updates as
one of k N workers does, with k times the batch, and epochs can be counted for batches that no cluster at
hand could compute at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.epoch_report import asked_delay
from kvstore_mpi.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from kvstore_mpi.adapters.mxnet.store import KVStoreMPI


class DelayedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """A ``gluon.Trainer`` of which every ``delay``-th ``step`` updates, with the gradients of all since.

    Gradients are added where they are computed (``grad_req`` is ``"add"``) and set to zero after an update;
    what is left over at the end of an epoch counts in the next. BatchNorm's statistics stay those of each
    single batch, as with ``delay`` times as many workers. With ``delay=1`` it is ``gluon.Trainer``.

    The learning rate is multiplied by ``delay``, as for a batch that is so much larger (linear scaling),
    also one set later by ``set_learning_rate``; ``learning_rate`` is that of an update.

    Example::

        trainer = DelayedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kv, delay=4)
        ...
        trainer.step(batch_size)  # of this batch, over all workers; updates each fourth time
    """

    @raises_mxnet_errors
    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        kvstore: KVStoreMPI | str | None = "device",
        *,
        delay: int | None = None,
        scale_lr: bool = True,
        **more: Any,
    ) -> None:
        """Make a trainer; all workers must, with the same arguments.

        Args:
            params: As of ``gluon.Trainer``.
            optimizer: As of ``gluon.Trainer``.
            optimizer_params: As of ``gluon.Trainer``.
            kvstore: As of ``gluon.Trainer``: a store, its name, or ``None``.
            delay: Batches of an update; what ``mpilaunch --delay`` says if not given, else 1.
            scale_lr: Multiply the learning rate by ``delay``.
            more: As of ``gluon.Trainer``.

        Raises:
            UsageError: The delay is less than 1, or a schedule cannot be scaled.
            UnsupportedError: A gradient is row-sparse, and cannot be added to.
        """
        self._delay = asked_delay() if delay is None else delay
        if self._delay < 1:
            raise UsageError(f"delay is {self._delay}: an update needs the gradients of 1 batch or more")
        self._lr_factor = self._delay if scale_lr else 1
        self._batches = self._samples = 0
        super().__init__(params, optimizer, optimizer_params, kvstore=kvstore, **more)
        if self._delay == 1:
            return
        if self._contains_sparse_weight or self._contains_sparse_grad:
            raise UnsupportedError("row-sparse gradients cannot be added up: give delay=1, or dense ones")
        if self._lr_factor > 1 and self._optimizer.lr_scheduler is not None:
            raise UsageError(
                "a schedule's learning rates cannot be multiplied by the delay: give delay=... one whose "
                "rates are those of an update, which is what it counts, and scale_lr=False"
            )
        if self._lr_factor > 1:
            self.set_learning_rate(self._optimizer.lr)
        for param in self._params:
            if param.grad_req == "write":
                param.grad_req = "add"

    @raises_mxnet_errors
    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Count a batch, and update if it is the last of ``delay``.

        Args:
            batch_size: Samples of this batch over all workers, as of ``gluon.Trainer``.
            ignore_stale_grad: As of ``gluon.Trainer``.
        """
        self._batches += 1
        self._samples += batch_size
        if self._batches < self._delay:
            return
        super().step(self._samples, ignore_stale_grad)
        self._batches = self._samples = 0
        if self._delay > 1:
            for param in self._params:
                param.zero_grad()

    def allreduce_grads(self) -> None:
        """Sum gradients among workers, as ``gluon.Trainer``; only without a delay."""
        self._refuse_halves()
        super().allreduce_grads()

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Make the second half of a step, as ``gluon.Trainer``; only without a delay."""
        self._refuse_halves()
        super().update(batch_size, ignore_stale_grad)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate for a single batch; that of an update follows from it."""
        super().set_learning_rate(lr * self._lr_factor)

    @raises_mxnet_errors
    def _refuse_halves(self) -> None:
        if self._delay > 1:
            raise UnsupportedError(
                "with a delay, a step has no halves: call step, which knows when to update"
            )
