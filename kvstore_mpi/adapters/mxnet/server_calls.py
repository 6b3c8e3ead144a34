"""The calls of a store about what servers do besides an optimizer; a part of ``store.KVStoreMPI``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.averages import average_of, has_average
from kvstore_mpi.adapters.mxnet.bridge import engine
from kvstore_mpi.adapters.mxnet.bridge.arguments import group
from kvstore_mpi.adapters.mxnet.exchange.calls import checked
from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers import decay_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.tables.rows import RowKeys
    from kvstore_mpi.adapters.mxnet.updates.updates import Updates
    from kvstore_mpi.records import Key
    from kvstore_mpi.server_optimizers import OptimizerSpec

    Array = np.ndarray[Any, Any]


class ServerCalls:
    """What a store can have done by servers."""

    _exchange: Exchange
    _tables: RowKeys
    _updates: Updates

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """See ``store.KVStoreMPI``."""
        raise NotImplementedError

    @checked
    def compensate_delays(self, how: str, **numbers: float) -> None:
        """Treat delayed gradients right, on ``async-mpi``, whatever MXNet optimizer is set afterwards.

        So it serves a Trainer and a Module; all workers must call this. Cf. ``set_optimizer(DCASGD())``.

        Args:
            how: ``"dc-asgd"``: the gradient becomes g + lamda g² (w - what this client was last sent), for
                which the servers keep a copy of the model for each client (``esgd.DCASGD``); or
                ``"staleness-aware"``: the learning rate is divided by the updates that the client has not
                seen (``esgd.StalenessAware``).
            numbers: ``lamda``, 0.04 if not given.

        Raises:
            UsageError: There is no such rule, or no gradient is delayed in this job.
        """
        self._updates.compensate_delays(how, **numbers)

    @checked
    def clip_global_norm(self, max_norm: float, *, without: Sequence[Key] = ()) -> None:
        """Scale the gradient of all keys together down to a norm before each update.

        For ``sync-mpi``, before ``set_optimizer``, and so before a Trainer's first step; all workers must
        call this. The norm is that of the sum over all workers, times ``rescale_grad``, as in
        ``gluon.utils.clip_global_norm``. With servers each tells rank 0 a sum of squares, no gradient
        moves, and all keys are on them, whatever ``--dense`` says; without, each worker has all sums.
        Every key has to be pushed in each step, since nothing is updated before the last one has come.

        Args:
            max_norm: The bound, above 0.
            without: Keys that are never pushed; parameters of Gluon with ``grad_req="null"`` are known.

        Raises:
            UsageError: This store cannot clip so.
        """
        engine.check_overlap("clip_global_norm")
        self._updates.clip_global_norm(max_norm, [*without])

    @checked
    def average_weights(self, decay: float = 0.999) -> None:
        """Let the servers keep moving averages of all weights, for evaluation; see ``averaged``.

        After each update of a weight w its average a becomes decay a + (1 - decay) w; of tables the rows
        that are not updated are made up for when they are read. Before ``set_optimizer``, and so before a
        Trainer's first step; all workers must call this. All keys are then on the servers, whatever
        ``--dense`` says.

        Args:
            decay: What is left of an average after an update, above 0 and below 1.

        Raises:
            UsageError: This store has no servers that could, or an optimizer already.
        """
        self._updates.average_weights(decay)

    @checked
    def pull_averages(self, key: Any, out: Any) -> None:
        """Copy the averages of keys, with all own pushes so far, to all arrays of ``out``; waits for them.

        The average of a weight that has not been updated is the weight.

        Args:
            key: A key or a list of keys.
            out: For each key a dense array or a list of them, as for ``pull``.

        Raises:
            UsageError: The servers keep no averages, or a key is a ``TableEmbedding``.
        """
        wanted = group(key, out)
        averages = self._averages(wanted)
        for each, outs in wanted.items():
            self._exchange.check_arrays(each, outs, converts=True)
            if each not in averages:
                staging = self._exchange.stagings.known(each)
                if each in self._tables and staging.was_pushed:
                    raise UsageError(
                        f"key {each!r}: rows of a TableEmbedding, and their averages, are on servers only"
                    )
                self.pull(each, outs)
                continue
            for array in outs:
                mx.nd.array(averages[each], dtype=array.dtype).copyto(array)

    def _averages(self, keys: Iterable[Key]) -> dict[Key, Array]:
        """Return the averages of those keys that have been updated; see ``pull_averages``."""
        decay = decay_of(self._updates.spec)
        if not decay:
            raise UsageError("the servers keep no averages: call average_weights before set_optimizer")
        self._exchange.drain()
        states = self._exchange.worker.optimizer_states(self._exchange.store)
        updated = {key: states[key] for key in keys if key in states and has_average(states[key])}
        averages = {}
        for key, state in updated.items():
            staging = self._exchange.stagings.known(key)
            value = mx.nd.empty(staging.shape, dtype=staging.dtype)
            self.pull(key, value)
            averages[key] = average_of(state, value.asnumpy(), decay, is_table=key in self._tables)
        return averages


def keeps_all_on_servers(spec: OptimizerSpec | None) -> str:
    """Return the call for which servers must have all keys, if there was one."""
    if spec is not None and spec.clip_norm:
        return "clip_global_norm"
    return "average_weights" if decay_of(spec) else ""
