"""What a piece of a table in a base, and what links say of it, come to. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.server.snapshot_records import GONE, LAST_USED, PLACES, UPDATES, USES
from kvstore_mpi.values.row_sparse import RowSparse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.records import KeySpec

    Array = np.ndarray[Any, Any]
    Part = Mapping[int, Array]


def joined(spec: KeySpec, lo: int, parts: Sequence[Part]) -> Part:
    """Return the arrays of a piece, or of a shard of a key that is no table.

    Args:
        spec: Of the key.
        lo: Of the piece.
        parts: What the base has, and what each link has.

    Raises:
        ConfigurationError: A link does not go with what is before it.
    """
    if len(parts) == 1:
        return parts[0]
    what = f"of key {spec.key!r} piece {lo // 2}"
    problem = _problem_of_kinds(parts)
    if problem:
        raise ConfigurationError(f"{what}: {problem}")
    if spec.growth is not None:
        return _joined_growing(parts, spec.growth.retention.admit_after, what)
    return _joined_fixed(parts, RowSparse(spec).rows_of(lo // 2), what)


def _problem_of_kinds(parts: Sequence[Part]) -> str:
    kinds = [
        {index: array.dtype for index, array in part.items() if index not in {PLACES, GONE}}
        for part in parts
    ]
    # States of another optimizer, or none yet: a server writes the piece as a whole then.
    return "" if all(kind == kinds[0] for kind in kinds) else "a link has other arrays than the base"


def _joined_fixed(parts: Sequence[Part], num_rows: int, what: str) -> Part:
    base, *links = parts
    out: dict[int, Array] = {}
    for index, array in base.items():
        # Of each array by itself: a state may be one number for each row.
        width = array.size // max(1, num_rows)
        # A copy: what was read from a file cannot be written.
        rows = out[index] = array.reshape(num_rows, width).copy()
        for link in links:
            places = link[PLACES]
            # NumPy would take a negative place for one from the end, and write another row without a word.
            inside = not places.size or 0 <= places.min() <= places.max() < num_rows
            if not inside or link[index].size != places.size * width:
                raise ConfigurationError(f"{what}: a link has rows that the base has not")
            # Oldest first: a row that is in several links is as the last one has it.
            rows[places] = link[index].reshape(places.size, width)
    return {index: rows.reshape(-1) for index, rows in out.items()}


def _joined_growing(parts: Sequence[Part], admit_after: int, what: str) -> Part:
    """Return the newest of what there is of each place; of those that went last there is nothing."""
    nothing = np.empty(0, np.int64)
    gone = [part.get(GONE, nothing) for part in parts]
    # All that was ever said of any place, oldest first: that a row is there, has changed, or went.
    entries = np.concatenate([each for part, went in zip(parts, gone) for each in (part[PLACES], went)])
    about = {index: _spread(parts, gone, index) for index in (LAST_USED, USES)}
    order = np.argsort(entries, kind="stable")
    # The last one of each place is the newest, as the sort is stable.
    newest = order[np.flatnonzero(np.diff(entries[order], append=np.iinfo(np.int64).min))]
    # A row whose last word is that it went has no uses there (see ``_spread``). One that came back later is
    # there again, because its last word is another.
    newest = newest[about[USES][newest] > 0]
    # Those that wait to be admitted have no values; see ``GrowingPiece.contents``.
    has_values = about[USES] >= admit_after
    # The values of all parts lie one after the other, so that the n-th entry that has values has the n-th
    # row of them.
    rows = (np.cumsum(has_values) - 1)[newest[has_values[newest]]]
    # By uses, and not by the size of the values: of rows without elements that would be zero.
    counts = [int((part[USES] >= admit_after).sum()) for part in parts]
    out = {index: array[newest] for index, array in about.items()}
    # The count of the newest, whichever rows it has: ages are measured from it.
    out[UPDATES], out[PLACES] = parts[-1][UPDATES], entries[newest]
    for index in parts[0]:
        if index not in out:
            out[index] = _gathered([part[index] for part in parts], counts, rows, what)
    # In the order of the base, by which what they come to is checked once more.
    return {index: out[index] for index in parts[0]}


def _spread(parts: Sequence[Part], gone: Sequence[Array], index: int) -> Array:
    """Return a number for each entry; 0 of those that went."""
    zeros = [np.zeros(went.size, parts[0][index].dtype) for went in gone]
    return np.concatenate([each for part, zero in zip(parts, zeros) for each in (part[index], zero)])


def _gathered(arrays: Sequence[Array], counts: Sequence[int], rows: Array, what: str) -> Array:
    """Return some rows of what arrays of ``counts`` rows have together, flat."""
    # A part without rows has no width, and takes that of the others.
    widths = {array.size // count for array, count in zip(arrays, counts) if count}
    width = widths.pop() if widths else 0
    if widths or any(array.size != count * width for array, count in zip(arrays, counts)):
        raise ConfigurationError(f"{what}: rows have other lengths in a link than in the base")
    found: Array = np.concatenate(arrays).reshape(sum(counts), width)[rows].reshape(-1)
    return found
