"""A server process: a thin shell around ``server/state.py`` and the arrays of ``shards.py``."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import InternalError, KVStoreError, MismatchError, PeerLostError
from kvstore_mpi.host_name import host_name
from kvstore_mpi.p3.priority_queue import PriorityQueue
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.p3.send_queue import BUNDLE_BYTES
from kvstore_mpi.records import SCHEDULER, NodeId, Role, Topology
from kvstore_mpi.server import records as sr
from kvstore_mpi.server.kept_copies import KeptCopies
from kvstore_mpi.server.optimizer_requests import OptimizerRequests
from kvstore_mpi.server.peer_buffers import PeerBuffers
from kvstore_mpi.server.replies import Replies
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server.snapshot_records import Layout
from kvstore_mpi.server.snapshots import Snapshots
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.server.status import Observed
from kvstore_mpi.values.coding import RAW, check_coded
from kvstore_mpi.values.layout import check_values
from kvstore_mpi.wire import events as ep
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.tracing.recorder import Recorder
    from kvstore_mpi.wire.io_loop import IoLoop

log = logging.getLogger("kvstore_mpi.server")

_AT_ANY_TIME = (m.Pull, m.ClockAnswer)
"""What need not wait for the pushes that came before it."""


class Server(Observed):
    """Shards of the parameters, and the rounds that update them."""

    def __init__(
        self,
        config: NodeConfig,
        topology: Topology,
        loop: IoLoop,
        listens_on: list[str],
        *,
        recorder: Recorder | None = None,
        job: str = "",
    ) -> None:
        """Take ownership of the loop; ``run`` meets the scheduler.

        Args:
            config: This process's configuration.
            topology: The shape of the job.
            loop: Owned from now on.
            listens_on: Where this server listens.
            recorder: Takes what happens here, if the job has a trace.
            job: Name of the job.

        Raises:
            ConfigurationError: A snapshot cannot be taken up.
        """
        self.node = NodeId(Role.SERVER, config.index)
        self.error: KVStoreError | None = None
        self._config, self._topology, self._loop = config, topology, loop
        self._listens_on, self._recorder = listens_on, recorder
        self._store = ShardStore(topology.num_clients, incarnation=config.incarnation)
        self._buffers, schedule = PeerBuffers(), Schedule(config.schedule)
        self._state = ServerState(
            topology,
            slice_elements=config.largest_slice,
            warn_after=config.warn_after,
            step_timeout=config.step_timeout,
            schedule=schedule,
            keep_retired=2 * config.snapshot_every if config.snapshot_dir else 0.0,
        )
        # Pushes wait here, and not in the sockets: what arrives while one is processed can overtake those
        # that came before it.
        self._pushes: PriorityQueue[ep.Received] = PriorityQueue(by_priority=schedule.by_priority)
        self._replies = Replies(
            topology,
            self._store,
            self._buffers,
            loop.reply,
            schedule=schedule,
            window_bytes=config.window_bytes,
            slice_elements=config.largest_slice,
            all_push=config.all_push(topology.client_size),
            recorder=recorder,
        )
        self._optimizers = OptimizerRequests(self._state, self._store)
        self._snapshots = self._open_snapshots(job) if config.snapshot_dir else None
        self._copies = KeptCopies(self.node, topology, loop)

    def _open_snapshots(self, job: str) -> Snapshots:
        """Begin to save, and take up what an earlier run has saved, if this one goes on from there."""
        layout = Layout.of(self._config.index, self._topology, self._config.largest_slice)
        snapshots = self._make_snapshots(job, layout)
        # Also of a server that goes on from nothing: it must not begin where a former job's snapshots are.
        state, store, first = self._state, self._store, not self._config.incarnation
        snapshots.restore(state, store, self._optimizers.restore, resume=self._config.resume, first=first)
        for key in self._state.keys:
            self._note_key(key)
        return snapshots

    def _make_snapshots(self, job: str, layout: Layout) -> Snapshots:
        folder, every = self._config.snapshot_dir, self._config.snapshot_every
        return Snapshots(folder, every, job=job, layout=layout, now=self._loop.now())

    def run(self, scheduler: Sequence[str]) -> None:
        """Serve until the scheduler says that the job is over.

        Args:
            scheduler: The scheduler's addresses.

        Raises:
            KVStoreError: The job could not go on.
        """
        self.meet(scheduler)
        try:
            self._loop.run(self)
        finally:
            # Also after an error: the trace of a job that has failed is the one that somebody will read.
            if self._recorder is not None:
                self._recorder.write()
        # Only after the loop, which ends when its last messages, failures among them, have arrived.
        if self.error is not None:
            raise self.error
        # Not after an error: the values may be those of a round that others never saw.
        if self._snapshots is not None:
            self._snapshots.save(self._state, self._store)

    def meet(self, scheduler: Sequence[str]) -> None:
        """Connect to the scheduler and announce this server; ``run`` does it by itself."""
        # Watched from the first moment: nobody else would tell this server that the job is over.
        self._loop.endpoint.connect(SCHEDULER, self._loop.transport.connect(scheduler), self._loop.now())
        self._loop.endpoint.monitor(SCHEDULER)
        hello = m.Join(self._listens_on, host_name(), os.getpid(), self._config.incarnation)
        self._loop.send(SCHEDULER, hello)

    # --- io_loop.Node ---

    def on_event(self, event: ep.Event, now: float) -> None:
        """See ``io_loop.Node``."""
        if isinstance(event, ep.Received):
            self._receive(event, now)
        elif isinstance(event, ep.Connected) and event.peer.role is Role.WORKER:
            # Before anything it sends is looked at: its first push may be in the same pass.
            self._begin_incarnation(event.peer, event.incarnation)
            self._copies.connected(event.peer)
        # That of a worker is the scheduler's to judge: it may be the network between these two alone, and
        # it tells all servers the same.
        elif isinstance(event, ep.Failed) and event.peer == SCHEDULER:
            self._end(event.error)
        # Of all peers only the scheduler is monitored: see ``meet``.
        elif isinstance(event, ep.Silent):
            self._end(PeerLostError(f"{self.node}: {event.peer} has been silent for {event.seconds:.0f} s"))

    def on_pass(self, now: float) -> None:
        """See ``io_loop.Node``: the most urgent pushes are processed, then what can leave is sent."""
        work = 0
        # Not all at once: what arrives meanwhile may be more urgent, and is only seen in the next pass.
        while self._pushes and work < BUNDLE_BYTES:
            work += self._process_next(now)
        # After the pushes of this pass: a round that is due takes those along.
        self._do(self._state.rounds.close_due(now))
        # After the updates of this pass: who is told of them is told once, and an urgent value that has
        # just been made goes before those that wait.
        self._replies.send_ready(now, self._loop.endpoint.bytes_in_flight)
        # Between two messages no update is half done, so that the values of a key and its counts fit.
        if self._snapshots is not None:
            self._snapshots.go_on()

    @property
    def busy(self) -> bool:
        """See ``io_loop.Node``."""
        # All workers may be waiting for these pushes: nothing of theirs would wake the loop before a tick.
        return bool(self._pushes) or (self._snapshots is not None and self._snapshots.busy)

    @property
    def deadline(self) -> float | None:
        """See ``io_loop.Node``: a round of which the quorum wait ends."""
        return self._state.rounds.next_deadline()

    def on_tick(self, now: float) -> None:
        """See ``io_loop.Node``."""
        self._do(self._state.rounds.tick(now))
        self._store.drop(self._state.keys.free_retired(now))
        if self._snapshots is not None:
            self._snapshots.save_if_due(now, self._state, self._store)
            if self._snapshots.failing and self._config.keep_values and not self._copies.wanted:
                self._copies.want()
        # Not before there is a connection: the time of sending would be that of queueing.
        if self._recorder is not None and self._loop.endpoint.is_connected(SCHEDULER):
            self._loop.send(SCHEDULER, m.ClockProbe(self._recorder.now()))

    def on_crash(self, error: BaseException) -> None:
        """See ``io_loop.Node``: ``run`` raises by itself."""

    def _begin_incarnation(self, peer: NodeId, incarnation: int) -> None:
        """A worker has connected; if its client was restarted, forget what the old one had under way."""
        news = self._state.begins(peer, incarnation)
        if news is None:
            return
        ranks = self._topology.members_of(self._topology.client_of(peer.index))
        members = {NodeId(Role.WORKER, rank) for rank in ranks}
        # What the old run has sent must not be counted as the new run's, which counts from 1 again.
        self._pushes.discard(lambda push: push.peer in members)
        for node in members:
            self._loop.endpoint.forget(node, before=incarnation)
            # The new run counts from 1 again: it would take answers to the old one for its own.
            self._replies.drop(node)
        # All ranks', though one has connected: the others of the client have new ones as well.
        self._buffers.forget(members)
        self._do(news)

    # --- messages ---

    def _receive(self, event: ep.Received, now: float) -> None:
        message = event.message
        if type(message) is m.Push:
            # What it costs to process, for ``on_pass``; a key that is not known here costs nothing.
            known, entries = self._store.layouts, message.entries
            num_bytes = sum(known[key].num_bytes(lo, hi) for key, lo, hi, *_ in entries if key in known)
            self._pushes.put(message.priority, num_bytes, event)
            if self._recorder is not None:
                self._recorder.mark("received", event.peer, entries)
            return
        # Pushes wait by priority. What else a worker says holds for those that come after it alone: new
        # hyper-parameters would change an update that was pushed before.
        if type(message) not in _AT_ANY_TIME:
            while self._pushes:
                self._process_next(now)
        self._handle(event, now)

    def _process_next(self, now: float) -> int:
        """Process the most urgent push; return its size."""
        # Taken out first: what it asks for may end in an error, and must not be tried again.
        num_bytes, event = self._pushes.peek()
        self._pushes.pop()
        self._handle(event, now)
        return num_bytes

    def _handle(self, event: ep.Received, now: float) -> None:
        """Do what a message asks for; what cannot be done is the error of the peer whose message it was."""
        try:
            self._do(self._decide(event.peer, event.message, event.payloads, now))
        except KVStoreError as error:
            log.error("%s: %s", self.node, error)  # noqa: TRY400  the worker shows it to its user
            self._replies.refuse([event.peer], error)

    def _decide(  # noqa: C901, PLR0911, PLR0912  one case for each message
        self, peer: NodeId, message: m.AnyMessage, payloads: list[Any], now: float
    ) -> Iterable[sr.Instruction]:
        """Return what a message comes to; the most frequent ones first."""
        state = self._state
        match message:
            case m.Push():
                return self._push(peer, message, payloads, now)
            case m.Pull():
                return state.pull(peer, message, payloads)
            case m.Create() | m.Share() if message.key_id in state.keys.retired.closed:
                pass  # of a worker that saw this server come back before it heard that the store is over
            case m.Create():
                check_values(message.spec, message.runs, payloads)
                self._take_up([message])
                return state.create(peer, message, payloads)
            case m.Share():
                return [Send(peer, m.Shared(message.key_id))] if self._buffers.open(peer, message) else ()
            case m.ClockAnswer():
                if self._recorder is not None:
                    self._recorder.clock.add(message.sent_ns, message.peer_ns, self._recorder.now())
            case m.AwaitOptimizer():
                return state.await_optimizer(peer, message)
            case m.Resume():
                self._take_up([key for key, _ in message.keys])
                return state.resume(peer, message)
            case m.Finished():
                return state.finished(peer)
            case m.PeerGone():
                return self._peer_gone(message, now)
            case m.Stop():
                self._loop.stop()
            case m.Failure():
                self._end(PeerLostError(f"{self.node}: {message.text}"))
            case m.SetHyper() | m.SetOptimizer() | m.GetStates() | m.PutStates():
                return self._optimizers.answer(peer, message, payloads)
            case m.StepNorm():
                return state.rounds.release(state.rounds.held.take(message.store, message.value), now)
            case m.Drop():
                self._store.drop(state.keys.retire(message.key_id, now))
            case m.StoresClosed(stores, keys):
                for record in state.close(stores, frozenset(keys)):
                    self._replies.expect_key(record, times=-1)
                self._store.drop(keys, stores)
                self._buffers.close(frozenset(keys))
            case m.Peers():
                pass  # a server calls nobody: the others come to it
            case _:
                raise InternalError(f"{self.node}: {type(message).__name__} of {peer} is not for servers")
        return ()

    def _push(self, peer: NodeId, message: m.Push, payloads: list[Any], now: float) -> list[sr.Instruction]:
        if message.shared:
            payloads = [self._view(peer, key_id, lo, hi) for key_id, lo, hi, _, _ in message.entries]
        # All of the message before any of it counts: the worker could not tell which slices were taken.
        self._check(message, payloads)
        return self._state.rounds.push(peer, message, payloads, now)

    def _check(self, push: m.Push, payloads: list[Any]) -> None:
        """Raise where payloads are not those of a push, before anything counts: the update is too late."""
        if len(payloads) != len(push.entries):
            raise MismatchError(f"a push of {len(push.entries)} runs came with {len(payloads)} payloads")
        if push.coding != RAW:
            # Not when the round is closed: then another client's message is handled, which would be told.
            check_coded(push.coding, payloads, [hi - lo for _, lo, hi, _, _ in push.entries])
            return
        for (key_id, lo, hi, _, _), payload in zip(push.entries, payloads):
            if key_id in self._store.layouts:  # else this server was started again, and it is lost
                self._store.layouts[key_id].check(payload, lo, hi)

    def _view(self, peer: NodeId, key_id: int, lo: int, hi: int) -> Any:
        buffer = self._buffers.views.get((peer, key_id))
        if buffer is None:
            raise MismatchError(f"{peer} pushes key {key_id} from a buffer that it has not shared")
        layout = self._store.layouts.get(key_id)
        return buffer if layout is None else layout.part(buffer, 0, lo, hi)

    def _peer_gone(self, message: m.PeerGone, now: float) -> Iterable[sr.Instruction]:
        if NodeId.parse(message.name).role is not Role.SERVER:
            return self._state.gone(message, now)
        # It is lost with its shard; one that comes back has a snapshot, or is given the workers' copies.
        if not message.returns:
            self._end(PeerLostError(message.reason))
        return ()

    def _end(self, error: KVStoreError) -> None:
        self.error = error
        self._loop.stop()

    # --- instructions ---

    def _do(self, instructions: Iterable[sr.Instruction]) -> None:
        # In their order: an answer takes what the update before it has coded.
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: sr.Instruction) -> None:
        # The most frequent first: cases are tried one after the other, for every slice.
        match instruction:
            case sr.Update():
                self._update(instruction)
            case sr.Answer():
                self._replies.put(instruction)
            case Send(peer, m.Applied(entries)):
                self._replies.note_applied(peer, entries)
            case Send():
                self._loop.reply(instruction)
            case sr.Hold():
                self._do(self._state.rounds.held.put(instruction.unit, *self._store.hold(instruction.unit)))
            case sr.Remember():
                self._store.remember(instruction)
            case sr.Fill():
                self._store.fill(instruction)
            case sr.Allocate():
                self._store.allocate(*instruction)
                self._note_key(self._state.keys.by_id[instruction.message.key_id])
            case Log():
                log.log(instruction.level, "%s: %s", self.node, instruction.text)

    def _take_up(self, keys: Sequence[m.Create]) -> None:
        for taken in self._snapshots.take_up(keys, self._state, self._store) if self._snapshots else ():
            self._note_key(taken)

    def _note_key(self, key: sr.KeyRecord) -> None:
        """A key has its arrays, new or of a snapshot."""
        self._replies.expect_key(key)
        if self._recorder is not None:
            self._recorder.name_key(key.key_id, key.spec.store, key.key)

    def _update(self, update: sr.Update) -> None:
        key_id, views = update.unit.key.key_id, self._buffers.views
        into = [views[peer, key_id] for peer in update.takers if (peer, key_id) in views]
        # Timed around the arithmetic alone; the answers have marks of their own.
        since = self._recorder.now() if self._recorder is not None else 0
        try:
            self._store.update(update, into)
        except KVStoreError as error:
            self._do(self._state.failed.log(update, error))
            self._replies.refuse_clients(update.clients, error)
        if self._recorder is not None:
            entries = [(*slice_, update.number) for slice_ in update.unit.slices]
            self._recorder.mark("updated", None, entries, since)
