"""What the rest of a job tells a worker besides values: answers, deaths, returns and departures.

Pure. This file must not know how an operation goes on; that is ``state.py``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import KVStoreError, PeerLostError, ToldToEndError, error_from_wire
from kvstore_mpi.records import NodeId, Role, Topology
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.instructions import Instructions
from kvstore_mpi.worker.key_creation import shard_on
from kvstore_mpi.worker.outages import Outages
from kvstore_mpi.worker.step_norms import StepNorms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.records import Key, KeySpec
    from kvstore_mpi.worker.records import KeyState
    from kvstore_mpi.worker.state import WorkerState


class Membership:
    """One worker's view of the job's processes; shares the worker's state with the I/O thread alone."""

    def __init__(self, state: WorkerState, topology: Topology, rank: int, coordinator: NodeId) -> None:
        """Start while all are there.

        Args:
            state: The worker's operations, which go on or end with what is learnt here.
            topology: The shape of the job.
            rank: Global rank of this worker.
            coordinator: Who is told that this worker leaves or is interrupted.
        """
        self._state = state
        self._topology = topology
        self._rank = rank
        self._client = topology.client_of(rank)
        self._coordinator = coordinator
        self._outages = Outages(state.servers)
        self._norms = StepNorms(state.keys)

    # --- blocking requests ---

    def arrive(self, number: int, *, settled: bool, closes: int = -1) -> Instructions:
        """Come to a barrier; say how often this worker has pushed if no push follows before that opens.

        ``closes``: the store that is closed there, if it is for that.
        """
        self._state.balance.arrive(number)
        # Of no pushes, too: the first push of all would wait for who waits here without any.
        # Otherwise the pushes that others have made may be those that this worker is about to make.
        of_all, of_client = self._state.balance.pushes if settled else (-1, -1)
        arrive = m.BarrierArrive(number, (of_all, of_client), closes)
        return self.request(-number, [Send(self._coordinator, arrive)])

    def barrier_awaits(self, message: m.BarrierAwaits) -> Instructions:
        """Somebody waits at a barrier for this worker."""
        error = self._state.balance.awaited(message)
        return self._state.fail(error) if error is not None else []

    def request(self, number: int, parts: Sequence[Send] = ()) -> Instructions:
        """Begin a blocking request."""
        self._state.requests.note(number, list(parts))
        return [*self._state.servers.present(parts)]

    def barrier_released(self, message: m.BarrierRelease) -> Instructions:
        """All workers have come to a barrier; barriers have the negative numbers among requests."""
        return [*self._state.requests.resolve(-message.number)]

    def answered(self, message: m.Ok) -> Instructions:
        """A request was carried out."""
        return [*self._state.requests.resolve(message.request, message.result)]

    def release(self, store: int, key: Key) -> Instructions:
        """No worker uses a table any more: forget it, and have the servers do so."""
        known = self._state.keys.remove(store, key)
        # One is enough: that all workers have left the table, rank 0 has seen for everybody. To a server
        # that is down there is no session, and who sends to it all the same fails.
        tells = self._rank == 0 and self._state.error is None
        drops = [Send(server, m.Drop(known.key_id)) for server in sorted(known.servers) if tells]
        return [*self._state.servers.present(drops)]

    def close_store(self, store: int) -> list[KeyState]:
        """All workers have come to close a store: forget it; return the keys that it had."""
        gone = self._state.keys.close(store)
        # What may be under way grew with these keys; a window for all models there have been would have the
        # urgent slices of the next one wait behind megabytes.
        for key in gone:
            for server in key.servers if key.on_servers else ():
                self._state.servers.expect(key, shard_on(key, server), times=-1)
        self._outages.forget(store)
        self._norms.forget(store)
        return gone

    def step_norm(self, server: NodeId, message: m.StepNorm) -> Instructions:
        """A server has summed its part of a step."""
        return [*self._norms.add(server, message)]

    def states(self, message: m.States, payloads: list[Any]) -> Instructions:
        """Optimizer states have come."""
        # Keys have their numbers on the wire, and their names in the answer that the user saves: the next
        # job may number them otherwise.
        return [*self._state.requests.states(message, payloads, self._state.keys.spec_of)]

    # --- optimizers, as servers that are back have to be told them ---

    def note_optimizer(self, store: int, spec: dict[str, Any]) -> None:
        """The user gives a store this update rule; rank 0 tells the servers."""
        self._outages.note_optimizer(store, spec)

    def set_hyper(self, store: int, hyper: dict[str, Any]) -> Instructions:
        """Tell the servers new hyper-parameters, before anything that this client pushes from now on."""
        if self._state.error is not None:
            return []
        message = m.SetHyper(store, hyper, self._state.servers.confirms_hypers)
        # A server that comes back has the hyper-parameters of its snapshot, and would go on with an old
        # learning rate if it were not told these again.
        self._outages.note_hyper(message)
        return [*self._state.servers.set_hyper(message)]

    # --- servers that go down and come back ---

    def _go_without(self, server: NodeId, message: m.PeerGone, now: float) -> Instructions:
        """An asynchronous store's server has died and will be back: what is under way to it is void."""
        state = self._state
        out = self._outages.lose(server, message.reason, state.keys.on(server))
        # A copy of the operations: ``miss`` may end one of them, and begin the next on its key.
        for key, operation in list(state.under_way.items()):
            if operation.kind in (Kind.PUSH, Kind.PUSHPULL) and key.on_servers:
                # For slices that are not reduced yet: they are not pushed later either, even if the server
                # is back by then, so that all slices of one push are treated alike.
                operation.missed.update(key.servers & {server})
                lost = [p for p in key.positions_on({server}) if p in operation.awaited]
                out += state.miss(key, operation, lost, now)
        return out

    def server_back(self, server: NodeId) -> Instructions:
        """A server has connected; if it was down, tell it what it may have lost, and ask again."""
        # The first connection of a job is made the same way, and has nothing to repeat.
        if not self._outages.is_down(server):
            return []
        state = self._state
        told = self._outages.welcome(
            server,
            state.keys.on(server),
            state.under_way,
            self._state.requests.again(server),
            creates=self._rank == 0,
        )
        # See ``close``: who waits at it for an optimizer, and keeps this rank from leaving, would wait on.
        return [*told, *(state.shutdown.tell(server) if self._rank == 0 else ())]

    def missing(self, sender: NodeId, message: m.Missing) -> Instructions:
        """A server has lost keys: give it the values that this client has; the first client's count."""
        state = self._state
        out: Instructions = []
        for key_id in message.keys:
            key = state.keys.by_id.get(key_id)
            if key is None:
                continue  # its store is over
            operation = state.under_way.get(key)
            # A value for the server is, in this order: what rank 0's ``init`` has just given, the
            # parameters that stay in the buffer between exchanges, or the copy kept for this (asynchronous
            # stores). The buffer of another key may hold a gradient at this moment, which as a value would
            # destroy the model.
            begins = operation is not None and operation.kind is Kind.INIT
            if begins and operation is not None and operation.awaited:
                continue  # this client has none yet
            value = key.raw if begins or key.is_exchanged else key.kept
            if value is None:
                # An error here and now: a pull of this key would wait for a value that nobody has, until
                # its deadline, which could only say that something is missing.
                return [*out, *self._state.fail(PeerLostError(self._lost(sender, key.spec)))]
            out += self._outages.seed(key, sender, value)
        return out

    def _lost(self, sender: NodeId, spec: KeySpec) -> str:
        remedy = "" if self._state.keys.has_snapshots else "; give --snapshot-dir, where servers save it"
        return (
            f"{sender} has been started again without its value of {spec}; there is no snapshot of it yet, "
            f"and no worker has a copy{remedy}"
        )

    # --- failures and departures ---

    def failure(self, sender: NodeId, message: m.Failure) -> Instructions:
        """Another process could not carry out what it was asked, or the job cannot go on."""
        # A failed request ends one call, whose caller may go on. Anything else concerns an operation that
        # this worker can neither finish nor take back, so its communication ends.
        error = error_from_wire(message.error, f"{message.text} [reported by {sender}]")
        if message.request >= 0:
            return [*self._state.requests.refused(message.request, error)]
        return self._state.fail(error)

    def interrupt(self, reason: str, error: KVStoreError | None = None) -> Instructions:
        """This process has been told to end, or has an error: who waits for it must not go on waiting."""
        if self._state.error is not None:
            return []
        told = m.Interrupted(reason, asked=error is None)
        error = error or ToldToEndError(f"{self._state.me} {reason}")
        # Told first: callers whose operations fail may end the process at once, and the others would then
        # look for the cause in a connection that was lost.
        return [Send(self._coordinator, told), *self._state.fail(error)]

    def peer_gone(self, message: m.PeerGone, now: float) -> Instructions:
        """A process has died; go on without it where the stores allow that."""
        # Of one that has left in order a worker hears only where it waits for it: from the barrier, or from
        # a server whose round it is missing in.
        node = NodeId.parse(message.name)
        another = node.role is Role.WORKER and self._topology.client_of(node.index) != self._client
        # Of this client every rank is needed for every sum, so losing one is the end, whatever the stores
        # allow.
        if another and self._state.keys.goes_on_without(message):
            return [Log(logging.WARNING, f"{message.reason}; training goes on without it")]
        if node.role is Role.SERVER and message.returns and self._state.keys.goes_on_without(message):
            return self._go_without(node, message, now)
        kind = ToldToEndError if message.asked else PeerLostError
        return self._state.fail(kind(message.reason))

    def lost(self, node: NodeId, why: str) -> Instructions:
        """A peer that this worker talks to itself cannot be reached any more."""
        # The coordinator alone is watched (``Rendezvous.begin``): without it nobody would tell this
        # worker of any other loss, and its next barrier would never open.
        return self._state.fail(PeerLostError(f"{self._state.me}: lost {node}: {why}"))

    def peer_left(self, sender: NodeId, message: m.Leave) -> Instructions:
        """Another rank of the client has finished."""
        who = self._topology.describe_worker(sender.index)
        self._state.balance.finished(who, message.pushes)
        return [*self._state.shutdown.left(sender), *self._state.unequal()]

    def close(self) -> Instructions:
        """The user's program is over and its operations have ended: tell who may wait for more."""
        # After an error the operations have ended undone: who took this for a finish would complain of
        # unequal numbers of batches.
        if self._state.error is not None:
            return []
        # Of rank 0 the servers as well: with them who waits for an optimizer waits for rank 0's.
        others = [self._coordinator, *(self._state.servers.nodes if self._rank == 0 else ())]
        told = self._state.shutdown.close(self._state.keys.pushes_apart, others)
        return [*self._state.servers.present(told), *self._state.unequal()]

    @property
    def may_end(self) -> bool:
        """After ``close``: nobody of this client needs this worker any more."""
        return self._state.error is not None or self._state.shutdown.may_end

    def leave(self) -> Instructions:
        """Say that the servers need not wait for this client any more; once ``may_end``, and last."""
        return [*self._state.shutdown.leave(self._coordinator)]
