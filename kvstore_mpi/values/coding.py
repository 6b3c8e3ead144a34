"""Codings: what stands on the wire instead of a slice's elements. A new one is registered here.

This file must not know when anything is sent, or what it is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.values.halves import BFloat16, Float16, Half
from kvstore_mpi.values.quantised import QuantisedDelta
from kvstore_mpi.values.two_bits import NAME, THRESHOLD, TwoBits

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    Array = np.ndarray[Any, Any]

RAW = 0
"""Stands in messages for a slice that travels as it is."""


class Coded(NamedTuple):
    """The payload of one slice, and the number of its coding in messages."""

    payload: Any
    coding: int


class Coding(Protocol):
    """Turns a slice into a payload and back, referring to a base: what both sides know of the slice.

    Attributes:
        gradients: It is for gradients, which refer to nothing: the base is zero, and what a payload does
            not say goes with the next one. Otherwise it is for parameters, and the base is what the client
            was last sent.
        largest_error: Of the rounding of an element; one that is further off was cut off.
    """

    gradients: bool
    largest_error: float

    def num_bytes(self, size: int) -> int:
        """Return the length of the payload of a slice of ``size`` elements, or a bound on it."""
        ...

    def check(self, payload: Any, size: int) -> None:
        """Raise where a payload is not one of ``size`` elements, before anything counts on it.

        Raises:
            MismatchError: It says what came, and what should have.
        """
        ...

    def encode(self, values: Array, base: Array, seen: Array) -> Any:
        """Return the payload for some values.

        Args:
            values: 1-D, floating-point.
            base: Like ``values``; both sides have it to the bit.
            seen: Filled with what ``decode`` makes of the payload; like ``base``, or ``base`` itself.
        """
        ...

    def decode(self, payload: Any, base: Array, out: Array) -> None:
        """Fill ``out`` with the values that a payload stands for.

        Args:
            payload: What ``encode`` returned, as any buffer.
            base: As there.
            out: 1-D, of the size and dtype of ``base``; may be ``base``.

        Raises:
            MismatchError: The payload is not of a slice of this size.
        """
        ...


class _Registered(NamedTuple):
    """A coding, what users call it, and its number in messages."""

    name: str
    number: int
    coding: Coding


_TWO_BITS = TwoBits(THRESHOLD)

_REGISTERED = [
    _Registered("int8", 8, QuantisedDelta(8)),
    _Registered("int4", 4, QuantisedDelta(4)),
    _Registered("float16", 16, Float16()),
    _Registered("bfloat16", 17, BFloat16()),
    _Registered(NAME, _TWO_BITS.number, _TWO_BITS),  # others have other thresholds, and numbers
]

CODINGS: dict[int, Coding] = {each.number: each.coding for each in _REGISTERED}
"""The codings that are always there, by their numbers in messages; ``numbered`` finds all."""

ROW_CODINGS: dict[int, Half] = {
    number: coding for number, coding in CODINGS.items() if isinstance(coding, Half)
}
"""Those in which rows of tables can travel: an element stands for itself, whatever was sent before."""

GRADIENT_CODINGS = [each.name for each in _REGISTERED if each.coding.gradients]
"""What users call those of gradients."""

_MANY = 1024
"""Elements, so that what a payload has besides them does not count."""

_NAMES: dict[str | None, int] = {None: RAW, "none": RAW, **{each.name: each.number for each in _REGISTERED}}


def coding_of(compress: str | None) -> int:
    """Return the number of the coding that a user names.

    Raises:
        UsageError: There is no such coding.
    """
    if compress in _NAMES:
        return _NAMES[compress]
    two_bits = TwoBits.named(compress) if isinstance(compress, str) else None
    if two_bits is None:
        names = ", ".join(repr(each.name) for each in _REGISTERED)
        raise UsageError(
            f"compress must be {names} (2bit:0.1 with another threshold) or None, not {compress!r}"
        )
    return two_bits.number


def name_of(number: int) -> str:
    """Return what users call the coding with a number, for errors."""
    two_bits = TwoBits.numbered(number)
    names = [each.name for each in _REGISTERED if each.number == number]
    return repr(two_bits.name if two_bits else names[0]) if two_bits or names else "None"


def numbered(number: int) -> Coding:
    """Return the coding with a number.

    Raises:
        MismatchError: This process does not know it, for the peer has one more.
    """
    coding = CODINGS.get(number) or TwoBits.numbered(number)
    if coding is None:
        raise MismatchError(
            f"a push came in coding {number}, which is not known here; all processes must run the same "
            "version of kvstore_mpi"
        )
    return coding


def shortens(number: int, dtype: np.dtype[Any]) -> bool:
    """Return whether elements of a type take fewer bytes in a coding; integers are never rounded."""
    return dtype.kind == "f" and numbered(number).num_bytes(_MANY) < _MANY * dtype.itemsize


def rounds_rows(number: int, dtype: np.dtype[Any]) -> bool:
    """Return whether rows of a type travel rounded in a store whose optimizer was given with a coding."""
    return number in ROW_CODINGS and shortens(number, dtype)


def check_coded(number: int, payloads: Iterable[Any], sizes: Iterable[int]) -> None:
    """Raise where the payloads of a message are not slices in a coding.

    Args:
        number: Of the coding.
        payloads: One for each slice.
        sizes: Elements of each slice.

    Raises:
        MismatchError: This process does not know the coding, for the peer has one more, or a payload is not
            of a slice of that size.
    """
    coding = numbered(number)
    for payload, size in zip(payloads, sizes):
        coding.check(payload, size)
