"""The keys of one store and their way through the engine to the worker and back.

It turns each step into engine operations over the key's staging array and remembers what went wrong.
This file must not know about optimizers or about MXNet's KVStore interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from kvstore_mpi.adapters.collected_errors import CollectedErrors
from kvstore_mpi.adapters.in_place import worth_sending_in_place
from kvstore_mpi.adapters.mxnet.bridge import engine, native
from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging, copy_to, dtype_name, may_view, view_of
from kvstore_mpi.adapters.mxnet.bridge.devices import DeviceTensors
from kvstore_mpi.adapters.mxnet.exchange.counts_before import CountsBefore
from kvstore_mpi.adapters.pushed_values import PushedValue, PushedValues
from kvstore_mpi.adapters.store_keys import StoreKeys
from kvstore_mpi.errors import SkippedError, UsageError
from kvstore_mpi.hybrid.routes import Route
from kvstore_mpi.interfaces import Done

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.exchange.key_routes import KeyRoutes
    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.records import Key

_Call = Callable[[Done], None]


class Exchange:
    """What one store has in common with the same store of the other workers.

    Attributes:
        worker: Carries the values.
        on_servers: Whether servers have the values, and not the workers of this client alone; of a store
            with both, the tables.
        store: Number of the store, equal on all workers.
        stagings: The staging array of each key, in the order of initialisation.
        routes: Which keys the workers sum and which the servers have, where that is not the same for all.
        orders_told: Digests of the names of parameters whose order others have been told.
        check: Raises what has gone wrong so far; of a store that is closed, that it is.
        is_closed: Nothing of it is here or with others any more.
    """

    def __init__(self, worker: KVWorker, mode: str) -> None:
        """Open the next store of this worker; ``mode`` is ``sync``, ``async`` or ``client``."""
        self.worker = worker
        self.on_servers = worker.num_servers > 0 and mode != "client"
        self.store = worker.open_store(mode)
        self._mode = mode
        self.routes: KeyRoutes | None = None
        self._summed_store = self.store
        self._further: list[int] = []  # other stores that go with this one
        self.stagings: StoreKeys[Staging] = StoreKeys(worker.rank, self.store)
        self._kept: dict[Key, Staging] = {}
        self._devices = DeviceTensors(wanted=worker.gpu_kernels)
        self._errors = CollectedErrors(worker)
        self.check = self._errors.check
        self.is_closed = False
        self.counts_before = CountsBefore(self, mode)
        self.orders_told: set[int] = set()
        self.compress: str | None = None  # what optimizers that are set from now on are to have

    def take_routes(self, routes: KeyRoutes) -> None:
        """Sum some of the keys that are initialised from now on among the workers.

        All workers call this at the same point; the job has one client.

        Raises:
            UsageError: A key that is there is to be one of them.
        """
        wanted = {key: routes.wanted(key) for key in self.stagings}
        late = [(key, route) for key, route in wanted.items() if route is not None and route.by_workers]
        for key, route in late:
            raise UsageError(
                f"key {key!r}: its route {route.value} must be known before it is initialised; "
                "call set_optimizer before init"
            )
        self.routes = routes
        self._summed_store = self.open_further("client")

    def open_further(self, mode: str) -> int:
        """Open a store for what belongs to this one, and is closed with it; return its number.

        All workers call this at the same point.
        """
        self._further.append(self.worker.open_store(mode))
        return self._further[-1]

    def close(self, *, settled: bool) -> None:
        """Give up all keys, as all workers do, when all operations of this store are over.

        Args:
            settled: As of ``KVWorker.barrier``.
        """
        # In the order in which they were opened, which is that of all workers.
        for store in (self.store, *self._further):
            self.worker.close_store(store, settled=settled)
        self.stagings.clear()
        self._kept.clear()
        self.is_closed = True
        self._errors.add(
            UsageError(
                f"worker {self.worker.rank}: store {self.store} is closed, and with it whatever it was "
                "given to (a Trainer, a Module, a TableEmbedding): create another store, and others for it"
            )
        )

    def route_of(self, key: Key, *, is_table: bool) -> Route:
        """Return the route of a key that is to be initialised, where not all of them have the same one."""
        return Route.SERVERS if self.routes is None else self.routes.of(key, is_table=is_table)

    def store_of(self, route: Route) -> int:
        """Return the number of the store that keys of a route are in."""
        return self._summed_store if route.by_workers else self.store

    def is_on_servers(self, key: Key) -> bool:
        """Tell whether servers have a key."""
        return self.on_servers and self.stagings[key].store == self.store

    def check_arrays(self, key: Key, arrays: Sequence[NDArray], *, converts: bool = False) -> Staging:
        """Make sure that arrays have the shape and dtype of a key; return its staging array.

        Args:
            key: Which one.
            arrays: Of one key.
            converts: They may be of another floating-point type than the key.
        """
        staging = self.stagings.known(key)
        for array in arrays:
            shape, dtype = native.shape_of(array), dtype_name(array)
            if shape != staging.shape or dtype != staging.dtype:
                self.stagings.check_other(key, shape, dtype, converts=converts)
        return staging

    def init(self, key: Key, value: NDArray) -> None:
        """Create a key with the value of rank 0; waits for the value, not for the others."""
        self.stagings.check_new(key, value.shape, dtype_name(value))
        self._create(key, value, self.route_of(key, is_table=False))

    def move_to_workers(self, key: Key, value: NDArray) -> None:
        """Sum a key among the workers from now on, which all have this value; waits as ``init`` does.

        Nothing of the key is under way on the servers; all workers call this at the same point.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            self._create(key, value, Route.ALLREDUCE)
        else:
            kept.fill([value])
            self.stagings[key] = kept
        self.stagings[key].note_push()  # of what it has been: it is no new key

    def leave_workers(self, key: Key) -> None:
        """A key becomes a table: keep the array in which it was summed, in case that it comes back."""
        self._kept[key] = self.stagings[key]

    def _create(self, key: Key, value: NDArray, route: Route) -> None:
        staging = Staging(value.shape, dtype_name(value), self.worker.exchange_buffer)
        staging.fill([value])
        # With the value there, the worker can have the key in this call: placement depends on the order.
        staging.array.wait_to_read()
        ended: Future[BaseException | None] = Future()
        staging.store = self.store_of(route)
        staging.is_sparse = not native.is_dense(value)
        staging.pushed = PushedValues(others_push=self._mode == "async", predicts=self.worker.mpi_rank == 0)
        self.worker.init(staging.store, key, staging.shape, staging.buffer, ended.set_result)
        self.stagings[key] = staging
        self._push(
            lambda done: ended.add_done_callback(lambda result: done(result.result())), staging, priority=0
        )

    def push(self, key: Key, values: Sequence[NDArray], priority: int, *, brings: bool) -> None:
        """Queue the sum of the values into the key's sum over workers.

        Args:
            key: Which one.
            values: An array for each device.
            priority: Larger goes first.
            brings: The new value may come into the staging array with it, for a pull that is expected.
        """
        staging = self.check_arrays(key, values)
        self.stagings.check_sum(key)
        staging.note_push()
        call = self.worker.push
        if brings and self.is_on_servers(key):
            call = partial(self._push_and_note, staging.pushed.begin())
        else:
            staging.pushed.forget()
        self._send(call, key, staging, values, priority)

    def _push_and_note(self, pushed: PushedValue, store: int, key: Key, priority: int, done: Done) -> None:
        arrived = pushed.arrived if pushed.wanted else None
        self.worker.push(store, key, priority, pushed.ending(done), arrived)

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
        staging = self.check_arrays(key, values)
        self.stagings.check_sum(key)
        staging.note_push()
        staging.pushed.forget()  # another value comes into the array
        if (
            worth_sending_in_place(staging.buffer.nbytes, len(values), gradients=gradients)
            and may_view(values[0])
            and self.worker.sends_source(staging.store, key)
        ):
            call = partial(self._pushpull_in_place, key, staging, values[0], priority)
            self._push(call, staging, reads=values, priority=priority)
        else:
            self._send(self.worker.pushpull, key, staging, values, priority)

    def _pushpull_in_place(
        self, key: Key, staging: Staging, value: NDArray, priority: int, done: Done
    ) -> None:
        source = view_of(value, staging.dtype, staging.buffer.size)
        self.worker.pushpull(staging.store, key, priority, _unless_skipped(done), source)

    def pull(self, key: Key, priority: int, *, takes: bool = True) -> None:
        """Queue the key's value into its staging array; without servers it is there already.

        Args:
            key: Which one.
            priority: Larger goes first.
            takes: What has come with a push will do.
        """
        staging = self.stagings.known(key)
        if not (self.is_on_servers(key) and staging.buffer.size):
            return
        pushed = staging.pushed.pull() if takes else None
        # Where this worker decides, the value comes, or the push fails, and this array with it: to look
        # when the push is over would take as long as a small key's whole way.
        if pushed is None or not pushed.is_sure:
            call = partial(self._pull_unless_come, pushed, staging.store, key, priority)
            self._push(call, staging, priority=priority)

    def _pull_unless_come(
        self, pushed: PushedValue | None, store: int, key: Key, priority: int, done: Done
    ) -> None:
        if pushed is not None and pushed.has_come:
            done(None)
        else:
            self.worker.pull(store, key, priority, done)

    def deliver(self, key: Key, value: NDArray, outs: Sequence[NDArray], priority: int) -> None:
        """Queue copies of a key's value, in its staging array or another, to arrays of any device."""
        staging = self.stagings[key]
        if value is staging.array and self._devices.are_for(staging, outs):
            call = partial(at_once, partial(self._devices.share, staging, outs))
            self.queue(call, mutable=outs, const=[staging.array], priority=priority, after_failures=False)
        else:
            copy_to(value, outs)

    def after(self, key: Key, action: Callable[[], None]) -> None:
        """Queue a call that comes after all operations of a key so far, if these go well."""
        staging = self.stagings[key]
        self.queue(partial(at_once, action), mutable=[staging.array], after_failures=False)

    def after_everything(self, action: Callable[[], None]) -> None:
        """Queue a call that comes after all operations so far and before all later ones."""
        everything = [staging.array for staging in self.stagings.values() if staging.buffer.size]
        self.queue(partial(at_once, action), const=everything)

    def meet(self, arrays: Sequence[NDArray]) -> None:
        """Let nothing that is queued for one of some arrays pass what is queued for the others."""
        self.queue(partial(at_once, _nothing), mutable=arrays, after_failures=False)

    def drain(self) -> None:
        """Wait until all operations of this store are over; raises what they ended with."""
        try:
            for staging in self.stagings.values():
                staging.array.wait_to_read()
        finally:
            self.check()  # our error is better than the engine's

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
                lambda done: call(staging.store, key, priority, _unless_skipped(done)),
                staging,
                priority=priority,
            )

    def _sum(self, staging: Staging, values: Sequence[NDArray], priority: int) -> None:
        """Queue the sum of the values, one per device, into the staging array; in a fixed order."""
        if self._devices.are_for(staging, values):
            call = partial(at_once, partial(self._devices.reduce, staging, values))
            self.queue(call, mutable=[staging.array], const=values, priority=priority, after_failures=False)
        else:
            staging.fill(values)

    def _push(self, call: _Call, staging: Staging, *, reads: Sequence[NDArray] = (), priority: int) -> None:
        self.queue(call, mutable=[staging.array], const=reads, priority=priority)

    def queue(
        self,
        call: _Call,
        *,
        mutable: Sequence[NDArray] = (),
        const: Sequence[NDArray] = (),
        priority: int = 0,
        after_failures: bool = True,
    ) -> None:
        """Queue an operation; see ``engine.push_async``."""
        if self.is_closed:
            self.check()
        engine.push_async(
            partial(self._begin, call) if after_failures else call,
            mutable=mutable,
            const=const,
            priority=priority,
            on_error=self._errors.add,
            after_failures=after_failures,
        )
        self.check()  # with the NaiveEngine the operation is over, and nothing else would stop the copies

    def _begin(self, call: _Call, done: Done) -> None:
        """Begin an operation that others may wait for, and tell them if it cannot be."""
        try:
            call(done)
        except UsageError as error:
            # Before anything else: what comes next of the key would meet an earlier operation of theirs,
            # and they would be blamed for another order of calls.
            self.worker.interrupt(f"cannot go on: {error}", error)
            raise


def _nothing() -> None:
    """Come after what is queued for some arrays, and before what will be."""


def at_once(action: Callable[[], None], done: Done) -> None:
    """Do something within an operation."""
    action()
    done(None)


def before_end(action: Callable[[], None], done: Done) -> Done:
    """Do something when an operation has gone well, before it ends; what that raises ends it as failed."""

    def end(error: BaseException | None) -> None:
        if error is None:
            try:
                action()
            except BaseException as failed:  # noqa: BLE001  on the I/O thread, which must go on
                error = failed
        done(error)

    return end


def _unless_skipped(done: Done) -> Done:
    """Take it for no error that an exchange was left out because a server is down, of which the log tells.

    Elements that were not exchanged come back as they were pushed.
    """
    return lambda error: done(None if isinstance(error, SkippedError) else error)
