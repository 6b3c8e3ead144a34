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
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import MismatchError

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

LEVELS: dict[int, int] = {8: 127, 4: 7}
"""The largest quantised absolute value, by bits: symmetric, so that zero and signs are exact."""

_SCALE = struct.Struct("<f")
_SMALLEST = 1e-35
"""Differences below this count as none: their scale would not be a normal float32."""


def compressed_bytes(size: int, bits: int) -> int:
    """Return the length of a compressed slice of ``size`` elements."""
    return _SCALE.size + (size * bits + 7) // 8


def compress(params: Array, base: Array, bits: int, seen: Array) -> bytearray:
    """Return the difference of parameters to their base, quantised.

    Args:
        params: 1-D, floating-point.
        base: Like ``params``; both sides have it to the bit.
        bits: 8 or 4.
        seen: Filled with what ``decompress`` makes of the result; like ``base``, or ``base`` itself.
    """
    difference = np.subtract(params, base, dtype=np.float32)
    largest = float(max(difference.max(), -difference.min())) if difference.size else 0.0
    levels = LEVELS[bits]
    scale = 0.0 if largest < _SMALLEST else largest / levels
    out = bytearray(compressed_bytes(difference.size, bits))
    _SCALE.pack_into(out, 0, scale)
    target = np.frombuffer(out, np.uint8, offset=_SCALE.size)
    values = target.view(np.int8) if bits == 8 else np.zeros(2 * target.size, np.int8)  # noqa: PLR2004
    if scale and np.isfinite(scale):
        difference *= np.float32(levels / largest)
        np.rint(difference, out=difference)
        np.copyto(values[: difference.size], difference, casting="unsafe")
    _add(values[: difference.size], scale, base, seen, difference)
    if bits == 4:  # noqa: PLR2004
        _pack(values, target)
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
    packed = np.frombuffer(payload, np.uint8, offset=_SCALE.size)
    values = packed.view(np.int8) if bits == 8 else _unpack(packed)[: out.size]  # noqa: PLR2004
    _add(values, scale, base, out, np.empty(out.size, np.float32))


def _add(values: Array, scale: float, base: Array, out: Array, scratch: Array) -> None:
    """Fill ``out`` with base + values · scale; both sides go through here."""
    np.copyto(scratch, values)
    with np.errstate(all="ignore"):  # a difference that is not finite decodes to one that is not
        scratch *= np.float32(scale)
    np.add(base, scratch, out=out, dtype=np.result_type(base, scratch), casting="same_kind")


_PAIR = np.dtype("<u2")
"""Two signed bytes, the first in the low half on any machine: two elements are packed by one operation."""


def _pack(values: Array, target: Array) -> None:
    pairs = values.view(_PAIR) & 0x0F0F
    np.copyto(target, pairs | pairs >> 4, casting="unsafe")


def _unpack(packed: Array) -> Array:
    pairs: Array = packed.astype(_PAIR)
    pairs |= pairs << 4
    pairs &= 0x0F0F
    values = pairs.view(np.int8)
    values ^= 8  # the sign of four bits, carried into the upper half
    values -= 8
    return values
