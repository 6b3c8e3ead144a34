"""Servers that are down for one worker, and what a server that is back has to be told.

It may have lost everything, or what came after its last snapshot. Pure. This file must not know what other
ranks of the client do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.instructions import Disconnect, Instructions, Refer
from kvstore_mpi.worker.key_creation import shard_on
from kvstore_mpi.worker.records import KeyState, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvstore_mpi.records import NodeId
    from kvstore_mpi.worker.servers import Servers


class Outages:
    """What one worker knows that a server may have lost."""

    def __init__(self, servers: Servers) -> None:
        """Start with nothing told to the servers."""
        self._servers = servers
        # As they were given, and kept as long as the worker lives: a server that has lost everything cannot
        # ask for an update rule of which it does not know.
        self._specs: dict[int, dict[str, Any]] = {}
        self._hypers: dict[int, m.SetHyper] = {}

    def note_optimizer(self, store: int, spec: dict[str, Any]) -> None:
        """A store has this update rule; the hyper-parameters that were told before are in it."""
        # Told again after the spec, older hyper-parameters would undo what the new optimizer brings.
        self._specs[store] = spec
        self._hypers.pop(store, None)

    def forget(self, store: int) -> None:
        """A store is over: a server that comes back is told nothing of it."""
        # Or it would have a store with a rule and without keys, and save that.
        self._specs.pop(store, None)
        self._hypers.pop(store, None)

    def note_hyper(self, message: m.SetHyper) -> None:
        """These are the newest hyper-parameters of a store."""
        self._hypers[message.store] = message

    def lose(self, server: NodeId, reason: str, keys: Iterable[KeyState]) -> Instructions:
        """A server has died and will be back: what is under way to it is void, and what it knew of keys."""
        text = "; what is pushed to it until it is back is lost, and training goes on"
        out: Instructions = [Log(logging.WARNING, reason + text), Disconnect(server)]
        # Also what has not left yet: those pushes are among the ones that the server is told, when it is
        # back, not to wait for. One that came after that would not be the next that it expects.
        self._servers.down.add(server)
        self._servers.drop(server)
        for key in keys:
            # The next incarnation has not mapped the buffer: a reference to it would be a push without
            # content.
            key.shared.discard(server)
            if key.base is not None:  # what it was sent last is not known to the server any more
                mine = (key.slices[position][1] for position in key.positions_on({server}))
                out += [Refer(key.base, slice_.lo, slice_.hi, None, 0) for slice_ in mine]
        return out

    def is_down(self, server: NodeId) -> bool:
        """Return whether a server is being started again."""
        return server in self._servers.down

    def welcome(
        self,
        server: NodeId,
        keys: Sequence[KeyState],
        under_way: Mapping[KeyState, Operation],
        requests: Iterable[Send],
        *,
        creates: bool,
    ) -> Instructions:
        """A server that was down is connected again: tell it what it may have lost, and ask again.

        Args:
            server: Who is back.
            keys: Those of which it has a part.
            under_way: The operations that have begun and not ended.
            requests: Blocking requests that it has not answered.
            creates: This worker gives keys their initial value.
        """
        # The order is that of a job's beginning, and the session keeps it: rules before counts, so that a
        # round that the counts complete has its rule; buffers before what is to be written there; requests
        # and pulls last, because they are answered from what the server has by then.
        self._servers.down.discard(server)
        out: Instructions = [Log(logging.INFO, f"{server} is back")]
        # From a rank that pushes: the counts are those of the client, and two ranks of it may be at
        # different ones.
        if self._servers.pushes_here:
            out += self._greeting(server, keys)
        out += (send for key in keys for send in self._servers.share(key) if send.peer == server)
        out += requests
        for key in keys:
            operation = under_way.get(key)
            if operation is None:
                continue
            if operation.kind is Kind.INIT and creates:
                out += self._create_again(key, operation, server)
            else:
                awaited = sorted(operation.awaited)
                out += self._servers.pull_again(key, operation, server, awaited)
        return out

    def _greeting(self, server: NodeId, keys: Iterable[KeyState]) -> list[Send]:
        """Return the update rules, for a server that has none, and how often this client has pushed.

        Without the counts it would wait for pushes that were lost with it.
        """
        specs = [Send(server, m.SetOptimizer(0, store, spec, True)) for store, spec in self._specs.items()]
        # After the rules: a new rule begins with the numbers of its description.
        hypers = [Send(server, message) for message in self._hypers.values()]
        counts = [
            (m.Create(key.spec, key.mode.value, key.key_id, (lo, hi), [(lo, hi)], seed=True), key.pushes)
            for key in keys
            for _, lo, hi in shard_on(key, server)
        ]
        return [*specs, *hypers, Send(server, m.Resume(counts))]

    def _create_again(self, key: KeyState, operation: Operation, server: NodeId) -> list[Send]:
        """Rank 0 gives a server its whole shard again, which it has in part or not at all."""
        if not operation.awaited:
            return []  # it has the value already, and gives it to the rest of its client
        # What it had confirmed is lost with it, and is waited for once more; without adding it to
        # ``remaining`` the second confirmation would count for slices of other servers, and ``init`` would
        # end too early.
        mine = key.positions_on({server})
        operation.remaining += len(set(mine) - operation.awaited)
        operation.awaited.update(mine)
        return self._servers.create(key, shard_on(key, server))

    def seed(self, key: KeyState, server: NodeId, value: Any) -> list[Send]:
        """Give a server that has lost a key a value; a copy, because the buffer goes on changing."""
        return self._servers.create(key, shard_on(key, server), memoryview(bytes(value)))
