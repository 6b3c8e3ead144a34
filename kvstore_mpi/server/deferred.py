"""What is asked of a server before rank 0 has given it: the value of a key, or the optimizer of a store.

Pure. Such requests wait here, and fail when rank 0 is gone for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.errors import MismatchError, PeerLostError
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from kvstore_mpi.server.records import Entry


class DeferredPull(NamedTuple):
    """A pull of a key that has no value yet; ``request`` says which rows of a table are wanted."""

    peer: NodeId
    entry: Entry
    priority: int
    request: Any = None


class DeferredRequests:
    """Who waits for something that only rank 0 gives."""

    def __init__(self) -> None:
        """Start with rank 0 there and nobody waiting."""
        self._pulls: dict[int, list[DeferredPull]] = {}  # by key
        self._optimizers: list[tuple[NodeId, m.AwaitOptimizer]] = []
        # Why rank 0 gives none any more. Kept: who asks afterwards has to fail, too, and it is said once.
        self._no_values: m.PeerGone | None = None
        self._no_optimizers: m.PeerGone | None = None

    def hold_pull(self, peer: NodeId, entry: Entry, priority: int, request: Any = None) -> None:
        """A peer is to get a value that is not here yet."""
        # Not merged with others of this peer: each is of an operation of its own, and is answered by its
        # own entry.
        self._pulls.setdefault(entry[0], []).append(DeferredPull(peer, entry, priority, request))

    def take_pulls(self, key_id: int) -> list[DeferredPull]:
        """A key has its value: return who waits for it."""
        # Taken out: what is answered here must not fail later, when rank 0 goes.
        return self._pulls.pop(key_id, [])

    def hold_optimizer(self, peer: NodeId, message: m.AwaitOptimizer) -> None:
        """A peer is to be told when a store has its optimizer."""
        self._optimizers.append((peer, message))

    def optimizer_given(self, store: int, spec: Any, given: int) -> list[Send]:
        """A store has its ``given``-th optimizer: tell who waits for it, or for one before."""
        # Of this store only: each store of a worker waits for its own optimizer.
        ready = [
            (peer, wait) for peer, wait in self._optimizers if wait.store == store and wait.given <= given
        ]
        # Each is told once; the number of its request is used only once, too.
        self._optimizers = [waiting for waiting in self._optimizers if waiting not in ready]
        return [Send(peer, m.Ok(wait.request, spec)) for peer, wait in ready]

    def forget(self, members: set[NodeId]) -> None:
        """These ranks were restarted: what they asked before is void; rank 0 gives everything again."""
        if NodeId(Role.WORKER, 0) in members:
            # It is back: what it gives is waited for again.
            self._no_values = self._no_optimizers = None
        # An answer would go to the new process, which counts from 1 as the old one did, and may take it for
        # another.
        for key_id, pulls in list(self._pulls.items()):
            self._pulls[key_id] = [pull for pull in pulls if pull.peer not in members]
        self._optimizers = [each for each in self._optimizers if each[0] not in members]

    def rank_0_has_finished(self, message: m.PeerGone) -> None:
        """Rank 0's program is over; ``give_up`` says so to the peers that wait for it."""
        # Values it still has, while it stays for its client: this server may have lost them in a restart.
        self._no_optimizers = message

    def rank_0_is_gone(self, message: m.PeerGone) -> None:
        """Rank 0 will give nothing any more; ``give_up`` says so to the peers that wait."""
        self._no_values = self._no_optimizers = message

    def give_up(self) -> list[Send]:
        """Fail what waits for what rank 0 gives no more."""
        lost: list[Send] = []
        # Each fails once: this is called again for every pull that comes after it.
        if self._no_values is not None:
            # One failure for each peer, however many of its pulls wait: the first one ends all of its
            # operations.
            pulling = dict.fromkeys(pull.peer for pulls in self._pulls.values() for pull in pulls)
            error = _failure(self._no_values, "the initial value of a key")
            lost += (Send(peer, error) for peer in pulling)
            self._pulls.clear()
        if self._no_optimizers is not None:
            # With the number of its request: without one the failure would be of all that the peer does.
            for peer, wait in self._optimizers:
                lost.append(Send(peer, _failure(self._no_optimizers, "an optimizer", wait.request)))
            self._optimizers.clear()
        return lost


def _failure(gone: m.PeerGone, what: str, request: int = -1) -> m.Failure:
    error = MismatchError if gone.orderly else PeerLostError
    text = f"{gone.reason} without having given {what} to the servers"
    return m.Failure(error.__name__, text, request=request)
