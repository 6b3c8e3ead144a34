"""What workers ask of a server about optimizers: to take one, new numbers for it, its states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import KVStoreError, MismatchError
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec, build, terms_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.wire.state_parts import PART_BYTES, StatePart, count_alone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvstore_mpi.interfaces import ServerOptimizer
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.server.records import Unit
    from kvstore_mpi.server.shards import ShardStore
    from kvstore_mpi.server.state import ServerState


ANY = 1 << 62
"""Stands for however often rank 0 has given a store a rule."""


class OptimizerRequests:
    """The requests about optimizers; what they change is in the server's state and store."""

    def __init__(self, state: ServerState, store: ShardStore) -> None:
        """Answer for a server's state and its store."""
        self._state = state
        self._store = store

    def answer(
        self,
        peer: NodeId,
        message: m.SetOptimizer | m.SetHyper | m.GetStates | m.PutStates,
        payloads: list[Any],
    ) -> Iterable[Send]:
        """Carry out a request."""
        match message:
            case m.SetHyper():
                return self.set_hyper(peer, message)
            case m.SetOptimizer():
                return self.give(peer, message)
            case m.GetStates():
                return self.get_states(peer, message)
            case m.PutStates():
                return self.put_states(peer, message, payloads)

    def give(self, peer: NodeId, message: m.SetOptimizer) -> Sequence[Send]:
        """Rank 0 gives a store an optimizer; it is told whether the store can have it."""
        try:
            # Built before anything is changed: what cannot be built leaves the store as it was.
            spec = OptimizerSpec.from_dict(message.spec)
            optimizer = build(spec)
            # Only the first call of a process may find one: it is from the snapshot, or was given by its
            # earlier incarnation. Later calls replace.
            if message.first and self._state.keys.spec_of(message.store) is not None:
                return self._keep(peer, message, spec)
            self._state.keys.check_optimizer(message.store, terms_of(spec))
        except KVStoreError as error:
            # With the number of the request, so that this call fails and not all that the worker has under
            # way.
            refused = Send(peer, m.Failure(type(error).__name__, str(error), request=message.request))
            return [refused, *self._state.refuse_optimizer(message.store, message.given)]
        # Without a number it is repeated to a server that was started again, which does not know how often
        # rank 0 has given one.
        given = message.given if message.request else ANY
        ready = self._take(message.store, spec, optimizer, message.spec, given)
        return [Send(peer, m.Ok(message.request)), *ready]

    def _take(
        self, number: int, spec: OptimizerSpec, optimizer: ServerOptimizer, told: dict[str, Any], given: int
    ) -> Sequence[Send]:
        terms = terms_of(spec)
        # Before the peers that wait are told: their pushes may be the next message.
        self._store.set_optimizer(number, spec, optimizer, terms)
        return self._state.set_optimizer(number, told, spec.hyper, terms, given)

    def _keep(self, peer: NodeId, message: m.SetOptimizer, spec: OptimizerSpec) -> Sequence[Send]:
        """A rank 0 that was restarted, or resumes a job, takes up what is there; its numbers count."""
        known = dict(self._store.specs()).get(message.store, spec)
        # Numbers may differ, what the states mean may not: those of another rule would be taken for its
        # own.
        if (known.name, known.params) != (spec.name, spec.params):
            raise MismatchError(
                f"the servers go on with the optimizer {known.name} {known.params} and its states, but are "
                f"given {spec.name} {spec.params}; a job is resumed with the same optimizer"
            )
        # One without a number comes from a worker that repeats what rank 0 once said, and its numbers may
        # be old.
        if message.request:
            self._state.keys.set_hyper(message.store, spec.hyper)
        return [Send(peer, m.Ok(message.request))]

    def restore(self, number: int, description: dict[str, Any]) -> None:
        """Give a store the optimizer of a snapshot."""
        spec = OptimizerSpec.from_dict(description)
        self._take(number, spec, build(spec), description, ANY)

    def set_hyper(self, peer: NodeId, message: m.SetHyper) -> Sequence[Send]:
        """Take new numbers, for the pushes that come after this."""
        # Pushes that came before are out of the queue, and have noted the old numbers: the shell sees to
        # that before it hands this over.
        self._state.keys.set_hyper(message.store, HyperParameters.from_dict(message.hyper))
        # Where other ranks of the client push, too: their pushes reach servers by other ways, and could be
        # updated with the old numbers.
        return [Send(peer, m.HyperSet())] if message.confirm else ()

    def get_states(self, peer: NodeId, message: m.GetStates) -> Iterator[Send]:
        """Send the states of a store, about a megabyte in each message."""
        parts: list[StatePart] = []
        payloads: list[Any] = []
        room = PART_BYTES
        units = self._state.keys.units(message.store)
        if message.keys is not None:
            units = [unit for unit in units if unit.key.key_id in message.keys]
        states = self._store.states(units) if message.arrays else map(_count_of, units)
        for part, payload in states:
            # Before the part that would not fit; one alone is at most as large as a message may be
            # (``split_state``).
            if payload.nbytes > room:
                yield Send(peer, m.States(message.request, parts, last=False), payloads)
                parts, payloads, room = [], [], PART_BYTES
            parts.append(part)
            payloads.append(bytes(payload))  # the state goes on changing while this travels
            room -= payload.nbytes
        # Also without parts: the worker waits for the last message of every server.
        yield Send(peer, m.States(message.request, parts, last=True), payloads)

    def put_states(self, peer: NodeId, message: m.PutStates, payloads: list[Any]) -> Sequence[Send]:
        """Load a part of a store's states."""
        for part, payload in zip(message.parts, payloads):
            unit = self._state.keys.unit(part.key_id, part.lo)
            # A server that was started again may not have the key yet.
            if unit is not None:
                self._store.put_state(unit, part, payload)
        # One answer for all: messages of a session come in order, so with the last one all are in.
        return [Send(peer, m.Ok(message.request))] if message.last else ()


def _count_of(unit: Unit) -> tuple[StatePart, memoryview]:
    """Return how often a unit was updated, as a part of its state."""
    return count_alone((unit.key.key_id, unit.slices[0].lo, unit.slices[-1].hi, unit.updates))
