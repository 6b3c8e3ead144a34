"""Optimizer states between the form in which they travel and one record for each key. Pure.

On a server a state belongs to a unit: a slice under an element-wise rule, a whole key otherwise. A user
saves and loads states of keys. The parts in between are ``wire.state_parts.StatePart``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import parameter_of
from kvstore_mpi.wire.state_parts import MASTER, NO_ARRAY, PART_BYTES, StatePart, count_alone, split_state
from kvstore_mpi.worker.table_states import assemble_tables, rows_of_piece

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.records import Key, NodeId, Slice
    from kvstore_mpi.worker.instructions import ReceivedPart
    from kvstore_mpi.worker.records import KeyState

Array = np.ndarray[Any, Any]


class KeyStates(NamedTuple):
    """The optimizer state of one key.

    Attributes:
        updates: Updates so far.
        arrays: Flat arrays of the state, in the rule's order; as long as the key under element-wise rules.
        master: The float32 copy of a float16 weight under multi-precision, or ``None``.
    """

    updates: int
    arrays: list[Array]
    master: Array | None


def assemble(received: Iterable[ReceivedPart]) -> dict[Key, KeyStates]:
    """Put the parts that servers sent together, by key."""
    counts: dict[Key, int] = {}
    arrays: dict[Key, dict[int, Array]] = {}
    # A list, because it is gone over twice: pieces of tables are put together in another way.
    parts = list(received)
    for key, table in assemble_tables(part for part in parts if part.spec.partitions).items():
        counts[key], arrays[key] = table.updates, table.arrays()
    for spec, part, payload in (each for each in parts if not each.spec.partitions):
        # The most updates of any slice: servers answer between two updates, so slices may be one apart, and
        # a rule that corrects its bias (Adam) must not begin again at a smaller count.
        counts[spec.key] = max(counts.get(spec.key, 0), part.count)
        # Also of a key without arrays: its schedule goes on by the count of updates.
        mine = arrays.setdefault(spec.key, {})
        if part.array == NO_ARRAY:
            continue
        # An array as long as its unit has an element for each of the weight's and belongs at the unit's
        # place in the key; any other, a scalar for example, belongs to the whole.
        elementwise = part.total == part.hi - part.lo
        if part.array not in mine:
            size = int(np.prod(spec.shape, dtype=np.int64)) if elementwise else part.total
            # Zeros: of slices that were never updated, as those of a server that was always down, no part
            # comes, and the state with which they would begin is that of no other.
            mine[part.array] = np.zeros(size, np.dtype(part.dtype))
        start = part.offset + (part.lo if elementwise else 0)
        data = np.frombuffer(payload, np.dtype(part.dtype)) if len(payload) else np.empty(0, part.dtype)
        mine[part.array][start : start + data.size] = data
    # The master has a number below 0: it is beside the states, and not one of them.
    return {
        key: KeyStates(counts[key], [mine[i] for i in sorted(mine) if i >= 0], mine.get(MASTER))
        for key, mine in arrays.items()
    }


def parts_for(
    server: NodeId, units: list[tuple[KeyState, NodeId, Slice]], states: dict[Key, KeyStates]
) -> list[tuple[list[StatePart], list[memoryview], bool]]:
    """Cut states into messages for one server: parts, their payloads, and whether it is the last.

    Raises:
        UsageError: Rows of a table come into being here, and the states are those of all of them.
    """
    # Never none: the last message ends the request, also on a server that has nothing of any of these keys.
    bundles: list[tuple[list[StatePart], list[memoryview]]] = [([], [])]
    room = PART_BYTES
    for key, home, unit in units:
        if home != server or key.spec.key not in states:
            continue
        for part, payload in _parts_of(key, unit, states[key.spec.key]):
            # Bundles are as small as parts, so that the values of other keys get through between them.
            if payload.nbytes > room:
                bundles.append(([], []))
                room = PART_BYTES
            bundles[-1][0].append(part)
            bundles[-1][1].append(payload)
            room -= payload.nbytes
    return [(parts, payloads, i == len(bundles) - 1) for i, (parts, payloads) in enumerate(bundles)]


def _parts_of(key: KeyState, unit: Slice, states: KeyStates) -> Iterable[tuple[StatePart, memoryview]]:
    """Yield what a server needs for one unit; arrays not as long as the key belong to whole keys."""
    arrays = dict(enumerate(states.arrays))
    if states.master is not None:
        arrays[MASTER] = states.master
    # Every unit goes on by the count of the whole key: a state that was saved has no other.
    head = (key.key_id, unit.lo, unit.hi, states.updates)
    # Also of a rule without states: schedules go on by the count of updates.
    if not arrays:
        yield count_alone(head)
    elif key.table is not None and key.table.layout.grows:
        raise UsageError(
            f"the states of key {parameter_of(key.spec.key)!r} are those of a table with a fixed number of "
            "rows, and here its rows come into being when they are trained; such tables go on from the "
            "servers' snapshots alone (mpilaunch --resume)"
        )
    size = key.slices[-1][1].hi
    for index, array in arrays.items():
        # Cut anew: the job that saved the state may have had other servers and slices of another size.
        part = array[unit.lo : unit.hi] if array.size == size else array
        # Of a table ``lo`` is no element: piece p stands in messages as the run [2p, 2p + 1).
        if key.table is not None:
            part = rows_of_piece(key.table.layout, unit.lo // 2, array)
        yield from split_state(head, index, len(states.arrays), part)
