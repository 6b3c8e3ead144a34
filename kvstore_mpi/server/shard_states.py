"""Optimizer states of dense shards, as they travel to workers and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.state_parts import split_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kvstore_mpi.server.records import Unit
    from kvstore_mpi.server.rule import Rule
    from kvstore_mpi.server.shards import DenseShard

    Array = np.ndarray[Any, Any]
    _Weight = Callable[[DenseShard, Rule, int, int], Array]


def read(shard: DenseShard, unit: Unit) -> Iterator[tuple[m.StatePart, memoryview]]:
    """Yield the states of a unit in parts of at most ``PART_BYTES``."""
    lo, hi = unit.slices[0].lo, unit.slices[-1].hi
    arrays = dict(enumerate(shard.states.get(lo, ())))
    # Before the master comes in, which is none of them: who loads a state makes as many arrays as this
    # says.
    count = len(arrays)
    # With the master: training that goes on from the rounded value would take other steps.
    if shard.master is not None:
        arrays[m.MASTER] = shard.view(shard.master, lo, hi)
    head = (unit.key.key_id, lo, hi, unit.updates)
    # Also for a rule without states: schedules go on by the count of updates.
    if not arrays:
        yield m.StatePart(*head, m.NO_ARRAY, 0, 0, 0, "uint8"), memoryview(b"")
    for index, array in arrays.items():
        yield from split_state(head, index, count, array)


def write(shard: DenseShard, unit: Unit, part: m.StatePart, payload: Any) -> None:
    """Write one part of a state."""
    # Adam corrects its bias by this count, and with another would take a step of the wrong size.
    unit.updates = part.count
    if part.array == m.NO_ARRAY:
        return
    data = np.frombuffer(payload, np.dtype(part.dtype))
    target = _state_array(shard, part)
    target[part.offset : part.offset + data.size] = data


def _state_array(shard: DenseShard, part: m.StatePart) -> Array:
    if part.array == m.MASTER:
        if shard.master is None:
            # From the value, since what is loaded may be of some units only.
            shard.master = shard.value.astype(np.float32)
        return shard.view(shard.master, part.lo, part.hi)
    state = shard.states.get(part.lo, ())
    # The rule may have no state yet (nothing was pushed), or one of another number of arrays (momentum that
    # was 0): what is loaded counts.
    if len(state) != part.arrays:
        state = tuple(np.zeros(part.total, np.dtype(part.dtype)) for _ in range(part.arrays))
    # Arrays of one state may differ in size, which each array's first part tells.
    if state[part.array].size != part.total:
        replaced = list(state)
        replaced[part.array] = np.zeros(part.total, np.dtype(part.dtype))
        state = tuple(replaced)
    shard.states[part.lo] = state
    return state[part.array]


def check(shard: DenseShard, rule: Rule | None, ends: Mapping[int, int], weight: _Weight) -> None:
    """Compare each state with the one that the optimizer would begin with.

    Args:
        shard: With the states that it has taken up.
        rule: Of its store.
        ends: Of the units, by their first elements.
        weight: Returns what the rule updates of a unit.

    Raises:
        ConfigurationError: A state is none of the optimizer's.
    """
    for lo, state in shard.states.items():
        expected: tuple[Array, ...] = ()
        if rule is not None and lo in ends and shard.value.dtype.kind == "f":
            # Made anew to look at its shapes only: an optimizer says in no other way what its state is
            # like.
            optimizer = rule.optimizer.bind(shard.key, shard.shape)
            expected = tuple(optimizer.init(weight(shard, rule, lo, ends[lo])))
        shapes = [[(array.size, array.dtype) for array in arrays] for arrays in (state, expected)]
        if shapes[0] != shapes[1]:
            raise ConfigurationError(
                f"the state of key {shard.key!r} from element {lo} on is not one of its optimizer"
            )
