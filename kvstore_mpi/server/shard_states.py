"""Arrays of dense shards: optimizer states as workers get and give them, and all as snapshots have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.server.snapshot_records import VALUE
from kvstore_mpi.wire.state_parts import MASTER, NO_ARRAY, StatePart, count_alone, split_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvstore_mpi.server.records import Unit
    from kvstore_mpi.server.rule import Rule
    from kvstore_mpi.server.shards import DenseShard, Place

    Array = np.ndarray[Any, Any]


def weight_of(shard: DenseShard, rule: Rule, lo: int, hi: int) -> Array:
    """Return what the rule updates: the value, or its float32 master under multi-precision."""
    # A center has one as well: it moves in small steps, which rounding would swallow.
    wants_master = rule.spec.multi_precision or rule.terms.params
    if not (wants_master and shard.value.dtype == np.float16):
        return shard.view(shard.value, lo, hi)
    # From the value once: from then on that is only what the master rounds to.
    if shard.master is None:
        shard.master = shard.value.astype(np.float32)
    return shard.view(shard.master, lo, hi)


def read(shard: DenseShard, unit: Unit) -> Iterator[tuple[StatePart, memoryview]]:
    """Yield the states of a unit in parts of at most ``PART_BYTES``."""
    lo, hi = unit.slices[0].lo, unit.slices[-1].hi
    arrays = dict(enumerate(shard.states.get(lo, ())))
    # Before the master comes in, which is none of them: who loads a state makes as many arrays as this
    # says.
    count = len(arrays)
    # With the master: training that goes on from the rounded value would take other steps.
    if shard.master is not None:
        arrays[MASTER] = shard.view(shard.master, lo, hi)
    head = (unit.key.key_id, lo, hi, unit.updates)
    # Also for a rule without states: schedules go on by the count of updates.
    if not arrays:
        yield count_alone(head)
    for index, array in arrays.items():
        yield from split_state(head, index, count, array)


def write(shard: DenseShard, unit: Unit, part: StatePart, payload: Any) -> None:
    """Write one part of a state."""
    # Adam corrects its bias by this count, and with another would take a step of the wrong size.
    unit.count_from(part.count)
    if part.array == NO_ARRAY:
        return
    data = np.frombuffer(payload, np.dtype(part.dtype))
    target = _state_array(shard, part)
    target[part.offset : part.offset + data.size] = data


def _state_array(shard: DenseShard, part: StatePart) -> Array:
    if part.array == MASTER:
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


def contents(shard: DenseShard) -> list[tuple[Place, Array]]:
    """Return copies of a shard's arrays, and where they belong."""
    # Copies, which a thread writes out: updates of the next messages go into the arrays.
    arrays: list[tuple[Place, Array]] = [((VALUE, shard.lo), shard.value.copy())]
    if shard.master is not None:
        arrays.append(((MASTER, shard.lo), shard.master.copy()))
    for lo, state in shard.states.items():
        arrays += [((index, lo), array.copy()) for index, array in enumerate(state)]
    return arrays


def restore(shard: DenseShard, arrays: Iterable[tuple[Place, Array]]) -> None:
    """Fill a shard that has just been made with the contents that another one had."""
    # Copies: the arrays of a snapshot are views into one piece of memory, which would stay as a whole.
    for (index, lo), array in arrays:
        if index == VALUE:
            np.copyto(shard.value, array)
        elif index == MASTER:
            shard.master = array.copy()
        else:
            shard.states[lo] = (*shard.states.get(lo, ()), array.copy())


def check(shard: DenseShard, rule: Rule | None, ends: Mapping[int, int]) -> None:
    """Compare each state with the one that the optimizer would begin with.

    Args:
        shard: With the states that it has taken up.
        rule: Of its store.
        ends: Of the units, by their first elements.

    Raises:
        ConfigurationError: A state is none of the optimizer's.
    """
    for lo, state in shard.states.items():
        expected: tuple[Array, ...] = ()
        if rule is not None and lo in ends and shard.value.dtype.kind == "f":
            # Made anew to look at its shapes only: an optimizer says in no other way what its state is
            # like.
            optimizer = rule.optimizer.bind(shard.key, shard.shape)
            expected = tuple(optimizer.init(weight_of(shard, rule, lo, ends[lo])))
        shapes = [[(array.size, array.dtype) for array in arrays] for arrays in (state, expected)]
        if shapes[0] != shapes[1]:
            raise ConfigurationError(
                f"the state of key {shard.key!r} from element {lo} on is not one of its optimizer"
            )
