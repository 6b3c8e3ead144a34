"""Servers that are away from one worker, and what a server that comes back has to be told.

It may have lost everything, or what came after its last snapshot. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.records import KeyState, Kind, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.records import NodeId


class Absences:
    """Who is away.

    Attributes:
        away: Servers that have gone and are being started again.
    """

    def __init__(self) -> None:
        """Start with all servers there."""
        self.away: set[NodeId] = set()
        self._specs: dict[int, dict[str, Any]] = {}
        self._hypers: dict[int, m.SetHyper] = {}

    def note_optimizer(self, store: int, spec: dict[str, Any]) -> None:
        """A store has this update rule."""
        self._specs[store] = spec
        self._hypers.pop(store, None)

    def note_hyper(self, message: m.SetHyper) -> None:
        """The newest live numbers of a store."""
        self._hypers[message.store] = message

    def present(self, sends: Iterable[Send]) -> list[Send]:
        """Leave out what is for servers that are away; they are told when they are back."""
        return [send for send in sends if send.peer not in self.away]

    def greeting(self, server: NodeId, keys: Iterable[KeyState]) -> list[Send]:
        """Return what the one who pushes for a client tells a server that is back.

        The update rules, for one that has none; and how far the client has counted its pushes, so that
        nobody waits for those that were lost.
        """
        specs = [Send(server, m.SetOptimizer(0, store, spec, True)) for store, spec in self._specs.items()]
        hypers = [Send(server, message) for message in self._hypers.values()]
        counts = [(key.key_id, key.pushes) for key in keys if server in key.servers]
        return [*specs, *hypers, Send(server, m.Resume(counts))]


def ask_again(
    key: KeyState, operation: Operation, server: NodeId, positions: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """Return what is to be pulled of some slices from a server that is back, for the key's operation.

    A push that a server has missed is not repeated. What an update rule for gradients makes of the pushes
    of others is still wanted; of an exchange of parameters, what was missed is skipped.
    """
    if operation.kind is Kind.PUSH or (operation.kind is Kind.PUSHPULL and key.is_exchanged):
        return []
    wanted = [p for p in positions if p in operation.awaited and key.slices[p][0] == server]
    return [(*key.slices[position][1], key.pushes) for position in wanted]
