"""Workers without a network: all workers of a job as objects in one process, for tests of adapters.

They sum, update and answer like real ones, on one background thread, and a test decides which answers are
withheld or fail. This file must not know about MXNet.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import ConfigurationError, KVStoreError, UsageError
from kvstore_mpi.esgd.terms import check_terms
from kvstore_mpi.records import Growth, Key, Mode, RowCount
from kvstore_mpi.server_optimizers import OptimizerSpec
from kvstore_mpi.testing.fake_answers import Answers, Call
from kvstore_mpi.testing.fake_rows import Init, Push, Tables, Uncounted
from kvstore_mpi.testing.fake_rules import OptimizerRule, Rule, sum_of
from kvstore_mpi.values.row_init import initial_rows
from kvstore_mpi.worker.state_parts import KeyStates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import FetchedVersions, OptimizerNumbers, Rows

Array = np.ndarray[Any, Any]
BARRIER_SECONDS = 30.0


class _Request(NamedTuple):
    call: Call
    buffer: Array
    done: Done
    arrived: Done | None = None

    def give(self, value: Array) -> None:
        np.copyto(self.buffer, value)
        if self.arrived is not None:
            self.arrived(None)


class LocalGroup:
    """The workers of a job, and the servers too if there are any.

    Attributes:
        hold: See ``Answers``, and so ``release``, ``fail`` and ``close``.
        workers: One ``KVWorker`` for each rank.
        calls: All calls so far, in the order in which they came.
        hyper: The hyper-parameters that each ``set_hyper`` brought, in order.
    """

    def __init__(
        self,
        num_workers: int = 1,
        *,
        num_servers: int = 0,
        has_rows: bool = True,
        make_rule: Callable[[dict[str, Any]], Rule] = OptimizerRule,
    ) -> None:
        """Start a group.

        Args:
            num_workers: Workers; with servers each is a client of its own, without all are one client.
            num_servers: 0 behaves like pure MPI; any other number like servers.
            has_rows: The workers can exchange rows of tables.
            make_rule: Makes what the servers do with sums from what ``set_optimizer`` brings.
        """
        self.num_servers = num_servers
        self.has_rows = has_rows
        self.make_rule = make_rule
        self.calls: list[Call] = []
        self.hyper: list[dict[str, Any]] = []
        self.lock = threading.RLock()
        self.barrier = threading.Barrier(num_workers)
        self.rules: dict[int, Rule] = {}
        self.specs: dict[int, dict[str, Any]] = {}
        self._values: dict[tuple[int, Key], Array] = {}
        self._waiting: dict[tuple[int, Key, str], list[deque[_Request]]] = {}
        self._answers = Answers()
        self.hold, self.release, self.fail = (
            self._answers.hold,
            self._answers.release,
            self._answers.fail,
        )
        self.close = self._answers.close
        self.workers = [FakeWorker(self, rank, num_workers) for rank in range(num_workers)]
        self.tables = Tables(
            self._answers.answer, range(num_workers), self.rules, on_servers=num_servers > 0
        )

    # --- what the workers ask ---

    def submit(self, request: _Request, mode: str) -> None:
        """Take a call of a worker."""
        call = request.call
        with self.lock:
            self.calls.append(call)
            if call.name == "pull":
                self._answer(request, self._values[call.store, call.key])
            elif call.name != "init" and mode == "async":
                self._apply([request])
            else:
                self._meet(request)

    def _meet(self, request: _Request) -> None:
        """Let a call wait for the other workers' calls of the same key."""
        call = request.call
        kind = "init" if call.name == "init" else "push"
        rounds = self._waiting.setdefault((call.store, call.key, kind), [deque() for _ in self.workers])
        rounds[call.rank].append(request)
        if all(rounds):
            requests = [waiting.popleft() for waiting in rounds]
            if call.name == "init":
                self._create(requests)
            else:
                self._apply(requests)

    def _create(self, requests: list[_Request]) -> None:
        first = requests[0]
        value = first.buffer.copy()  # before the first answer, after which the buffer may change
        self._values[first.call.store, first.call.key] = value
        for request in requests:
            self._answer(request, value.copy())

    def _apply(self, requests: list[_Request]) -> None:
        """Sum in the order of ranks, update, and answer."""
        call = requests[0].call
        value = self._values[call.store, call.key]
        pushed = [request.buffer for request in requests]
        rule = self.rules.get(call.store)
        if rule is None:
            value[:] = sum_of(pushed)
            answer = value
        else:
            answer = rule.update(call.key, value, pushed)
        for request in requests:
            answered = request.call.name == "pushpull" or request.call.gives or not self.num_servers
            self._answer(request, answer.copy() if answered else None)

    def _answer(self, request: _Request, value: Array | None) -> None:
        give = None if value is None else partial(request.give, value)
        self._answers.answer(request.call, request.done, give)


class FakeWorker(Uncounted):
    """One worker of a ``LocalGroup``; implements ``KVWorker``, whose docstrings describe the calls."""

    gpu_kernels = False
    model_rank, model_parallel = 0, 1
    dense = "servers"
    step_timeout = 60.0
    routes = ""
    has_snapshots = False
    takes_up: frozenset[str] = frozenset()
    unites_lookups = False

    def __init__(self, group: LocalGroup, rank: int, num_workers: int) -> None:
        """Make the worker of a rank; ``LocalGroup`` does this."""
        self._group = group
        self._modes: list[str] = []
        self._buffers: dict[tuple[int, Key], Array] = {}
        self.rank = self.local_rank = rank
        self.num_workers = num_workers
        self.num_servers = group.num_servers
        self.has_rows = group.has_rows
        self.client, self.num_clients = (rank, num_workers) if group.num_servers else (0, 1)
        self.mpi_rank, self.mpi_size = (0, 1) if group.num_servers else (rank, num_workers)
        self.client_hosts = 1
        self.closed = False
        self.closed_stores: set[int] = set()

    def open_store(self, mode: str) -> int:
        """See ``KVWorker``."""
        if mode == "async" and not self.num_servers:
            raise ConfigurationError("an async store needs servers")
        self._modes.append(mode)
        return len(self._modes) - 1

    def close_store(self, store: int, *, settled: bool = False) -> None:
        """See ``KVWorker``."""
        if store not in self.closed_stores:
            self.closed_stores.add(store)
            self.barrier(settled=settled)

    def exchange_buffer(self, size: int, dtype: str) -> Array:
        """See ``KVWorker``."""
        return np.zeros(size, dtype)

    def init(self, store: int, key: Key, _shape: Any, buffer: Array, done: Done, **_: bool) -> None:
        """See ``KVWorker``."""
        self._buffers[store, key] = buffer
        self._submit("init", store, key, 0, done)

    def push(self, store: int, key: Key, priority: int, done: Done, arrived: Done | None = None) -> None:
        """See ``KVWorker``; a rank that is not the first of its client gets no values."""
        told = (done,) if arrived is None or self.mpi_rank else (done, arrived)
        self._submit("push", store, key, priority, *told)

    def pull(self, store: int, key: Key, priority: int, done: Done) -> None:
        """See ``KVWorker``."""
        self._submit("pull", store, key, priority, done)

    def pushpull(
        self, store: int, key: Key, priority: int, done: Done, source: Array | None = None
    ) -> None:
        """See ``KVWorker``."""
        if source is not None:
            self._buffers[store, key][:] = source
        self._submit("pushpull", store, key, priority, done)

    def sends_source(self, store: int, key: Key) -> bool:  # noqa: ARG002  alike for all
        """See ``KVWorker``; always where there are servers, so that adapters are tested with sources."""
        return self.num_servers > 0

    def _submit(self, name: str, store: int, key: Key, priority: int, *told: Done) -> None:
        if (store, key) not in self._buffers:
            raise UsageError(f"{name} of key {key!r} before its init")
        call = Call(self.rank, name, store, key, priority, len(told) > 1)
        self._group.submit(_Request(call, self._buffers[store, key], *told), self._modes[store])

    def init_rows(  # noqa: PLR0917  as ``KVWorker`` has it
        self,
        store: int,
        key: Key,
        shape: tuple[int, ...],
        dtype: str,
        value: Array | None,
        done: Done,
        *,
        partitions: int = 0,  # noqa: ARG002  nobody sees the pieces
        by: str = "mod",  # noqa: ARG002  nor how they are cut
        growth: Growth | None = None,
    ) -> None:
        """See ``RowsWorker``; of a table that grows all rows are made, so that it must be small."""
        if growth is not None:
            value = initial_rows(growth.init, np.arange(shape[0]), shape[1], np.dtype(dtype))
        with self._rows_call("init", store, key) as call:
            self._group.tables.init(Init(call, shape, dtype, value, done), self._modes[store])

    def rows_are_pushed(self, store: int, key: Key) -> bool:
        """See ``RowsWorker``."""
        return self._group.tables.is_begun(store, key)

    def rows_counted(self, store: int) -> dict[Key, RowCount]:
        """See ``rows_interface.RowsWorker``; nothing is counted."""
        sizes = self._group.tables.row_bytes(store)
        return {key: RowCount("rows", 1, row_bytes) for key, row_bytes in sizes.items()}

    def push_rows(self, store: int, key: Key, rows: Rows, priority: int, done: Done) -> None:
        """See ``RowsWorker``."""
        with self._rows_call("push", store, key, priority) as call:
            self._group.tables.push(Push(call, rows, done, None), self._modes[store])

    def pushpull_rows(  # noqa: PLR0917  as ``KVWorker`` has it
        self, store: int, key: Key, rows: Rows, priority: int, done: Done, out: list[Rows]
    ) -> None:
        """See ``RowsWorker``."""
        with self._rows_call("pushpull", store, key, priority) as call:
            self._group.tables.push(Push(call, rows, done, out), self._modes[store])

    def pull_rows(  # noqa: PLR0917  as ``KVWorker`` has it
        self,
        store: int,
        key: Key,
        priority: int,
        done: Done,
        out: list[Rows],
        ids: Array | None = None,
        *,
        exact: bool = False,  # noqa: ARG002  nothing is rounded
        since: FetchedVersions | None = None,
        together: bool = False,  # noqa: ARG002  nobody waits for others
    ) -> None:
        """See ``RowsWorker``."""
        with self._rows_call("pull", store, key, priority) as call:
            self._group.tables.pull(call, done, out, ids, since)

    @contextmanager
    def _rows_call(self, name: str, store: int, key: Key, priority: int = 0) -> Iterator[Call]:
        with self._group.lock:
            call = Call(self.rank, f"{name}_rows", store, key, priority)
            self._group.calls.append(call)
            yield call

    def set_optimizer(self, store: int, spec: dict[str, Any]) -> dict[str, Any]:
        """See ``KVWorker``."""
        check_terms(OptimizerSpec.from_dict(spec), Mode(self._modes[store]), self.num_clients)
        with self._group.lock:
            if self.rank == 0:
                self._group.rules[store] = self._group.make_rule(spec)
                self._group.specs[store] = spec
            return self._group.specs.get(store, spec)

    def set_hyper(self, store: int, hyper: dict[str, Any]) -> None:
        """See ``KVWorker``."""
        with self._group.lock:
            self._group.hyper.append(hyper)
            self._group.rules[store].set_hyper(hyper)

    def optimizer_states(self, store: int, *, arrays: bool = True) -> dict[Key, KeyStates]:  # noqa: ARG002
        """See ``KVWorker``; always with arrays, which cost nothing here."""
        with self._group.lock:
            return self._group.rules[store].states()

    def load_optimizer_states(self, store: int, states: dict[Key, KeyStates]) -> None:
        """See ``KVWorker``."""
        with self._group.lock:
            self._group.rules[store].load(states)

    def barrier(self, *, settled: bool = False) -> None:  # noqa: ARG002  it cannot look whether that is true
        """See ``KVWorker``."""
        self._group.barrier.wait(BARRIER_SECONDS)

    def flush(self, timeout: float | None = None) -> None:
        """See ``KVWorker``; the adapter waits in the engine instead."""

    def note_numbers(self, numbers: OptimizerNumbers) -> None:
        """See ``KVWorker``; nobody compares them."""

    def tell_numbers(self) -> None:
        """See ``KVWorker``."""

    def interrupt(self, reason: str, error: KVStoreError | None = None) -> None:
        """See ``KVWorker``; the test decides what becomes of pending operations."""

    def failure(self) -> KVStoreError | None:
        """See ``KVWorker``; a fake worker fails single calls only."""
        return None

    def close(self) -> None:
        """See ``KVWorker``."""
        self.closed = True


@contextmanager
def local_groups() -> Iterator[Callable[..., LocalGroup]]:
    """Give what makes groups, with the arguments of ``LocalGroup``; they are closed in the end."""
    groups: list[LocalGroup] = []

    def make(*args: Any, **kwargs: Any) -> LocalGroup:
        groups.append(LocalGroup(*args, **kwargs))
        return groups[-1]

    yield make
    for group in groups:
        group.close()
