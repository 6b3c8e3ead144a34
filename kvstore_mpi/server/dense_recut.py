"""The elements of a key that a server is to have, out of those of servers that had cut it otherwise. Pure.

Values, masters and the states of element-wise rules go element by element. Updates are counted by unit,
which a new server may put together from parts of several: where these had unequal numbers of them, because
their snapshots are of unequal moments, the new one has the greatest.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.server.snapshot_records import VALUE
from kvstore_mpi.wire.state_parts import MASTER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.records import KeySpec
    from kvstore_mpi.server.snapshot_records import KeyRecord

Array = np.ndarray[Any, Any]
_Range = tuple[int, int]


class DenseRecut:
    """Takes what servers had of a key, one after the other, and makes the arrays of a shard."""

    def __init__(self, spec: KeySpec, shard: _Range, units: Sequence[_Range]) -> None:
        """Begin with nothing.

        Args:
            spec: Of the key.
            shard: Which elements are wanted.
            units: What of them will be updated together; the whole shard, in ascending order.
        """
        self._spec = spec
        self._shard = shard
        self._units = units
        # For a search: a large key has thousands of slices before and after.
        self._begins = [lo for lo, _ in units]
        self._counts = [0] * len(units)
        # Not zeroed: ``arrays`` refuses what the parts do not cover, so that nobody sees what was in this
        # memory before.
        self._value: Array = np.empty(shard[1] - shard[0], spec.dtype)
        self._masters: list[tuple[slice, Array]] = []
        self._states: list[dict[int, Array]] = [{} for _ in units]
        self._found: list[_Range] = []

    def wants(self, key: KeyRecord) -> bool:
        """Return whether a server had elements that are wanted, so that they have to be read."""
        return _common(self._shard, key.shard) is not None

    def add(self, key: KeyRecord, arrays: Sequence[Array]) -> None:
        """Take what a server had; the arrays of a base, in the order of the key's records."""
        common = _common(self._shard, key.shard)
        # Each file is right by itself; that all of them are of one model, nothing else tells.
        if key.spec != self._spec:
            raise self._unfit(f"some are of {key.spec.describe()}")
        if common is None:
            return
        self._found.append(common)
        # The same elements twice: where they belong here, and where they are in what was read.
        here, there = _within(common, self._shard), _within(common, key.shard)
        states: dict[int, dict[int, Array]] = {}
        for record, array in zip(key.arrays, arrays):
            if record.index == VALUE:
                self._value[here] = array[there]
            elif record.index == MASTER:
                # Never as a view, which would keep all that the other server had.
                self._masters.append((here, array[there].copy()))
            else:
                states.setdefault(record.lo, {})[record.index] = array
        # Checked, since units that overlap, or states of none of them, would be dealt out wrongly or vanish
        # without a word.
        begins = [unit.lo for unit in key.units]
        if begins[:1] != [key.shard[0]] or begins != sorted({*begins}) or not states.keys() <= {*begins}:
            raise self._unfit(f"what was updated together begins at {begins}, and states at {[*states]}")
        for unit, hi in zip(key.units, [*begins[1:], key.shard[1]]):
            self._add_unit((unit.lo, hi), unit.updates, states.get(unit.lo, {}))

    def _add_unit(self, old: _Range, updates: int, state: dict[int, Array]) -> None:
        """Deal the state of what was updated together to the new units that have elements of it."""
        # The unit in which it begins: the one before the first that begins after it.
        first = max(0, bisect_right(self._begins, old[0]) - 1)
        for number in range(first, len(self._units)):
            new = self._units[number]
            common = _common(old, new)
            # Units ascend without a gap: none after this one has elements of the part either, and if this
            # is the first one, the part is not wanted at all.
            if common is None:
                break
            # The greatest, as for tables: a rule that counted fewer steps than its averages have seen would
            # take the next one too large or too small.
            self._counts[number] = max(self._counts[number], updates)
            for index, array in state.items():
                if old == new:
                    # As it is, also one that is not made of elements: rules for whole tensors have such.
                    self._states[number][index] = array
                else:
                    self._target(number, index, array, old)[_within(common, new)] = array[
                        _within(common, old)
                    ]

    def _target(self, number: int, index: int, array: Array, old: _Range) -> Array:
        """Return an array of a new unit's state, to which a part of an old one's is to go."""
        # A number for all of a unit, as a norm would be, is that of no part of it, nor of more.
        if array.size != old[1] - old[0]:
            raise self._unfit(
                f"state {index} of elements {old[0]} to {old[1]}, which were updated together, has "
                f"{array.size} numbers and cannot be cut; give the number of servers that there were"
            )
        state, (lo, hi) = self._states[number], self._units[number]
        if index not in state:
            # Parts that had not been updated yet have no state: rules that can be cut begin with zeros.
            state[index] = np.zeros(hi - lo, array.dtype)
        target = state[index]
        if (target.size, target.dtype) != (hi - lo, array.dtype):
            raise self._unfit(f"state {index} is {target.dtype} in one part and {array.dtype} in another")
        return target

    @property
    def updates(self) -> list[tuple[int, int]]:
        """The first element of each unit, and how often it was updated."""
        return [*zip(self._begins, self._counts)]

    def _unfit(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"of key {self._spec.key!r} in the snapshots {problem}")

    def arrays(self) -> Iterator[tuple[tuple[int, int], Array]]:
        """Yield the arrays of the shard, as ``ShardStore.contents`` does.

        Raises:
            ConfigurationError: Elements are missing.
        """
        lo, hi = self._shard
        missing = []
        # Sorted by elements: the server that was dealt a key's last slice has the end of it, whatever its
        # number is.
        # With an end behind all, so that what is missing there is noticed as a gap between two parts is.
        for start, end in [*sorted(self._found), (hi, hi)]:
            if start > lo:
                missing.append(f"{lo} to {start}")
            lo = end
        if missing:
            raise self._unfit(f"elements are missing: {', '.join(missing)}")
        yield (VALUE, self._shard[0]), self._value
        if self._masters:
            # A part that had none yet begins with its value, as it would have.
            master = self._value.astype(np.float32)
            for place, part in self._masters:
                master[place] = part
            yield (MASTER, self._shard[0]), master
        for (begin, _), state in zip(self._units, self._states):
            yield from (((index, begin), array) for index, array in state.items())


def _common(one: _Range, other: _Range) -> _Range | None:
    """Return the elements that two ranges have in common, if any."""
    # Ranges of an empty key have none, and still are what one server had and another is to have.
    lo, hi = max(one[0], other[0]), min(one[1], other[1])
    return (lo, hi) if lo < hi or one == other else None


def _within(part: _Range, whole: _Range) -> slice:
    return slice(part[0] - whole[0], part[1] - whole[0])
