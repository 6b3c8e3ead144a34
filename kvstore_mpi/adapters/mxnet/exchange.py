"""The keys of one store and their way through the engine to the worker and back.

It turns each step into engine operations over the key's staging array and remembers what went wrong.
This file must not know about optimizers or about MXNet's KVStore interface.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from kvstore_mpi.adapters.mxnet import engine, native
from kvstore_mpi.adapters.mxnet.arrays import Staging, copy_to, dtype_name, may_view, view_of
from kvstore_mpi.adapters.mxnet.devices import DeviceTensors
from kvstore_mpi.errors import SkippedError, UsageError
from kvstore_mpi.interfaces import Done

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.records import Key

SENT_IN_PLACE_BYTES = 256 << 10
"""Gradients from this size on are not copied before they are sent to other hosts. MXNet's copy, measured at
3 GB/s, would take 85 us, twenty times as long as it takes to find out where they lie."""

_Call = Callable[[Done], None]


class Exchange:
    """What one store has in common with the same store of the other workers.

    Attributes:
        worker: Carries the values.
        on_servers: Whether servers have the values, and not the workers of this client alone.
        store: Number of the store, equal on all workers.
        stagings: The staging array of each key, in the order of initialisation.
    """

    def __init__(self, worker: KVWorker, mode: str) -> None:
        """Open the next store of this worker; ``mode`` is ``sync``, ``async`` or ``client``."""
        self.worker = worker
        self.on_servers = worker.num_servers > 0 and mode != "client"
        self.store = worker.open_store(mode)
        self.stagings: dict[Key, Staging] = {}
        self._devices = DeviceTensors(wanted=worker.gpu_kernels)
        self._process = os.getpid()
        self._errors: list[BaseException] = []

    def check(self) -> None:
        """Raise what has gone wrong so far.

        Raises:
            UsageError: This is a forked child; the store belongs to its parent.
            BaseException: The error that an earlier operation, or the worker, ended with.
        """
        if os.getpid() != self._process:
            raise UsageError(
                f"this store belongs to process {self._process} and cannot be used in its forked child "
                f"{os.getpid()}; use it in the parent only, or start the child with the spawn method"
            )
        error = self._errors[0] if self._errors else self.worker.failure()
        if error is not None:
            raise error

    def staging(self, key: Key) -> Staging:
        """Return the staging array of a key.

        Raises:
            UsageError: The key has not been initialised.
        """
        try:
            return self.stagings[key]
        except KeyError:
            raise UsageError(
                f"worker {self.worker.rank}: key {key!r} has not been initialised in store {self.store}; "
                f"call init or broadcast first (it has {len(self.stagings)} keys)"
            ) from None

    def check_arrays(self, key: Key, arrays: Sequence[NDArray], *, converts: bool = False) -> Staging:
        """Make sure that arrays have the shape and dtype of a key; return its staging array.

        Args:
            key: Which one.
            arrays: Of one key.
            converts: They may be of another floating-point type than the key.
        """
        staging = self.staging(key)
        for array in arrays:
            dtype = dtype_name(array)
            fits = dtype == staging.dtype or (converts and _are_floats(dtype, staging.dtype))
            if native.shape_of(array) != staging.shape or not fits:
                raise UsageError(
                    f"worker {self.worker.rank}: key {key!r} is {staging.shape} {staging.dtype}, but the "
                    f"array given for it is {array.shape} {dtype}"
                )
        return staging

    def init(self, key: Key, value: NDArray) -> None:
        """Create a key with the value of rank 0; waits for the value, not for the others."""
        self._check_new(key, value)
        staging = Staging(value.shape, dtype_name(value), self.worker.exchange_buffer)
        staging.fill([value])
        # With the value there, the worker can have the key in this call: placement depends on the order.
        staging.array.wait_to_read()
        ended: Future[BaseException | None] = Future()
        self.worker.init(self.store, key, staging.shape, staging.buffer, ended.set_result)
        self.stagings[key] = staging
        self._push(
            lambda done: ended.add_done_callback(lambda result: done(result.result())), staging, priority=0
        )

    def push(self, key: Key, values: Sequence[NDArray], priority: int) -> None:
        """Queue the sum of the values into the key's sum over workers."""
        self._send(self.worker.push, key, self._check_pushed(key, values), values, priority)

    def pushpull(self, key: Key, values: Sequence[NDArray], priority: int, *, gradients: bool) -> None:
        """Queue the same and the key's new value into its staging array.

        A large gradient that is sent to other hosts is sent from where it lies; until the new value has
        come, what is queued to write it waits. So workers that use one large array for several keys must
        take those in the same order.

        Args:
            key: Which one.
            values: An array for each device.
            priority: Larger goes first.
            gradients: They are, and not weights, which oneDNN keeps in layouts of its own.
        """
        staging = self._check_pushed(key, values)
        in_place = gradients and staging.buffer.nbytes >= SENT_IN_PLACE_BYTES and may_view(values)
        if in_place and self.worker.sends_source(self.store, key):
            call = partial(self._pushpull_in_place, key, staging, values[0], priority)
            self._push(call, staging, reads=values, priority=priority)
        else:
            self._send(self.worker.pushpull, key, staging, values, priority)

    def _pushpull_in_place(
        self, key: Key, staging: Staging, value: NDArray, priority: int, done: Done
    ) -> None:
        source = view_of(value, staging.dtype, staging.buffer.size)
        self.worker.pushpull(self.store, key, priority, _unless_skipped(done), source)

    def pull(self, key: Key, priority: int) -> None:
        """Queue the key's value into its staging array; without servers it is there already."""
        staging = self.staging(key)
        if self.on_servers and staging.buffer.size:
            self._push(
                lambda done: self.worker.pull(self.store, key, priority, done), staging, priority=priority
            )

    def deliver(self, key: Key, value: NDArray, outs: Sequence[NDArray], priority: int) -> None:
        """Queue copies of a key's value, in its staging array or another, to arrays of any device."""
        staging = self.stagings[key]
        if value is staging.array and self._devices.are_for(staging, outs):
            call = partial(_at_once, partial(self._devices.share, staging, outs))
            self._queue(call, mutable=outs, const=[staging.array], priority=priority, after_failures=False)
        else:
            copy_to(value, outs)

    def after_everything(self, action: Callable[[], None]) -> None:
        """Queue a call that comes after all operations so far and before all later ones."""
        everything = [staging.array for staging in self.stagings.values() if staging.buffer.size]
        self._queue(partial(_at_once, action), const=everything)

    def drain(self) -> None:
        """Wait until all operations of this store are over; raises what they ended with."""
        try:
            for staging in self.stagings.values():
                staging.array.wait_to_read()
        finally:
            self.check()  # our error is better than the engine's

    def _check_new(self, key: Key, value: NDArray) -> None:
        known = self.stagings.get(key)
        if known is not None:
            raise UsageError(
                f"worker {self.worker.rank}: duplicate init of key {key!r} of store {self.store}: it is "
                f"{known.shape} {known.dtype}, and is now given {value.shape} {dtype_name(value)}; "
                "a store holds one set of keys, so create one store for each Trainer or Module"
            )
        first = next(iter(self.stagings), key)
        if isinstance(key, str) != isinstance(first, str):
            raise UsageError(
                f"worker {self.worker.rank}: mixed key types are not allowed: store {self.store} has the "
                f"key {first!r} and is given {key!r}"
            )

    def _check_pushed(self, key: Key, values: Sequence[NDArray]) -> Staging:
        staging = self.check_arrays(key, values)
        if staging.dtype == "bool":
            raise UsageError(
                f"worker {self.worker.rank}: key {key!r} is bool and has no sum; it can be initialised, "
                "broadcast and pulled; push it as int32"
            )
        return staging

    def _send(
        self,
        call: Callable[[int, Key, int, Done], None],
        key: Key,
        staging: Staging,
        values: Sequence[NDArray],
        priority: int,
    ) -> None:
        if staging.buffer.size:
            self._sum(staging, values, priority)
            self._push(
                lambda done: call(self.store, key, priority, _unless_skipped(done)),
                staging,
                priority=priority,
            )

    def _sum(self, staging: Staging, values: Sequence[NDArray], priority: int) -> None:
        """Queue the sum of the values, one per device, into the staging array; in a fixed order."""
        if self._devices.are_for(staging, values):
            call = partial(_at_once, partial(self._devices.reduce, staging, values))
            self._queue(
                call, mutable=[staging.array], const=values, priority=priority, after_failures=False
            )
        else:
            staging.fill(values)

    def _push(self, call: _Call, staging: Staging, *, reads: Sequence[NDArray] = (), priority: int) -> None:
        self._queue(call, mutable=[staging.array], const=reads, priority=priority)

    def _queue(
        self,
        call: _Call,
        *,
        mutable: Sequence[NDArray] = (),
        const: Sequence[NDArray] = (),
        priority: int = 0,
        after_failures: bool = True,
    ) -> None:
        engine.push_async(
            call,
            mutable=mutable,
            const=const,
            priority=priority,
            on_error=self._errors.append,
            after_failures=after_failures,
        )
        self.check()  # with the NaiveEngine the operation is over, and nothing else would stop the copies


def _are_floats(*dtypes: str) -> bool:
    return all(dtype.startswith("float") for dtype in dtypes)


def _at_once(action: Callable[[], None], done: Done) -> None:
    """Do something within an operation."""
    action()
    done(None)


def _unless_skipped(done: Done) -> Done:
    """Take it for no error that an exchange was left out because a server is away, of which the log tells.

    Elements that were not exchanged come back as they were pushed.
    """
    return lambda error: done(None if isinstance(error, SkippedError) else error)
