"""A coding of quantised differences: what a compressed exchange sends instead of parameters.

A slice's difference to a *base* that both sides have (the last center that the client was sent) is scaled
by its largest absolute value and rounded to 8 or 4 bits. Both sides decode the same bytes with the same
float32 arithmetic and so get the same bits; using the decoded value instead of the exact one on both sides
keeps the sum of weight and center. What rounding leaves over stays in the client's parameters and is part
of the next difference, so that there is nothing to feed back.

The format: the scale as a little-endian float32, then one signed byte for each element, or two elements to
a byte, the first in the low half, both in two's complement. This file must not know about messages.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.values.payload_length import check_length

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

LEVELS: dict[int, int] = {8: 127, 4: 7}
"""The largest quantised absolute value, by bits: symmetric, so that zero and signs are exact."""

_SCALE = struct.Struct("<f")
_SMALLEST = 1e-35
"""Differences below this count as none: their scale would not be a normal float32."""


class QuantisedDelta:
    """The difference to the base, in 8 or 4 bits an element; see ``coding.Coding``."""

    gradients = False
    largest_error = np.inf  # what is left over stays in the parameters

    def __init__(self, bits: int) -> None:
        """Choose the bits of an element."""
        self._bits = bits
        self._levels = LEVELS[bits]

    def num_bytes(self, size: int) -> int:
        """Return the length of the payload of a slice of ``size`` elements."""
        return _SCALE.size + (size * self._bits + 7) // 8

    def check(self, payload: Any, size: int) -> None:
        """Raise where a payload is not of a slice of ``size`` elements.

        Raises:
            MismatchError: It says what came.
        """
        check_length(payload, size, self.num_bytes(size), f"{self._bits} bits")

    def encode(self, values: Array, base: Array, seen: Array) -> bytearray:
        """Return the payload for some values; fill ``seen`` with what ``decode`` makes of it."""
        difference = np.subtract(values, base, dtype=np.float32)
        largest = float(max(difference.max(), -difference.min())) if difference.size else 0.0
        scale = 0.0 if largest < _SMALLEST else largest / self._levels
        out = bytearray(self.num_bytes(difference.size))
        _SCALE.pack_into(out, 0, scale)
        target = np.frombuffer(out, np.uint8, offset=_SCALE.size)
        numbers = target.view(np.int8) if self._bits == 8 else np.zeros(2 * target.size, np.int8)  # noqa: PLR2004
        if scale and np.isfinite(scale):
            difference *= np.float32(self._levels / largest)
            np.rint(difference, out=difference)
            np.copyto(numbers[: difference.size], difference, casting="unsafe")
        _add(numbers[: difference.size], scale, base, seen, difference)
        if self._bits == 4:  # noqa: PLR2004
            _pack(numbers, target)
        return out

    def decode(self, payload: Any, base: Array, out: Array) -> None:
        """Fill ``out`` with base + difference, as both sides see it.

        Raises:
            MismatchError: The payload is not of a slice of this size.
        """
        self.check(payload, out.size)
        (scale,) = _SCALE.unpack_from(payload)
        packed = np.frombuffer(payload, np.uint8, offset=_SCALE.size)
        numbers = packed.view(np.int8) if self._bits == 8 else _unpack(packed)[: out.size]  # noqa: PLR2004
        _add(numbers, scale, base, out, np.empty(out.size, np.float32))


def _add(numbers: Array, scale: float, base: Array, out: Array, scratch: Array) -> None:
    """Fill ``out`` with base + numbers · scale; both sides go through here, or their bits would differ."""
    np.copyto(scratch, numbers)
    with np.errstate(all="ignore"):  # a difference that is not finite decodes to one that is not
        scratch *= np.float32(scale)
    np.add(base, scratch, out=out, dtype=np.result_type(base, scratch), casting="same_kind")


_PAIR = np.dtype("<u2")
"""Two signed bytes, the first in the low half on any machine: two elements are packed by one operation."""


def _pack(numbers: Array, target: Array) -> None:
    pairs = numbers.view(_PAIR) & 0x0F0F
    np.copyto(target, pairs | pairs >> 4, casting="unsafe")


def _unpack(packed: Array) -> Array:
    pairs: Array = packed.astype(_PAIR)
    pairs |= pairs << 4
    pairs &= 0x0F0F
    numbers = pairs.view(np.int8)
    numbers ^= 8  # the sign of four bits, carried into the upper half
    numbers -= 8
    return numbers
