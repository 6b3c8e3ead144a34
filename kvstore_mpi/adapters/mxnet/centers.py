"""A client's parameters and their centers on the servers: when they meet, and what then follows.

What ``ElasticTrainer`` and ``ElasticCallback`` have in common. Everything is queued in MXNet's engine: the
forward pass of a layer waits for that layer's center only. This file must not know about trainers or
modules.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.arrays import classic, copy_to
from kvstore_mpi.adapters.timetable import Timetable
from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.server_optimizers import terms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.store import KVStoreMPI


class _UnderWay(NamedTuple):
    """An exchange whose center has not been applied yet."""

    key: int
    center: NDArray


class Centers:
    """The centers of one client's parameters.

    The client steps by itself; every ``interval`` steps it gives each of its parameter arrays to the
    servers and is given the center, in one request. With ``Elastic`` it then moves towards the center by
    alpha, otherwise it adopts it. All ranks of a client do the same, with the same bits.
    """

    def __init__(
        self,
        store: KVStoreMPI,
        optimizer: Any,
        interval: int,
        masters: Callable[[int, str], Sequence[NDArray | None]],
        *,
        overlap: int = 0,
        **terms: Any,
    ) -> None:
        """Give the servers their rule; all workers must.

        Args:
            store: A store with servers and without keys.
            optimizer: A server optimizer that takes parameters, see ``kvstore_mpi.esgd``.
            interval: Steps between two exchanges of a parameter array.
            masters: Returns the float32 copies that the local optimizer has of a key of this type, one for
                each device: it goes by them, and they move with the parameters.
            overlap: Steps for which training goes on before a center is applied.
            terms: ``compress``, ``quorum`` and ``quorum_wait`` of ``KVStoreMPI.set_optimizer``.

        Raises:
            UsageError: An argument does not fit.
        """
        _check(store, optimizer)
        staggered = "async" in store.type
        self._timetable: Timetable[_UnderWay] = Timetable(
            interval, overlap, client=store.client, num_clients=store.num_clients, staggered=staggered
        )
        self._store = store
        self._masters = masters
        self._overlap = overlap
        self._arrays: dict[int, list[NDArray]] = {}
        self._scratch: dict[int, NDArray] = {}
        self._ordinary: set[int] = set()  # keys of single precision on the CPU
        store.set_optimizer(optimizer, **terms)
        spec = store.server_optimizer or optimizer.spec()  # the former as rank 0 of the job gave it
        # Where the center is adopted, all of the difference to it counts.
        self._part = spec.params["alpha"] if spec.name == "elastic" else 1.0
        self._move = native.Operator("sgd_update", lr=-self._part, wd=0.0)

    @property
    def steps(self) -> int:
        """Steps so far; may be set, when no exchange is under way."""
        return self._timetable.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._timetable.steps = steps

    def join(self, key: int, arrays: Sequence[Any]) -> None:
        """Begin with the center of a key: that of rank 0 of the job, or of a job that is under way.

        Args:
            key: Number of the parameter array, the same on all workers.
            arrays: It, on each of this worker's devices; kept.

        Raises:
            UnsupportedError: It is sparse, or not of floating-point numbers.
        """
        kept = [classic(array) for array in arrays]
        if not native.is_dense(kept[0]) or not str(kept[0].dtype).count("float"):
            raise UnsupportedError(
                f"parameter {key} is {kept[0].stype} {kept[0].dtype}; only dense arrays of floating-point "
                "numbers can be averaged with a center"
            )
        self._arrays[key] = kept
        if kept[0].dtype == np.float32 and all(array.context == mx.cpu() for array in kept):
            self._ordinary.add(key)
        self._timetable.join(key)
        self._store.broadcast(key, kept[0], kept, priority=-key)
        self._copy_to_masters(key)

    def step(self, num_keys: int) -> None:
        """A step has ended: queue the exchanges that are due, and apply centers that are.

        Args:
            num_keys: Number of parameter arrays, whether they have joined or not.
        """
        self._timetable.steps += 1
        with mx.autograd.pause():
            for exchange in self._timetable.arrived():
                self._apply(exchange)
            for key in self._timetable.due(num_keys):
                self._exchange(key)

    def _exchange(self, key: int) -> None:
        weight = self._arrays[key][0]
        if self._overlap:
            native.copy(weight, self._scratch_of(key))
        center = self._store.pushpull_staged(key, [weight], -key)
        exchange = _UnderWay(key, center)
        if self._overlap:
            self._timetable.begin(exchange)
        else:
            self._apply(exchange)

    def _apply(self, exchange: _UnderWay) -> None:
        """Queue w += part (center - pushed).

        In place, with few operations: new memory and calls of the engine cost more than the sums.
        """
        weights = self._arrays[exchange.key]
        if self._part == 1.0 and not self._overlap:
            copy_to(exchange.center, weights)
            self._copy_to_masters(exchange.key)
        elif exchange.key in self._ordinary:
            step = self._scratch_of(exchange.key)
            native.subtract([exchange.center, self._pushed(exchange.key)], step)
            for weight in weights:
                self._move([weight, step], weight)  # w + part step, in one
        else:
            self._apply_elsewhere(exchange)

    def _apply_elsewhere(self, exchange: _UnderWay) -> None:
        """Do so on devices, in single precision where the parameters have half, and in double."""
        center, pushed = (_widened(array) for array in (exchange.center, self._pushed(exchange.key)))
        step = self._part * (center.as_in_context(pushed.context) - pushed)
        for weight, master in self._with_masters(exchange.key):
            moved = _widened(weight if master is None else master) + step.as_in_context(weight.context)
            moved.astype(weight.dtype, copy=False).copyto(weight)
            if master is not None:
                moved.copyto(master)

    def _copy_to_masters(self, key: int) -> None:
        """Let the local optimizer go on from the parameters as they are now."""
        if key not in self._ordinary:
            for weight, master in self._with_masters(key):
                if master is not None:
                    _widened(weight).copyto(master)

    def _with_masters(self, key: int) -> Iterator[tuple[NDArray, NDArray | None]]:
        weights = self._arrays[key]
        return zip(weights, self._masters(key, np.dtype(weights[0].dtype).name))

    def _pushed(self, key: int) -> NDArray:
        """Return what the exchange in question gave: with overlap the weights have moved on since."""
        return self._scratch_of(key) if self._overlap else self._arrays[key][0]

    def _scratch_of(self, key: int) -> NDArray:
        if key not in self._scratch:
            weight = self._arrays[key][0]
            self._scratch[key] = mx.nd.empty(weight.shape, weight.context, weight.dtype)
        return self._scratch[key]

    def settle(self) -> None:
        """Apply the centers of all exchanges that are under way, due or not."""
        with mx.autograd.pause():
            for exchange in self._timetable.all_under_way():
                self._apply(exchange)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the centers in the parameter arrays for a while; afterwards the client's own are back."""
        self.settle()
        own = {key: arrays[0].copy() for key, arrays in self._arrays.items()}
        with mx.autograd.pause():
            for key, arrays in self._arrays.items():
                self._store.pull(key, arrays, priority=-key)
        try:
            yield
        finally:
            for key, array in own.items():
                for target in self._arrays[key]:
                    array.copyto(target)


def _widened(array: NDArray) -> NDArray:
    return array.astype("float32") if array.dtype == np.float16 else array


def _check(store: Any, optimizer: Any) -> None:
    if not getattr(store, "num_servers", 0):
        raise UsageError(
            f"centers need a store with servers, not {store!r}: give mx.kv.create('async-mpi') or "
            "'sync-mpi' in a job that mpilaunch has started with --servers 1 or more"
        )
    if isinstance(optimizer, type):
        raise UsageError(f"give a server optimizer, such as {optimizer.__name__}(), and not its class")
    if not hasattr(optimizer, "spec") or not terms_of(optimizer.spec()).params:
        raise UsageError(
            f"{optimizer!r} does not take parameters; use Elastic, DiLoCo, LocalSGD, SlowMo, BMUF or Outer"
        )
