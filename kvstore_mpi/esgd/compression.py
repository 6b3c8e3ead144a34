"""Quantised differences: what a compressed exchange sends in place of parameters.

A slice's difference to a *base* that both sides have (the last center that the client was sent) is scaled
by its largest absolute value and rounded to 8 or 4 bits. Both sides decode the same bytes with the same
float32 arithmetic and so get the same bits; using the decoded value in place of the exact one on both sides
keeps the sum of weight and center. What rounding leaves over stays in the client's parameters and is part
of the next difference, so that there is nothing to feed back.

The format: the scale as a little-endian float32, then one signed byte for each element, or two elements to
a byte, the first in the low half, both in two's complement. This file must not know about messages.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Dict

import numpy as np

from ..errors import MismatchError

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

LEVELS: Dict[int, int] = {8: 127, 4: 7}
"""The largest quantised absolute value, by bits: symmetric, so that zero and signs are exact."""

_SCALE = struct.Struct("<f")
_SMALLEST = 1e-35
"""Differences below this count as none: their scale would not be a normal float32."""


def compressed_bytes(size: int, bits: int) -> int:
    """Return the length of a compressed slice of ``size`` elements."""
    return _SCALE.size + (size * bits + 7) // 8


def compress(params: Array, base: Array, bits: int) -> bytearray:
    """Return the difference of parameters to their base, quantised.

    Args:
        params: 1-D, floating-point.
        base: Like ``params``; both sides have it to the bit.
        bits: 8 or 4.
    """
    difference = np.subtract(params, base, dtype=np.float32)
    largest = float(max(difference.max(), -difference.min())) if difference.size else 0.0
    levels = LEVELS[bits]
    scale = 0.0 if largest < _SMALLEST else largest / levels
    out = bytearray(compressed_bytes(difference.size, bits))
    _SCALE.pack_into(out, 0, scale)
    if scale and np.isfinite(scale):
        difference *= np.float32(levels / largest)
        np.rint(difference, out=difference)
        target = np.frombuffer(out, np.int8, offset=_SCALE.size)
        _pack(difference.astype(np.int8), target, bits)
    return out


def decompress(payload: Any, base: Array, bits: int, out: Array) -> None:
    """Fill ``out`` with base + difference, as both sides see it.

    Args:
        payload: What ``compress`` returned, as any buffer.
        base: As there.
        bits: As there.
        out: 1-D, of the size and dtype of ``base``; may be ``base``.

    Raises:
        MismatchError: The payload is not of a slice of this size.
    """
    if memoryview(payload).nbytes != compressed_bytes(out.size, bits):
        raise MismatchError(
            f"a slice of {out.size} elements, compressed to {bits} bits, came with "
            f"{memoryview(payload).nbytes} bytes; all processes must use the same compression"
        )
    (scale,) = _SCALE.unpack_from(payload)
    difference = np.empty(out.size, np.float32)
    _unpack(np.frombuffer(payload, np.int8, offset=_SCALE.size), difference, bits)
    with np.errstate(all="ignore"):  # a difference that is not finite decodes to one that is not
        difference *= np.float32(scale)
    np.add(base, difference, out=out, dtype=np.result_type(base, difference), casting="same_kind")


def _pack(values: Array, target: Array, bits: int) -> None:
    if bits == 8:  # noqa: PLR2004
        target[:] = values
        return
    low, high = values[0::2], values[1::2]
    np.bitwise_and(low, 0x0F, out=target)
    target[: high.size] |= high << 4


def _unpack(packed: Array, values: Array, bits: int) -> None:
    if bits == 8:  # noqa: PLR2004
        values[:] = packed
        return
    low, high = values[0::2], values[1::2]
    low[:] = (packed << 4) >> 4  # shifted in signed bytes, which repeats the sign
    high[:] = packed[: high.size] >> 4
