"""Whether a snapshot's header describes what a server can take up. Pure.

The checksum only shows that the file is as it was written, and not by whom: arrays of a wrong type or size
would be taken up without a word, and fail at some later push.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import ITEMSIZES, Mode
from kvstore_mpi.server.snapshot_records import (
    GONE,
    LAST_USED,
    PLACES,
    UPDATES,
    USES,
    VALUE,
    ArrayRecord,
    is_link_part,
)
from kvstore_mpi.values.row_init import check_init
from kvstore_mpi.values.row_sparse import TABLE_LAYOUTS, RowSparse
from kvstore_mpi.values.row_table import check_retention
from kvstore_mpi.wire.state_parts import MASTER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.records import Growth
    from kvstore_mpi.server.snapshot_records import Header, KeyRecord

_MODES = {mode.value for mode in Mode}


def problem_of(header: Header, num_bytes: int) -> str:
    """Return what is wrong with a header, in words; nothing if all is well.

    Args:
        header: The header.
        num_bytes: How many bytes of arrays follow it.
    """
    keys = [*header.keys, *header.left]
    for key in keys:
        # There is nothing before a base, of which something can have changed.
        if not header.link and is_link_part(key.spec, {each.index for each in key.arrays}):
            return f"of key {key.spec.key!r} what has changed is there, and not what has not"
        layout = header.layout
        num_pushers = layout.clients * (layout.client_size if key.spec.apart else 1)
        for problem in _problems_of_key(key, num_pushers):
            return f"of key {key.spec.key!r} {problem}"
    # The later one would take the other's place without a word.
    if len({key.key_id for key in header.keys}) < len(header.keys):
        return "two keys have one number"
    # Of all keys together: which array has the wrong size, bytes do not tell.
    described = sum(each.size * ITEMSIZES[each.dtype] for key in keys for each in key.arrays)
    # Too many are as wrong as too few: some array would have been read from another's place.
    return "" if described == num_bytes else f"{num_bytes} bytes of arrays are there instead of {described}"


def _problems_of_key(key: KeyRecord, num_pushers: int) -> Iterator[str]:
    lo, hi = key.shard
    if key.mode not in _MODES:
        yield f"the mode is {key.mode!r}"
    if key.spec.dtype not in ITEMSIZES:
        yield f"the type is {key.spec.dtype!r}"
        return
    # The shard of a table counts pieces, two numbers for each, and every piece has arrays of its own.
    if key.spec.partitions:
        yield from _problems_of_table(key, num_pushers)
        return
    # Python's integers: a product of NumPy's would overflow for a crafted shape, and may then look right.
    if min(key.spec.shape, default=0) < 0 or not 0 <= lo <= hi <= math.prod(key.spec.shape):
        yield f"the elements are {lo} to {hi} of the shape {key.spec.shape}"
    yield from _problems_of_units(key, num_pushers)
    # By a part of the list: a key without arrays is refused in words, and not by an IndexError.
    if key.arrays[:1] != [ArrayRecord(VALUE, lo, key.spec.dtype, hi - lo)]:
        yield f"the value is not {hi - lo} elements of {key.spec.dtype}"
    # After the value or not at all: anywhere else its number is one that no state has.
    has_master = key.arrays[1:2] == [ArrayRecord(MASTER, lo, "float32", hi - lo)]
    yield from _problems_of_states(key.arrays[2 if has_master else 1 :], lo, hi)


def _problems_of_units(key: KeyRecord, num_pushers: int) -> Iterator[str]:
    for unit in key.units:
        # Each push looks up its pusher in them: a list that is too short would end the server only then.
        if not len(unit.pushed) == len(unit.applied) == num_pushers:
            yield f"the pushes of {len(unit.pushed)} clients are counted"
        # Adam divides by 1 - beta^t, which is 0 at the update that follows a count of -1.
        if min(unit.updates, *unit.pushed, *unit.applied) < 0:
            yield "a count is negative"


def _problems_of_table(key: KeyRecord, num_pushers: int) -> Iterator[str]:
    spec, (lo, hi) = key.spec, key.shard
    if len(spec.shape) < 2 or min(spec.shape) < 0 or not 1 <= spec.partitions <= max(1, spec.shape[0]):  # noqa: PLR2004
        yield f"a table of the shape {spec.shape} cannot have {spec.partitions} pieces"
        return
    if spec.layout not in TABLE_LAYOUTS:
        yield f"the layout is {spec.layout!r}"
    # What is no multiple would leave rows without a piece.
    if spec.homes < 1 or spec.partitions % spec.homes:
        yield f"{spec.partitions} pieces cannot be dealt to {spec.homes} servers alike"
        return
    if spec.growth is not None and (problem := _problem_of_growth(spec.growth)):
        yield problem
        return
    # Pieces begin at even numbers; any other is one that no worker asks for.
    if not 0 <= lo <= hi <= 2 * spec.partitions or lo % 2 or hi % 2:
        yield f"the pieces are {lo} to {hi}"
        return
    yield from _problems_of_units(key, num_pushers)
    # Only now: of a shape or layout that was refused above there is none to be made.
    layout = RowSparse(spec)
    found = {piece: [each for each in key.arrays if each.lo == piece] for piece in range(lo, hi, 2)}
    # The server would look for its piece when it takes it up, and end without a clear word.
    if sum(map(len, found.values())) < len(key.arrays):
        yield "an array is of no piece"
    for piece, arrays in found.items():
        if layout.grows:
            yield from _problems_of_growing(layout, piece, arrays)
            continue
        yield from _problems_of_fixed(layout, piece, arrays)


def _problems_of_fixed(layout: RowSparse, piece: int, arrays: list[ArrayRecord]) -> Iterator[str]:
    """Yield what is wrong with the arrays of a piece that has all its rows, or of a link some of them."""
    rows, dtype = layout.rows_of(piece // 2), layout.dtype.name
    # Of a link: only rows that have changed are there, and its places say how many.
    if any(each.index == PLACES for each in arrays):
        rows = arrays[0].size
        if rows < 0 or arrays[0] != ArrayRecord(PLACES, piece, "int64", rows):
            yield f"the rows of piece {piece // 2} are not described"
        arrays = arrays[1:]
    if arrays[:1] != [ArrayRecord(VALUE, piece, dtype, rows * layout.width)]:
        yield f"the value of piece {piece // 2} is not {rows * layout.width} elements of {dtype}"
    has_master = arrays[1:2] == [ArrayRecord(MASTER, piece, "float32", rows * layout.width)]
    states = arrays[2 if has_master else 1 :]
    # A row has a state of its own length, or one number.
    if any(each.size not in {rows * layout.width, rows} for each in states):
        yield f"a state of piece {piece // 2} has another number of rows"
    yield from _problems_of_states(states, piece, piece)


def _problem_of_growth(growth: Growth) -> str:
    # By the checks that a script meets: what it may not ask for would otherwise fail at some later push.
    try:
        check_init(growth.init)
        check_retention(growth.retention)
    except UsageError as error:
        return str(error)
    return ""


def _problems_of_growing(layout: RowSparse, piece: int, arrays: Sequence[ArrayRecord]) -> Iterator[str]:
    """Yield what is wrong with the arrays of a piece that has some of its rows."""
    # Rows of float16 rest in float32: see ``GrowingPiece``.
    dtype = "float32" if layout.dtype.name == "float16" else layout.dtype.name
    # By the places, which come third and are there for each row, also for those without values.
    num_known = arrays[2].size if len(arrays) > 2 else 0  # noqa: PLR2004
    about_rows = [(PLACES, "int64"), (LAST_USED, "int64"), (USES, "int32")]
    expected = [ArrayRecord(UPDATES, piece, "int64", 1)]
    expected += [ArrayRecord(index, piece, kind, num_known) for index, kind in about_rows]
    # Only links say what went.
    if arrays[5:6] and arrays[5].index == GONE:
        expected.append(ArrayRecord(GONE, piece, "int64", arrays[5].size))
    end = 1 + len(expected)
    value, states = arrays[:1], arrays[end:]
    if (
        # Sizes are numbers that the file gives: one below 0 would move the start of all that is read after
        # it.
        min(each.size for each in expected) < 0
        or list(arrays[1:end]) != expected
        or [(each.index, each.dtype) for each in value] != [(VALUE, dtype)]
    ):
        yield f"the rows of piece {piece // 2} are not described"
        return
    # Some of those that are known may still wait to be admitted, and have no values.
    num_rows = value[0].size // max(1, layout.width)
    if num_rows > num_known or num_rows * layout.width != value[0].size:
        yield f"the value of piece {piece // 2} is not whole rows, or of more than are known"
    if any(each.size not in {num_rows * layout.width, num_rows} for each in states):
        yield f"a state of piece {piece // 2} has another number of rows"
    yield from _problems_of_states(states, piece, piece)


def _problems_of_states(states: Sequence[ArrayRecord], lo: int, hi: int) -> Iterator[str]:
    """Yield what is wrong with the arrays of states; those that an optimizer needs, the store knows."""
    counts: Counter[int] = Counter()
    for each in states:
        if each.dtype not in ITEMSIZES or each.size < 0 or not lo <= each.lo <= hi:
            yield f"a state is {each.size} elements of {each.dtype!r} at {each.lo}"
        # A state is put together in this order: after a gap a mean would be taken for a variance.
        if each.index != counts[each.lo]:
            yield f"state {each.index} at {each.lo} is not the next one"
        counts[each.lo] += 1
