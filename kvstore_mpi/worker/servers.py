"""The servers as one worker sees them: what it asks of them, who is away, and what it tells who comes back.

Pure. This file must not know when an operation starts or ends, or what other ranks of the client do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kvstore_mpi.records import NodeId, Role, Shard
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send
from kvstore_mpi.wire.runs import merge, neighbours
from kvstore_mpi.worker.key_creation import create, shard_on
from kvstore_mpi.worker.outages import Absences, ask_again
from kvstore_mpi.worker.records import Disconnect, Instructions, KeyState, Operation, Refer

if TYPE_CHECKING:
    from kvstore_mpi.worker.push_queue import PushQueue

Place = Callable[[Any], "tuple[str, str, bytes, int, int, int] | None"]
"""Tells where a buffer lies, if servers of this host can map it."""


class Servers:
    """All servers of a job, for one worker."""

    def __init__(
        self,
        num_servers: int,
        pushes: PushQueue,
        place: Place,
        *,
        num_pushers: int,
        mpi_rank: int,
        slice_elements: int,
    ) -> None:
        """Start with all servers there.

        Args:
            num_servers: How many there are.
            pushes: Where slices wait to be pushed.
            place: Where a buffer lies, if servers of this host can map it.
            num_pushers: How many ranks of a client push slices.
            mpi_rank: Rank of this worker in its client.
            slice_elements: Largest number of elements in a slice.
        """
        self._nodes = [NodeId(Role.SERVER, index) for index in range(num_servers)]
        self._queue = pushes
        self._place = place
        self._num_pushers = num_pushers
        self._speaks = mpi_rank < num_pushers  # this rank pushes slices
        self._slice_elements = slice_elements
        self._absences = Absences()
        self._unconfirmed = 0  # servers that may not know the newest numbers of an optimizer

    def present(self, sends: Iterable[Send]) -> list[Send]:
        """Leave out what is for servers that are away; they are told when they are back."""
        return self._absences.present(sends)

    # --- keys ---

    def expect(self, key: KeyState, shards: Iterable[Shard]) -> None:
        """Note that servers have so much more of the keys."""
        for server, lo, hi in shards:
            num_bytes = (hi - lo) * key.itemsize // self._num_pushers
            self._queue.expect(NodeId(Role.SERVER, server), num_bytes)

    def create(self, key: KeyState, shards: Iterable[Shard]) -> list[Send]:
        """Rank 0 gives a key its value."""
        return create(key, shards, self._slice_elements)

    def create_again(self, key: KeyState, operation: Operation, server: NodeId) -> list[Send]:
        """Rank 0 gives a server its whole shard again, which it has in part or not at all."""
        if not operation.awaited:
            return []  # it has the value already, and gives it to the rest of its client
        mine = key.positions_on({server})
        operation.remaining += len(set(mine) - operation.awaited)
        operation.awaited.update(mine)
        return create(key, shard_on(key, server), self._slice_elements)

    def seed(self, key: KeyState, server: NodeId, value: Any) -> list[Send]:
        """Give a server that has lost a key a value; a copy, for the buffer goes on changing."""
        return create(key, shard_on(key, server), self._slice_elements, memoryview(bytes(value)))

    def share(self, key: KeyState) -> list[Send]:
        """Who pushes tells the servers where its buffer is; those that cannot reach it do not answer."""
        place = self._place(key.buffer) if self._speaks else None
        if place is None:
            return []
        return [Send(server, m.Share(key.key_id, place)) for server in sorted(key.servers)]

    # --- push, pull ---

    def missed_by(self, key: KeyState) -> set[NodeId]:
        """Return the servers that a push of a key passes by, because they are away."""
        return self._absences.away & key.servers if key.on_servers else set()

    def push(self, key: KeyState, operation: Operation, positions: range) -> tuple[list[Send], list[int]]:
        """Queue slices of a key.

        Returns:
            Pulls that take the place of pushes to servers that are back, and the positions of the slices
            that are not pushed because their servers were away when the operation began.
        """
        operation.awaited.update(positions)
        if not operation.missed:
            self._queue.put(key, operation, positions)
            return [], []
        missed = [p for p in positions if key.slices[p][0] in operation.missed]
        for run in neighbours(p for p in positions if key.slices[p][0] not in operation.missed):
            self._queue.put(key, operation, run)
        back = operation.missed - self._absences.away
        return [pull for server in back for pull in self.pull_again(key, operation, server, missed)], missed

    def pull(self, key: KeyState, operation: Operation) -> list[Send]:
        """Ask for all slices of a key, after what was pushed before."""
        operation.awaited.update(range(len(key.slices)))
        pulls = [
            Send(server, m.Pull(merge((*piece, key.pushes) for piece in pieces), operation.priority))
            for server, pieces in key.by_server().items()
        ]
        return self.present(pulls)

    def pull_again(
        self, key: KeyState, operation: Operation, server: NodeId, positions: Sequence[int]
    ) -> list[Send]:
        """Ask a server that is back for what an operation still wants of some slices."""
        entries = ask_again(key, operation, server, positions)
        return [Send(server, m.Pull(merge(entries), operation.priority))] if entries else []

    def messages(self, now: float, in_flight: Callable[[NodeId], int]) -> list[Send]:
        """Take the pushes that may leave now; see ``PushQueue.messages``."""
        return self._queue.messages(now, in_flight)

    def sizes(self, itemsize: int) -> str:
        """Say which sizes of messages and windows have come about, for people."""
        return self._queue.sizes(itemsize)

    # --- optimizers ---

    def note_optimizer(self, store: int, spec: dict[str, Any]) -> None:
        """The user gives a store this update rule; rank 0 tells the servers."""
        self._absences.note_optimizer(store, spec)

    def set_hyper(self, store: int, hyper: dict[str, Any]) -> list[Send]:
        """Tell new numbers; where other ranks push as well, the servers confirm them."""
        confirm = self._num_pushers > 1
        self._unconfirmed += len(self._nodes) if confirm else 0
        message = m.SetHyper(store, hyper, confirm)
        self._absences.note_hyper(message)
        return self.present(Send(server, message) for server in self._nodes)

    def hyper_confirmed(self) -> None:
        """A server knows the new numbers."""
        self._unconfirmed -= 1

    @property
    def know_hypers(self) -> bool:
        """All servers know the newest numbers, so that any rank may push."""
        return not self._unconfirmed

    # --- servers that go and come back ---

    def lose(self, server: NodeId, reason: str, keys: Iterable[KeyState]) -> Instructions:
        """A server has died and will be back: what is under way to it is void, and what it knew of keys."""
        text = "; what is pushed to it until it is back is lost, and training goes on"
        out: Instructions = [Log(logging.WARNING, reason + text), Disconnect(server)]
        self._absences.away.add(server)
        self._queue.drop(server)
        for key in keys:
            key.shared.discard(server)
            if key.reference is not None:  # what it was sent last is not known to the server any more
                mine = (key.slices[position][1] for position in key.positions_on({server}))
                out += [Refer(key, piece.lo, piece.hi, None, 0) for piece in mine]
        return out

    def is_away(self, server: NodeId) -> bool:
        """Return whether a server is being started again."""
        return server in self._absences.away

    def welcome(self, server: NodeId, keys: Sequence[KeyState]) -> Instructions:
        """A server that was away is connected again: tell it what it may have lost."""
        self._absences.away.discard(server)
        out: Instructions = [Log(logging.INFO, f"{server} is back")]
        if self._speaks:
            out += self._absences.greeting(server, keys)
        return [*out, *(send for key in keys for send in self.share(key) if send.peer == server)]
