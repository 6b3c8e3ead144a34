"""Optimizer states of dense shards, as they travel to workers and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.state_pieces import split_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.server.records import Unit
    from kvstore_mpi.server.shards import DenseShard

    Array = np.ndarray[Any, Any]


def read(shard: DenseShard, unit: Unit) -> Iterator[tuple[m.StatePiece, memoryview]]:
    """Yield the states of a unit in pieces of at most ``PIECE_BYTES``."""
    lo, hi = unit.slices[0].lo, unit.slices[-1].hi
    arrays = dict(enumerate(shard.states.get(lo, ())))
    count = len(arrays)
    if shard.master is not None:
        arrays[m.MASTER] = shard.view(shard.master, lo, hi)
    head = (unit.key.key_id, lo, hi, unit.updates)
    # Also for a rule without states: schedules go on by the count of updates.
    if not arrays:
        yield m.StatePiece(*head, m.NO_ARRAY, 0, 0, 0, "uint8"), memoryview(b"")
    for index, array in arrays.items():
        yield from split_state(head, index, count, array)


def write(shard: DenseShard, unit: Unit, piece: m.StatePiece, payload: Any) -> None:
    """Write one piece of a state."""
    # Adam corrects its bias by this count, and with another would take a step of the wrong size.
    unit.updates = piece.count
    if piece.array == m.NO_ARRAY:
        return
    data = np.frombuffer(payload, np.dtype(piece.dtype))
    target = _state_array(shard, piece)
    target[piece.offset : piece.offset + data.size] = data


def _state_array(shard: DenseShard, piece: m.StatePiece) -> Array:
    if piece.array == m.MASTER:
        if shard.master is None:
            shard.master = shard.value.astype(np.float32)
        return shard.view(shard.master, piece.lo, piece.hi)
    state = shard.states.get(piece.lo, ())
    # The rule may have no state yet (nothing was pushed), or one of another number of arrays (momentum that
    # was 0): what is loaded counts.
    if len(state) != piece.arrays:
        state = tuple(np.zeros(piece.total, np.dtype(piece.dtype)) for _ in range(piece.arrays))
    if state[piece.array].size != piece.total:
        replaced = list(state)
        replaced[piece.array] = np.zeros(piece.total, np.dtype(piece.dtype))
        state = tuple(replaced)
    shard.states[piece.lo] = state
    return state[piece.array]
