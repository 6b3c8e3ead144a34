"""What travels of a piece of a table: a header, the places of rows within the piece, and the rows.

Rows travel in the type of the table, or narrower, and the header says which; in a request it says how the
rows of the answer are to travel. So either side reads what has come without knowing what the other was
told when. This file must not know how a table is cut, or when anything travels.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from kvstore_mpi.values.coding import RAW, ROW_CODINGS, rounds_rows

Array = np.ndarray[Any, Any]

SOME = 0
"""Rows, and their places in the piece."""
ALL = 1
"""Every row of the piece, in order, without places."""
WANTED = 2
"""A request for the rows at some places."""
CHANGED = 3
"""A request for the rows that have changed since a version."""
NEWER = 4
"""A request for those of the rows at some places that have changed since a version."""

_FORMS = {
    SOME: (True, True),
    ALL: (False, True),
    WANTED: (True, False),
    CHANGED: (False, False),
    NEWER: (True, False),
}
"""Whether each has places and rows."""

_HEADER = struct.Struct("<BBBxxxxxqQ")  # form, bytes of a place, coding, version, number of places or rows
HEADER_BYTES = _HEADER.size

_NARROW, _WIDE = np.dtype("<u4"), np.dtype("<i8")
_PLACE_TYPES: dict[int, np.dtype[Any]] = {4: _NARROW, 8: _WIDE}


class Packed(NamedTuple):
    """A payload, taken apart without a copy.

    Attributes:
        form: One of ``SOME``, ``ALL``, ``WANTED``, ``CHANGED`` and ``NEWER``.
        version: Of an answer, the one that it brings the piece to; otherwise the one that is known.
        places: Of rows within the piece, ascending; empty under ``ALL``.
        values: (rows, width), as they travel; empty in a request.
        coding: Number of the coding in which they do, or, of a request, those of the answer are to.
    """

    form: int
    version: int
    places: Array
    values: Array
    coding: int


class RowPayloads:
    """How the payloads of one table are made and read.

    Attributes:
        dtype: Of the rows.
        width: Elements of a row.
    """

    __slots__ = ("_place_type", "dtype", "width")

    def __init__(self, dtype: np.dtype[Any], width: int, most_rows: int) -> None:
        """Choose the type of places; ``most_rows``: of any piece."""
        self.dtype = dtype
        self.width = width
        # Places and not ids travel: they are smaller by the number of pieces, so that four bytes do.
        self._place_type = _NARROW if most_rows <= np.iinfo(_NARROW).max else _WIDE

    def coding_for(self, number: int) -> int:
        """Return the number of the coding of rows in a store whose user has chosen a coding."""
        # Elements that are no wider would be rounded for nothing.
        return number if rounds_rows(number, self.dtype) else RAW

    def _wire_type(self, coding: int) -> np.dtype[Any]:
        return self.dtype if coding == RAW else ROW_CODINGS[coding].wire_type

    def row_bytes(self, coding: int = RAW) -> int:
        """Return the bytes of one row."""
        return self.width * self._wire_type(coding).itemsize

    def size_of(self, num_places: int, num_rows: int, coding: int = RAW) -> int:
        """Return the size of a payload."""
        return _rows_start(num_places * self._place_type.itemsize) + num_rows * self.row_bytes(coding)

    def places(self, indices: Array) -> Array:
        """Return places as they travel."""
        return indices.astype(self._place_type)

    def _write_places(self, out: memoryview, places: Array) -> None:
        np.frombuffer(out, self._place_type, places.size, HEADER_BYTES)[:] = places
        place_bytes = places.size * self._place_type.itemsize
        end, start = HEADER_BYTES + place_bytes, _rows_start(place_bytes)
        out[end:start] = bytes(start - end)  # or what this memory held before would leave the process

    def request(
        self, form: int, version: int, places: Array | None = None, coding: int = RAW
    ) -> memoryview:
        """Return a payload without rows."""
        num_places = 0 if places is None else places.size
        out = np.empty(self.size_of(num_places, 0), np.uint8).data
        _HEADER.pack_into(out, 0, form, self._place_type.itemsize, coding, version, num_places)
        if places is not None:
            self._write_places(out, places)
        return out

    def pack(
        self,
        version: int,
        places: Array | None,
        values: Array,
        which: Array | slice = slice(None),
        coding: int = RAW,
    ) -> memoryview:
        """Return a payload of rows.

        Args:
            version: As in ``Packed``.
            places: Of the rows; every row of the piece if not given.
            values: (rows, width).
            which: Those of ``values`` that are meant.
            coding: Number of the coding in which they travel.
        """
        num_places = 0 if places is None else places.size
        num_rows = len(values) if places is None else num_places
        # One allocation and one copy of each row: a socket takes the payload from here. Not zeroed, since
        # all of it is written.
        out = np.empty(self.size_of(num_places, num_rows, coding), np.uint8).data
        form = ALL if places is None else SOME
        _HEADER.pack_into(out, 0, form, self._place_type.itemsize, coding, version, num_rows)
        if places is not None:
            self._write_places(out, places)
        start = _rows_start(num_places * self._place_type.itemsize)
        target = np.frombuffer(out, self._wire_type(coding), num_rows * self.width, start)
        target = target.reshape(num_rows, self.width)
        if coding != RAW:
            ROW_CODINGS[coding].narrow(values[which], target)
        elif isinstance(which, slice):
            np.copyto(target, values[which], casting="same_kind")
        else:
            np.take(values, which, axis=0, out=target, mode="clip")  # "raise" would copy once more
        return out

    def unpack(self, payload: Any) -> Packed:
        """Take a payload apart.

        Raises:
            KeyError: It is of no known form.
            ValueError: It has another size than it says, or a coding that is none for these rows.
            struct.error: It is shorter than its header.
        """
        form, place_bytes, coding, version, count = _HEADER.unpack_from(payload)
        if coding != self.coding_for(coding):
            raise ValueError(coding)
        place_type, wire_type = _PLACE_TYPES[place_bytes], self._wire_type(coding)
        has_places, has_rows = _FORMS[form]
        num_places, num_rows = has_places * count, has_rows * count
        start = _rows_start(num_places * place_bytes)
        if memoryview(payload).nbytes != start + num_rows * self.width * wire_type.itemsize:
            raise ValueError(count)
        places = np.frombuffer(payload, place_type, num_places, HEADER_BYTES)
        elements = np.frombuffer(payload, wire_type, num_rows * self.width, start)
        values: Array = elements.reshape(num_rows, self.width)
        return Packed(form, version, places, values, coding)

    def values_in(self, packed: Packed) -> Array:
        """Return the rows of a payload in the type of the table; not copied, unless they are narrower."""
        if packed.coding == RAW:
            return packed.values
        return ROW_CODINGS[packed.coding].widen(packed.values).astype(self.dtype, copy=False)


def request_in(payload: Any) -> bytes:
    """Return the request that a push of rows makes besides: for what has changed since its version."""
    # Answered as it has come: who pushes narrow rows wants narrow ones.
    _, place_bytes, coding, version, _ = _HEADER.unpack_from(payload)
    return _HEADER.pack(CHANGED, place_bytes, coding, version, 0)


def _rows_start(place_bytes: int) -> int:
    # Rows begin at a multiple of 8, or kernels would read elements that lie across two words.
    return HEADER_BYTES + (place_bytes + 7) // 8 * 8
