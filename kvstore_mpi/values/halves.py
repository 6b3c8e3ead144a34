"""Codings of two bytes an element: float16, and bfloat16, which is the upper half of a float32.

Each element is rounded by itself to the nearest number there is, of two equally near ones to the even one;
a float64 to float32 first if it becomes a bfloat16. float16 has 11 significant bits and reaches from 6e-8
to 65504; bfloat16 has 8, and reaches as far as float32. Finite elements beyond become the largest number
there is. What is infinite or no number stays so.

A dense key's rounding goes with its next gradient, as of any coding of gradients (``base.ClientResidual``).
Rows of tables have no such memory: it would be as large as the table. This file must not know about
messages, or how rows are dealt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.values.payload_length import check_length

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

_WORD = np.dtype("<u4")
_INFINITE, _QUIET_NAN = 0x7F80, 0x7FC0  # as bfloat16
_LARGEST_FLOAT16 = np.finfo(np.float16).max


class Half:
    """An element in two bytes; see ``coding.Coding``. Subclasses say in which.

    Attributes:
        wire_type: Of the elements of a payload.
    """

    gradients = True
    name: str
    largest_error: float
    wire_type: np.dtype[Any]

    def narrow(self, values: Array, out: Array) -> None:
        """Fill ``out`` with floating-point values as they travel; both of any shape, the same."""
        raise NotImplementedError

    def widen(self, elements: Array) -> Array:
        """Return what elements of ``wire_type`` stand for, in float32, as a new array."""
        raise NotImplementedError

    def num_bytes(self, size: int) -> int:
        """Return the length of the payload of a slice of ``size`` elements."""
        return size * self.wire_type.itemsize

    def check(self, payload: Any, size: int) -> None:
        """Raise where a payload is not of a slice of ``size`` elements.

        Raises:
            MismatchError: It says what came.
        """
        check_length(payload, size, self.num_bytes(size), self.name)

    def encode(self, values: Array, base: Array, seen: Array) -> memoryview:
        """Return the payload for some values; fill ``seen`` with what ``decode`` makes of it."""
        elements = np.empty(values.size, self.wire_type)
        self.narrow(values - base, elements)
        np.add(base, self.widen(elements), out=seen, casting="same_kind")
        return elements.view(np.uint8).data

    def decode(self, payload: Any, base: Array, out: Array) -> None:
        """Fill ``out`` with the base and the elements.

        Raises:
            MismatchError: The payload is not of a slice of this size.
        """
        self.check(payload, out.size)
        np.add(base, self.widen(np.frombuffer(payload, self.wire_type)), out=out, casting="same_kind")


class Float16(Half):
    """IEEE 754's half precision."""

    name = "float16"
    wire_type = np.dtype("<f2")
    largest_error = 2.0**4  # half a unit in the last place of the largest number

    def narrow(self, values: Array, out: Array) -> None:
        """See ``Half``."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.copyto(out, values, casting="same_kind")
        # Otherwise one large element would be infinite, its row no number after the next update, and the
        # model lost.
        over = np.isinf(out)
        if over.any():
            over &= np.isfinite(values)
            out[over] = np.copysign(_LARGEST_FLOAT16, values[over])

    def widen(self, elements: Array) -> Array:
        """See ``Half``."""
        return elements.astype(np.float32)


class BFloat16(Half):
    """The sign, the exponent and 7 bits of a float32."""

    name = "bfloat16"
    wire_type = np.dtype("<u2")
    largest_error = 2.0**119

    def narrow(self, values: Array, out: Array) -> None:
        """See ``Half``."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            words = values.astype("<f4").view(_WORD)
        # Half a unit of what stays, less one where what stays is even: ties go to the even one. A carry
        # goes into the exponent, as it should.
        rounding: Array = words >> 16
        rounding &= 1
        rounding += 0x7FFF
        words += rounding
        words >>= 16
        np.copyto(out, words, casting="unsafe")
        over = (out & _INFINITE) == _INFINITE
        if over.any():
            over &= np.isfinite(values)
            out[over] -= 1  # the number before infinity, of either sign
        # A carry may have made anything of these.
        out[np.isnan(values)] = _QUIET_NAN

    def widen(self, elements: Array) -> Array:
        """See ``Half``."""
        words = elements.astype(_WORD)
        words <<= 16
        wide: Array = words.view("<f4").astype(np.float32, copy=False)
        return wide
