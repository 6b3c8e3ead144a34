"""What rank 0 makes of the servers' parts of a gradient's norm: the factor by which all of them scale it.

Pure. The servers' side is ``server/held_steps.py``.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from kvstore_mpi.records import NodeId, parameter_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from kvstore_mpi.worker.keys import WorkerKeys


class StepNorms:
    """The steps under way, by store; the next one of a store begins when all servers have the factor."""

    def __init__(self, keys: WorkerKeys) -> None:
        """Start without; ``keys`` are those of rank 0, with their places and their stores' terms."""
        self._keys = keys
        self._parts: dict[int, dict[NodeId, m.StepNorm]] = {}

    def add(self, server: NodeId, message: m.StepNorm) -> list[Send]:
        """A server tells the sum of squares of its part of a step; with the last one, answer them all."""
        parts = self._parts.setdefault(message.store, {})
        parts[server] = message
        # A key may have come to a server that had told its part without: it tells that again.
        awaited = self._servers(message.store)
        told = {each: part.keys for each, part in parts.items()}
        if awaited is None or any(told.get(each) != keys for each, keys in awaited.items()):
            return []
        # Before they are answered: with the factor the servers begin the next step, whose parts come under
        # the same store and must not meet those of this one.
        del self._parts[message.store]
        # Exact, as the servers' own sums: in whichever order they come, the weights get the same bits.
        norm = math.sqrt(math.fsum(parts[each].value for each in awaited))
        bound = self._keys.terms_of(message.store).clip_norm
        # What is no number stays so: as without a bound it shows in the weights, and is not hidden.
        factor = bound / norm if norm > bound else 1.0
        return [Send(each, m.StepNorm(message.store, factor)) for each in sorted(awaited)]

    def forget(self, store: int) -> None:
        """A store is over."""
        # A step whose other servers have told nothing yet: none will.
        self._parts.pop(store, None)

    def _servers(self, store: int) -> dict[NodeId, int] | None:
        """Return the servers that have something of a step, and of how many keys, if that is known."""
        without = self._keys.terms_of(store).unpushed
        # As on the servers: of a table that was cut anew the newest.
        keys = {parameter_of(key.spec.key): key for key in self._keys if key.spec.store == store}
        # Nor of keys that are never pushed, or have no elements: a server that has nothing else tells
        # nothing, and the step would wait for it for ever.
        pushed = [key for name, key in keys.items() if name not in without and 0 not in key.spec.shape]
        # A table that is being cut anew: without its new place the step would be closed without its rows.
        # The servers that will have it tell their parts when they are pushed.
        if not all(key.servers for key in pushed):
            return None
        return dict(Counter(each for key in pushed for each in key.servers))
