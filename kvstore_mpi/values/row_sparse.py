"""The layout of a table: its rows are dealt to pieces, and of a piece some rows travel at a time.

A piece is what a slice is to a dense key: it has its own round, sum and update, and is pushed even without
rows, because a round waits for every client. Row ``id`` is in piece ``id % partitions`` (``rows``), which
spreads the frequent ids that vocabularies have at their beginning over all servers; or pieces are
contiguous ranges (``row_ranges``).

A payload is a header, the places of rows within the piece, and the rows. This file must not know when it
travels, or what an optimizer does with rows.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.records import Rows, Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvstore_mpi.records import KeySpec, Shard

    Array = np.ndarray[Any, Any]

BY_MODULUS = "rows"
BY_RANGE = "row_ranges"
TABLE_LAYOUTS = (BY_MODULUS, BY_RANGE)

SOME = 0
"""Rows, and their places in the piece."""
ALL = 1
"""Every row of the piece, in order, without places."""
WANTED = 2
"""A request for the rows at some places."""
CHANGED = 3
"""A request for the rows that have changed since a version."""

_FORMS = {SOME: (True, True), ALL: (False, True), WANTED: (True, False), CHANGED: (False, False)}
"""Whether each has places and rows."""

NEVER = -1
"""The version of a worker that has not had the piece yet."""

CODING = 1
"""Stands in an answer's coding: each entry has a payload of this layout. Codings of slices have others."""

_HEADER = struct.Struct("<BBxxxxxxqQ")  # form, bytes of a place, version, number of places or rows
HEADER_BYTES = _HEADER.size

_NARROW, _WIDE = np.dtype("<u4"), np.dtype("<i8")
_PLACE_TYPES: dict[int, np.dtype[Any]] = {4: _NARROW, 8: _WIDE}


class Packed(NamedTuple):
    """A payload, taken apart without a copy.

    Attributes:
        form: One of ``SOME``, ``ALL``, ``WANTED`` and ``CHANGED``.
        version: Of an answer, the one that it brings the piece to; otherwise the one that is known.
        places: Of rows within the piece, ascending; empty under ``ALL``.
        values: (rows, width); empty in a request.
    """

    form: int
    version: int
    places: Array
    values: Array


class RowSparse:
    """How a table is cut into pieces, and what travels of one; see ``layout.Layout``.

    A piece has the number ``p`` in ``0 … partitions - 1`` and stands in messages as the run ``[2p, 2p+1)``:
    pieces are nobody's neighbours, so that none is joined with another, and each has its own payload.

    Attributes:
        key: The key's name, for errors.
        dtype: Of the rows.
        num_rows: Of the table.
        width: Elements of a row.
        partitions: Number of pieces.
        grows: Rows are there only once they have been pushed.
    """

    __slots__ = ("_by_range", "_place_type", "dtype", "grows", "key", "num_rows", "partitions", "width")

    def __init__(self, spec: KeySpec) -> None:
        """Lay out a table."""
        self.key = spec.key
        self.dtype = np.dtype(spec.dtype)
        self.num_rows = spec.shape[0]
        self.width = math.prod(spec.shape[1:])
        self.partitions = spec.partitions
        self.grows = spec.growth is not None
        self._by_range = spec.layout == BY_RANGE
        # Places and not ids travel: they are smaller by the number of pieces, so that four bytes do.
        self._place_type = _NARROW if self.rows_of(0) <= np.iinfo(_NARROW).max else _WIDE

    # --- pieces ---

    @staticmethod
    def cut(key_id: int, shards: Iterable[Shard], _slice_elements: int) -> list[tuple[int, Slice]]:
        """Return the pieces of shards: (server, slice)."""
        return [
            (server, Slice(key_id, lo, lo + 1))
            for server, start, end in shards
            for lo in range(start, end, 2)
        ]

    def num_bytes(self, lo: int, hi: int) -> int:
        """Return a bound on what a run can have: all its rows."""
        return sum(self.rows_of(piece) for piece in range(lo // 2, (hi + 1) // 2)) * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * self.dtype.itemsize

    def rows_of(self, piece: int) -> int:
        """Return the number of rows of a piece."""
        if self._by_range:
            return self._start(piece + 1) - self._start(piece)
        return (self.num_rows - piece + self.partitions - 1) // self.partitions

    def _start(self, piece: int) -> int:
        return piece * self.num_rows // self.partitions

    def pieces_of(self, ids: Array) -> Array:
        """Return the number of the piece of each row."""
        if self._by_range:
            starts = [self._start(piece) for piece in range(1, self.partitions)]
            return np.searchsorted(starts, ids, "right")
        pieces: Array = ids % self.partitions
        return pieces

    def ids_of(self, piece: int, places: Array) -> Array:
        """Return the ids of rows, by their places in a piece."""
        ids: Array = places.astype(np.int64)
        if self._by_range:
            ids += self._start(piece)
        else:
            ids *= self.partitions
            ids += piece
        return ids

    def value_of(self, piece: int, table: Array) -> memoryview:
        """Return the bytes of a piece of a whole table, copied together."""
        rows: Array = np.ascontiguousarray(self.part_of(piece, table))
        return rows.reshape(-1).view(np.uint8).data

    def part_of(self, piece: int, table: Array) -> Array:
        """Return the rows of a piece of a whole table, as a view."""
        if self._by_range:
            return table[self._start(piece) : self._start(piece + 1)]
        return table[piece :: self.partitions]

    def deal(self, ids: Array) -> Iterator[tuple[int, Array | slice, Array]]:
        """Deal ascending ids to pieces: (piece, which of the ids, their places); all pieces, in order."""
        if self._by_range:
            starts = np.array([self._start(piece) for piece in range(self.partitions + 1)])
            bounds = np.searchsorted(ids, starts)
            for piece in range(self.partitions):
                which = slice(int(bounds[piece]), int(bounds[piece + 1]))
                yield piece, which, (ids[which] - starts[piece]).astype(self._place_type)
            return
        if self.partitions == 1:
            yield 0, slice(None), ids.astype(self._place_type)
            return
        places, pieces = np.divmod(ids, self.partitions)
        order = np.argsort(pieces, kind="stable")  # ascending within a piece, as ids are
        bounds = np.searchsorted(pieces, np.arange(self.partitions + 1), sorter=order)
        places = places.astype(self._place_type)
        for piece in range(self.partitions):
            chosen = order[bounds[piece] : bounds[piece + 1]]
            yield piece, chosen, places[chosen]

    # --- payloads ---

    @staticmethod
    def part(payload: Any, _start: int, lo: int, _hi: int) -> Any:
        """Return the payload of a piece: what was received for it, or what a worker makes for it."""
        return payload.pack(lo // 2) if isinstance(payload, (PushedRows, WantedRows)) else payload

    def check(self, payload: Any, lo: int, _hi: int) -> None:
        """Raise where a payload is not one of rows of a piece, or a request for some.

        Raises:
            MismatchError: Its size, or a place in it, cannot be.
        """
        try:
            places = self.unpack(payload).places
        except (KeyError, ValueError, struct.error):
            raise self._mismatch(f"{memoryview(payload).nbytes} bytes came for piece {lo // 2}") from None
        # A place beyond the piece would be another piece's row, and one that comes twice would be summed
        # once: kernels rely on both.
        if places.size and not (places[-1] < self.rows_of(lo // 2) and (places[:-1] < places[1:]).all()):
            raise self._mismatch(f"what came are not places of rows of piece {lo // 2} in ascending order")

    def check_value(self, payload: Any, lo: int) -> None:
        """Raise where a payload is not the initial value of a piece.

        Raises:
            MismatchError: It has another size.
        """
        wanted = 0 if self.grows else self.num_bytes(lo, lo + 1)
        num_bytes = memoryview(payload).nbytes
        if num_bytes != wanted:
            raise self._mismatch(f"piece {lo // 2} has {wanted} bytes, but {num_bytes} came")

    def _mismatch(self, what: str) -> MismatchError:
        return MismatchError(
            f"key {self.key!r}: {what}; all processes must run the same version of kvstore_mpi"
        )

    def size_of(self, num_places: int, num_rows: int) -> int:
        """Return the size of a payload."""
        return _rows_start(num_places * self._place_type.itemsize) + num_rows * self.row_bytes

    def places(self, indices: Array) -> Array:
        """Return places as they travel."""
        return indices.astype(self._place_type)

    def _write_places(self, out: memoryview, places: Array) -> None:
        np.frombuffer(out, self._place_type, places.size, HEADER_BYTES)[:] = places
        place_bytes = places.size * self._place_type.itemsize
        end, start = HEADER_BYTES + place_bytes, _rows_start(place_bytes)
        out[end:start] = bytes(start - end)  # or what this memory held before would leave the process

    def request(self, form: int, version: int, places: Array | None = None) -> memoryview:
        """Return a payload without rows."""
        num_places = 0 if places is None else places.size
        out = np.empty(self.size_of(num_places, 0), np.uint8).data
        _HEADER.pack_into(out, 0, form, self._place_type.itemsize, version, num_places)
        if places is not None:
            self._write_places(out, places)
        return out

    def pack(
        self, version: int, places: Array | None, values: Array, which: Array | slice = slice(None)
    ) -> memoryview:
        """Return a payload of rows.

        Args:
            version: As in ``Packed``.
            places: Of the rows; every row of the piece if not given.
            values: (rows, width).
            which: Those of ``values`` that are meant.
        """
        num_places = 0 if places is None else places.size
        num_rows = len(values) if places is None else num_places
        # One allocation and one copy of each row: a socket takes the payload from here. Not zeroed, since
        # all of it is written.
        out = np.empty(self.size_of(num_places, num_rows), np.uint8).data
        form = ALL if places is None else SOME
        _HEADER.pack_into(out, 0, form, self._place_type.itemsize, version, num_rows)
        if places is not None:
            self._write_places(out, places)
        start = _rows_start(num_places * self._place_type.itemsize)
        target = np.frombuffer(out, self.dtype, num_rows * self.width, start).reshape(num_rows, self.width)
        if isinstance(which, slice):
            np.copyto(target, values[which], casting="same_kind")
        else:
            np.take(values, which, axis=0, out=target, mode="clip")  # "raise" would copy once more
        return out

    def unpack(self, payload: Any) -> Packed:
        """Take a payload apart.

        Raises:
            KeyError: It is of no known form.
            ValueError: It has another size than it says.
            struct.error: It is shorter than its header.
        """
        form, place_bytes, version, count = _HEADER.unpack_from(payload)
        place_type = _PLACE_TYPES[place_bytes]
        has_places, has_rows = _FORMS[form]
        num_places, num_rows = has_places * count, has_rows * count
        start = _rows_start(num_places * place_bytes)
        if memoryview(payload).nbytes != start + num_rows * self.row_bytes:
            raise ValueError(count)
        places = np.frombuffer(payload, place_type, num_places, HEADER_BYTES)
        elements = np.frombuffer(payload, self.dtype, num_rows * self.width, start)
        values: Array = elements.reshape(num_rows, self.width)
        return Packed(form, version, places, values)

    def rows_in(self, payload: Any, piece: int) -> tuple[int, Rows]:
        """Return the version that an answer brings a piece to, and its rows by their ids."""
        _, version, places, values = packed = self.unpack(payload)
        if packed.form == ALL:
            places = np.arange(len(values))
        return version, Rows(self.ids_of(piece, places), values)


class PushedRows:
    """Rows of a table that a worker pushes, dealt to pieces.

    Attributes:
        rows: They, of one rank; or of all ranks of its client, once these are merged.
        versions: Of the pieces, as far as the worker knows them; set when the push begins.
    """

    __slots__ = ("_dealt", "_layout", "rows", "versions")

    def __init__(self, layout: RowSparse, rows: Rows) -> None:
        """Deal rows; they must not change until they have been sent.

        Raises:
            UsageError: They are not rows of the table.
        """
        check_ids(layout, rows.ids)
        if rows.values.shape != (rows.ids.size, layout.width) or rows.values.dtype != layout.dtype:
            raise UsageError(
                f"key {layout.key!r}: {rows.ids.size} rows of {layout.width} {layout.dtype} elements are "
                f"wanted, not {rows.values.dtype} of the shape {rows.values.shape}"
            )
        self.rows = rows
        self.versions: Sequence[int] = ()
        self._layout = layout
        self._dealt = [(which, places) for _, which, places in layout.deal(rows.ids)]

    def num_bytes(self, piece: int) -> int:
        """Return the size of a piece's payload."""
        num_rows = self._dealt[piece][1].size
        return self._layout.size_of(num_rows, num_rows)

    def pack(self, piece: int) -> memoryview:
        """Return the payload of a piece."""
        which, places = self._dealt[piece]
        return self._layout.pack(self.versions[piece], places, self.rows.values, which)


class WantedRows:
    """Rows of a table that a worker asks for: some by their ids, or those that have changed.

    Attributes:
        is_delta: They are those that have changed.
        pieces: The pieces that are asked.
        versions: As of ``PushedRows``; at first the worker knows nothing.
    """

    __slots__ = ("_layout", "_places", "is_delta", "pieces", "versions")

    def __init__(self, layout: RowSparse, ids: Array | None, *, everywhere: bool = False) -> None:
        """Ask for rows.

        Args:
            layout: Of the table.
            ids: Ascending; ``None`` for what the worker's versions lack.
            everywhere: Also ask pieces that have none of the ids, and so wait until they are there.

        Raises:
            UsageError: They are not rows of the table.
        """
        self.is_delta = ids is None
        self.versions: Sequence[int] = [NEVER] * layout.partitions
        self._layout = layout
        self._places: dict[int, Array] = {}
        self.pieces: Sequence[int] = range(layout.partitions)
        if ids is not None:
            check_ids(layout, ids)
            dealt = layout.deal(ids)
            self._places = {piece: places for piece, _, places in dealt if places.size or everywhere}
            self.pieces = list(self._places)

    def pack(self, piece: int) -> memoryview:
        """Return the request to a piece."""
        places = self._places.get(piece)
        form = CHANGED if places is None else WANTED
        return self._layout.request(form, self.versions[piece], places)


def request_in(payload: Any) -> bytes:
    """Return the request that a push of rows makes besides: for what has changed since its version."""
    _, place_bytes, version, _ = _HEADER.unpack_from(payload)
    return _HEADER.pack(CHANGED, place_bytes, version, 0)


def check_ids(layout: RowSparse, ids: Array) -> None:
    """Raise where ids, which are ascending, are not of the table.

    Raises:
        UsageError: The first or the last of them is out of range.
    """
    if ids.size and not 0 <= ids[0] <= ids[-1] < layout.num_rows:
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise UsageError(f"key {layout.key!r} has the rows 0 to {layout.num_rows - 1}, and not {wrong}")


def _rows_start(place_bytes: int) -> int:
    # Rows begin at a multiple of 8, or kernels would read elements that lie across two words.
    return HEADER_BYTES + (place_bytes + 7) // 8 * 8
