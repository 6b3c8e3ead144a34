"""Steps whose gradients wait for their common norm, in stores that clip by it.

Each server sums what is pushed to it, and tells rank 0 the sum of squares of its part of a step. Rank 0
makes one factor of all parts, with which the servers update. So a number travels each way, and no gradient
(Parallax on operations between aggregation and update). Pure: sums are opaque.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kvstore_mpi.records import NodeId, Role, parameter_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.records import Key, StoreTerms
    from kvstore_mpi.server.records import KeyRecord, StoreRecord, Unit

RANK_0 = NodeId(Role.WORKER, 0)


class HeldSteps:
    """The steps under way on one server."""

    def __init__(self, keys: dict[int, KeyRecord]) -> None:
        """Start without; ``keys`` are those of the server, by number."""
        self._keys = keys
        self._steps: dict[int, dict[Unit, float]] = {}  # store -> the sums of squares of what is held
        self._told: dict[int, int] = {}  # store -> of how many keys rank 0 knows the sum of this step
        # Store -> of how many keys and units a step is, and with which keys and on which terms that is so.
        self._sizes: dict[int, tuple[int, int, StoreTerms, int, int]] = {}
        self._elsewhere: dict[tuple[int, Key], int] = {}  # parameter -> key without a part here

    def note_elsewhere(self, message: m.Create) -> list[Send]:
        """A key is there, of which this server has nothing: what it had of the same parameter has gone."""
        self._elsewhere[message.spec.store, parameter_of(message.spec.key)] = message.key_id
        # Counted anew: with the units of the former key, which nobody pushes any more, no step would be
        # whole.
        self._sizes.clear()
        # All others may be held already, and no push would come by which that is found.
        held = self._steps.get(message.spec.store)
        return self._tell(next(iter(held)).key.store) if held else []

    def close(self, stores: Iterable[int]) -> None:
        """Some stores are over."""
        for store in stores:
            for known in (self._steps, self._told, self._sizes):
                known.pop(store, None)
        self._elsewhere = {name: key for name, key in self._elsewhere.items() if name[0] not in stores}

    @staticmethod
    def awaits(unit: Unit) -> bool:
        """Tell whether a unit counts in the norms of steps; else it is updated as it is pushed."""
        # Held, it would have the factor of a step without it, or with other servers wait for ever.
        return parameter_of(unit.key.key) not in unit.key.store.terms.unpushed

    def put(self, unit: Unit, summed: Any, squares: float) -> list[Send]:
        """Hold a unit whose sum is made; if it was the last of its step here, tell rank 0.

        Args:
            unit: All pushers have pushed it.
            summed: The sum, which stays with it.
            squares: The sum of the squares of that.
        """
        # What was pushed is not looked at again: its memory, which is the transport's, is free.
        for contribution in unit.contributions.values():
            contribution.payloads = dict.fromkeys(contribution.payloads)
        unit.summed = summed
        store = unit.key.store
        step = self._steps.setdefault(store.number, {})
        # Of the gradient as the rule takes it. Rank 0's numbers, which all follow.
        rescale_grad = unit.contributions[min(unit.contributions)].hyper.rescale_grad
        step[unit] = squares * rescale_grad * rescale_grad
        return self._tell(store)

    def _tell(self, store: StoreRecord) -> list[Send]:
        """Tell rank 0 the sum of a step that is whole here; again only if it was before a key had come.

        The same once more might come when rank 0 has answered, and be taken for the next step's.
        """
        step, (keys, units) = self._steps[store.number], self._size(store)
        if len(step) < units or self._told.get(store.number) == keys:
            return []
        self._told[store.number] = keys
        # Exact, so that it does not depend on the order in which pushes have come.
        return [Send(RANK_0, m.StepNorm(store.number, math.fsum(step.values()), keys))]

    def take(self, store: int, factor: float) -> list[Unit]:
        """Return the units of a step, the most urgent first, of which the gradients are to be scaled."""
        self._told.pop(store, None)
        units = [*self._steps.pop(store, ())]
        scaled: dict[int, Any] = {}  # all units have the same numbers, mostly
        for unit in units:
            first = unit.contributions[min(unit.contributions)]
            if factor != 1.0:
                # With the rescaling that each rule makes anyway: no further pass over the gradient.
                known, rescale_grad = first.hyper, first.hyper.rescale_grad * factor
                first.hyper = scaled.setdefault(id(known), replace(known, rescale_grad=rescale_grad))
        return sorted(units, key=_urgency, reverse=True)

    def awaited(self, unit: Unit) -> Unit:
        """Return which unit lacks pushes: this one or, if it is held, another one of its step."""
        step = self._steps.get(unit.key.store.number, {})
        if unit not in step:
            return unit
        # One of those that are missing is enough: who reads it looks for one worker, and not for a list.
        return next((other for other in self._units(unit.key.store) if other not in step), unit)

    def is_complete(self, unit: Unit) -> bool:
        """Tell whether a unit waits for other servers only, of which those say what is missing."""
        step = self._steps.get(unit.key.store.number, {})
        return unit in step and len(step) == self._size(unit.key.store)[1]

    def _units(self, store: StoreRecord) -> list[Unit]:
        """Return what a step of a store has on this server."""
        return [unit for record in self._pushed(store) for unit in record.distinct_units]

    def _pushed(self, store: StoreRecord) -> list[KeyRecord]:
        """Return the keys of a store that each step has, as far as they are here."""
        # The newest of a parameter: a table that was cut anew is pushed no more, and still here.
        records = {parameter_of(key.key): key for key in self._keys.values() if key.store is store}
        return [
            record
            for name, record in records.items()
            if name not in store.terms.unpushed
            # What has no elements is not sent (``adapters/mxnet/exchange/exchange.py``).
            and record.shard.hi > record.shard.lo
            and record.key_id > self._elsewhere.get((store.number, name), -1)
        ]

    def _size(self, store: StoreRecord) -> tuple[int, int]:
        """Return of how many keys and units a step is here."""
        # Counted anew when keys have come or gone: for each unit it would be the square of their number.
        state = len(self._keys), next(reversed(self._keys)), store.terms
        known = self._sizes.get(store.number)
        if known is None or known[:3] != state:
            keys = self._pushed(store)
            units = sum(len(record.distinct_units) for record in keys)
            known = self._sizes[store.number] = (*state, len(keys), units)
        return known[3:]


def _urgency(unit: Unit) -> int:
    # As pushes that are not held are served: the layers that the next pass needs first are answered first.
    return max(asker.priority for each in unit.contributions.values() for asker in each.askers.values())
