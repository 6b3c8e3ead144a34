"""What a worker tells about itself, from any thread: its numbers, and what it and its callers wait for."""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.errors import DeadlineError
from kvstore_mpi.host_name import host_name
from kvstore_mpi.metrics.counters import wire_counters
from kvstore_mpi.metrics.status import Wait
from kvstore_mpi.metrics.telling import Seen, process_counters
from kvstore_mpi.records import NodeId, Role, parameter_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.metrics.counters import Counters
    from kvstore_mpi.records import Key, Topology
    from kvstore_mpi.tracing.recorder import Recorder
    from kvstore_mpi.wire.endpoint import Endpoint
    from kvstore_mpi.wire.io_loop import IoLoop
    from kvstore_mpi.worker.io_thread import WorkerIo
    from kvstore_mpi.worker.mpi_thread import MpiThread
    from kvstore_mpi.worker.records import KeyState, Operation
    from kvstore_mpi.worker.state import WorkerState


class Called(NamedTuple):
    """A call of the user's that waits.

    Attributes:
        text: Returns for what, in words.
        since: When it began.
        limit: Seconds that it may take.
        whom: Who has to do something.
    """

    text: Callable[[], str]
    since: float
    limit: float
    whom: Sequence[NodeId]


class Observed:
    """What can be seen of a worker, and the waits of its callers; a part of ``worker.Worker``."""

    io: WorkerIo
    rank: int
    node: NodeId
    coordinator: NodeId
    recorder: Recorder | None
    _config: NodeConfig
    _topology: Topology
    _loop: IoLoop
    _state: WorkerState
    _mpi_thread: MpiThread
    _called: dict[object, Called]  # by what each waits for
    _lost: KVStoreError | None  # by which the I/O thread is gone: nobody would answer
    _pending: dict[int, Done]
    _settled: threading.Condition
    _ended: int
    _operation_seconds = 0.0
    _pending_seconds = 0.0
    _pending_since = 0.0

    @property
    def step_timeout(self) -> float:
        """See ``interfaces.KVWorker``."""
        return self._config.step_timeout

    def stats(self) -> Counters:
        """See ``interfaces.KVWorker``."""
        return {**self._counters(self._loop.now()), **process_counters()}

    def travelled(self, store: int, key: Key) -> float | None:
        """See ``interfaces.KVWorker``."""
        return self._state.keys.travelled(store, key)

    def failure(self) -> KVStoreError | None:
        """See ``interfaces.KVWorker``."""
        # Read without a lock: each is set once, and never taken back. An I/O thread that fails in the
        # middle of a decision may not have come to note an error in the state: then there is that of its
        # own end, without which ``close`` would wait for answers that nobody gives.
        return self._state.error or self._lost

    def look(self, now: float) -> Seen:
        """Return what there is to tell about this worker at a time."""
        names = {each: self._topology.describe_worker(each) for each in self._others}
        waits = waits_of(self._state, self._mpi_thread, names, self._config.step_timeout, now)
        # A copy, made in one step: callers of any thread begin and end calls meanwhile.
        calls = [self._wait_of(called, now) for called in list(self._called.values())]
        return Seen(self._counters(now), [*waits, *calls], str(self._state.error or ""))

    @property
    def _others(self) -> list[int]:
        """The other ranks of its client."""
        client = self._topology.client_of(self.rank)
        return [each for each in self._topology.members_of(client) if each != self.rank]

    def pending_seconds(self, now: float) -> float:
        """Return for how long operations of this worker have been under way, up to now."""
        # Not quite of one moment: an operation may end between the two.
        return self._pending_seconds + (now - self._pending_since if self._pending else 0.0)

    def _counters(self, now: float) -> Counters:
        # Left out where nothing measures it: 0 would say that no communication was hidden.
        marked = {} if self.recorder is None else {"hidden_seconds": self.recorder.hidden_seconds}
        return {
            **marked,
            **counters_of(self._state, self._loop.endpoint, self._mpi_thread),
            "operations": self._ended,
            "operation_seconds": self._operation_seconds,
            "pending_seconds": self.pending_seconds(now),
        }

    def flush(self, timeout: float | None = None) -> None:
        """See ``interfaces.KVWorker``."""
        # An operation counts as ended after its ``done``, also one that raises: all have been called then.
        with self._settled:
            if not self._settled.wait_for(lambda: not self._pending, timeout):
                count = len(self._pending)
                raise DeadlineError(
                    f"worker {self.rank}: {count} operations have not ended within {timeout:g} s"
                )

    def _abandon(self, error: KVStoreError) -> None:
        """End what nobody will carry out any more: the I/O thread is gone."""
        with self._settled:
            self._lost = error
        # What it had taken out of its queues and not ended is known here only.
        for end in list(self._pending.values()):
            end(error)
        # And who waits for the I/O thread, as to leave. It alone gives answers, and this is that thread:
        # none comes between the look and what is set here. Whoever begins to wait now sees the error that
        # is noted above.
        self.io.may_end.set()
        for awaited in list(self._called):
            if isinstance(awaited, Future) and not awaited.done():
                awaited.set_exception(error)

    def _wait_for_answer(self, future: Future[Any], what: Callable[[], str], who: NodeId | None) -> Any:
        return self._wait(future, self._config.step_timeout, what, who or self.coordinator)

    def _wait(self, future: Future[Any], timeout: float, what: Callable[[], str], whom: NodeId) -> Any:
        # For whoever asks meanwhile what this worker waits for; and in this order: either this sees the end
        # of the I/O thread, or ``_abandon`` sees this one.
        self._called[future] = Called(what, time.monotonic(), timeout, [whom])
        try:
            if self._lost is not None and not future.done():
                raise self._lost
            return future.result(timeout)
        except FutureTimeoutError:
            error = DeadlineError(f"worker {self.rank} on {host_name()} waited {timeout:g} s for {what()}")
        finally:
            del self._called[future]
        # The I/O thread decides, before the caller goes on: otherwise what the others do once they see this
        # worker give up could arrive first, and be taken for the cause.
        self._loop.post(partial(self.io.give_up, future, error))
        try:
            return future.result(self._config.peer_timeout)
        except FutureTimeoutError:  # the I/O thread does nothing any more
            raise error from None

    def _wait_to_end(self) -> None:
        """Wait until nobody of the client needs this worker, or communication has ended with an error."""
        may_end, limit = self.io.may_end, self._config.finish_timeout
        others = [NodeId(Role.WORKER, rank) for rank in self._others]
        # Said like other waits, or this worker would be blamed for what others of its client do meanwhile.
        text = "the end of its client's other programs"
        self._called[may_end] = Called(lambda: text, time.monotonic(), limit, others)
        try:
            ended = may_end.wait(limit)
        finally:
            del self._called[may_end]
        if not ended:
            error = DeadlineError(
                f"{self.node} has finished and waited {limit:g} s for the rest of its client to finish "
                "too; do all workers run the same number of batches?"
            )
            self._loop.post(partial(self.io.fail, error))

    def _wait_of(self, called: Called, now: float) -> Wait:
        # Without servers the first worker is the coordinator, and has a name as a worker.
        whom = [
            self._topology.describe_worker(node.index) if node.role is Role.WORKER else str(node)
            for node in called.whom
        ]
        return Wait("call", called.text(), now - called.since, called.limit, whom)


def counters_of(state: WorkerState, endpoint: Endpoint, mpi_thread: MpiThread) -> Counters:
    """Return a worker's numbers, but for those of its operations, which its calls count."""
    counts = state.keys.counts
    return {
        **wire_counters(endpoint.statistics(), endpoint.all_in_flight()),
        "steps": counts.steps,
        "values_sent_bytes": counts.sent,
        "values_received_bytes": counts.received,
        "queue_bytes": state.servers.waiting_bytes,
        "collectives": mpi_thread.carried_out,
        "collective_seconds": mpi_thread.seconds,
    }


def waits_of(
    state: WorkerState, mpi_thread: MpiThread, others: Mapping[int, str], limit: float, now: float
) -> list[Wait]:
    """Return what a worker's operations, and its MPI thread, wait for.

    Args:
        state: The worker's.
        mpi_thread: Of the worker.
        others: The names of the other ranks of its client, by rank.
        limit: Seconds that an operation may take.
        now: The time.
    """
    waits: list[Wait] = []
    for key, operation in list(state.under_way.items()):
        # Of a sum that is not announced the leader knows who has not come to it; a member knows of nobody,
        # and may wait for any of them.
        ranks = [member.index for member in state.late(key)] or others
        awaited = [others[rank] for rank in ranks]
        if (
            key.key_id < 0
        ):  # before a key has its place the coordinator is waited for: without servers rank 0
            coordinator = str(NodeId(Role.SCHEDULER))
            awaited = [coordinator if state.servers.nodes else others.get(0, coordinator)]
        waits.append(_wait_of(key, operation, awaited, limit, now))
    # Read once: the MPI thread may end the bucket between two looks, and nothing would be unpacked.
    current = mpi_thread.current
    if current is not None:
        since, collect = current
        what = collect.operation.name.lower().replace("_", " and ")
        summed = parameter_of(collect.key.spec.key)
        text = f"{what} {collect.sequence} of key {summed!r} with the ranks of its client"
        waits.append(
            Wait("collective", text, now - since, limit, [*others.values()], str(summed), collect.sequence)
        )
    return waits


def _wait_of(key: KeyState, operation: Operation, others: Sequence[str], limit: float, now: float) -> Wait:
    name, kind = parameter_of(key.spec.key), operation.kind.value
    # Copied in one step: the I/O thread takes positions out.
    servers = {key.slices[position][0] for position in list(operation.awaited)}
    awaited = sorted(map(str, servers)) or [*others]
    text = f"{kind} {operation.sequence or key.pulls} of key {name!r}: "
    if key.key_id < 0:
        text += "rank 0 has not initialised it, or nobody has been told where it lies"
    else:
        text += f"{operation.remaining} of {len(key.slices)} slices are missing"
    # A pull that a rank makes for itself has no number; for who compares the ranks it belongs to the step
    # whose push it follows.
    step = operation.sequence or key.pushes
    return Wait(kind, text, now - operation.since, limit, awaited, str(name), step)
