"""A coding of two bits an element, MXNet's ``2bit``: plus or minus a threshold, or nothing yet.

What a client has not said of an element is added to its next gradient (``base.ClientResidual``). Once that
is as far from zero as the threshold, the element is sent as the threshold with its sign; so a large one
takes several pushes, as in MXNet. What is infinite or no number is sent as no number, which MXNet loses.

The format: a bit for each element that is the threshold, to whole bytes, the first element in the highest
bit; then likewise for each that is minus the threshold. Both bits stand for no number. The threshold is a
part of the coding's number in messages. This file must not know about messages.
"""

from __future__ import annotations

import contextlib
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.values.payload_length import check_length

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

NAME = "2bit"
THRESHOLD = 0.5
"""Where a user names none, as in MXNet."""

_NUMBERS = 1 << 32
"""The number of a coding is this and the bits of its threshold as a float32."""

_LARGEST = float(np.finfo(np.float32).max)


class TwoBits:
    """Gradients in two bits an element; see ``coding.Coding``.

    Attributes:
        threshold: What an element that is sent stands for, positive.
    """

    gradients = True
    largest_error = _LARGEST

    def __init__(self, threshold: float | str) -> None:
        """Choose the threshold, as a float32.

        Raises:
            UsageError: It is not a positive number, or none that a float32 can be.
        """
        with contextlib.suppress(TypeError, ValueError), np.errstate(over="ignore", under="ignore"):
            self.threshold = np.float32(threshold)
            if 0 < self.threshold <= _LARGEST:
                return
        raise UsageError(f"the threshold of {NAME!r} must be a positive number, not {threshold!r}")

    @classmethod
    def named(cls, name: str) -> TwoBits | None:
        """Return the coding that a user names ``2bit``, or ``2bit:0.1`` with a threshold; ``None`` if none.

        Raises:
            UsageError: The threshold is no positive number.
        """
        kind, colon, threshold = name.partition(":")
        if kind != NAME:
            return None
        return cls(threshold if colon else THRESHOLD)

    @staticmethod
    def numbered(number: int) -> TwoBits | None:
        """Return the coding with a number in messages, or ``None``."""
        return _made(number) if number >> 32 == 1 else None

    @property
    def number(self) -> int:
        """The coding's number in messages."""
        return _NUMBERS + int(self.threshold.view(np.uint32))

    @property
    def name(self) -> str:
        """What users call the coding."""
        return NAME if self.threshold == THRESHOLD else f"{NAME}:{self.threshold!s}"

    def num_bytes(self, size: int) -> int:
        """Return the length of the payload of a slice of ``size`` elements."""
        return 2 * _plane_bytes(size)

    def check(self, payload: Any, size: int) -> None:
        """Raise where a payload is not of a slice of ``size`` elements.

        Raises:
            MismatchError: It says what came.
        """
        check_length(payload, size, self.num_bytes(size), self.name)

    def encode(self, values: Array, base: Array, seen: Array) -> memoryview:
        """Return the payload for some values; fill ``seen`` with what ``decode`` makes of it."""
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.subtract(values, base, dtype=np.float32, casting="same_kind")
        planes = np.empty((2, difference.size), np.bool_)
        np.greater_equal(difference, self.threshold, out=planes[0])
        np.less_equal(difference, -self.threshold, out=planes[1])
        finite = np.isfinite(difference)
        if not finite.all():
            planes |= ~finite
        payload = np.packbits(planes, axis=1)
        self._add(planes.view(np.int8), base, seen)
        return payload.reshape(-1).data

    def decode(self, payload: Any, base: Array, out: Array) -> None:
        """Fill ``out`` with the base and what the payload says.

        Raises:
            MismatchError: The payload is not of a slice of this size.
        """
        self.check(payload, out.size)
        packed = np.frombuffer(payload, np.uint8).reshape(2, _plane_bytes(out.size))
        self._add(np.unpackbits(packed, axis=1, count=out.size).view(np.int8), base, out)

    def _add(self, planes: Array, base: Array, out: Array) -> None:
        """Fill ``out`` with base and elements; both sides go through here, or their bits would differ."""
        signs = planes[0] - planes[1]
        elements: Array = np.multiply(signs, self.threshold, dtype=np.float32)
        both = planes[0] & planes[1]
        if both.any():
            elements[both.view(np.bool_)] = np.nan
        np.add(base, elements, out=out, casting="same_kind")


@lru_cache(maxsize=64)  # asked for with every slice; and peers send numbers of all kinds
def _made(number: int) -> TwoBits | None:
    (threshold,) = struct.unpack("<f", struct.pack("<I", number - _NUMBERS))
    return TwoBits(threshold) if 0 < threshold <= _LARGEST else None


def _plane_bytes(size: int) -> int:
    return (size + 7) // 8
