"""Codings: what stands on the wire instead of a slice's elements. A new one is registered here.

This file must not know when anything is sent, or what it is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.values.halves import BFloat16, Float16, Half
from kvstore_mpi.values.quantised import QuantisedDelta

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


_REGISTERED = [
    _Registered("int8", 8, QuantisedDelta(8)),
    _Registered("int4", 4, QuantisedDelta(4)),
    _Registered("float16", 16, Float16()),
    _Registered("bfloat16", 17, BFloat16()),
]

CODINGS: dict[int, Coding] = {each.number: each.coding for each in _REGISTERED}
"""The codings, by their numbers in messages."""

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
    if compress not in _NAMES:
        names = ", ".join(repr(each.name) for each in _REGISTERED)
        raise UsageError(f"compress must be {names} or None, not {compress!r}")
    return _NAMES[compress]


def name_of(number: int) -> str:
    """Return what users call the coding with a number, for errors."""
    return next((repr(each.name) for each in _REGISTERED if each.number == number), "None")


def shortens(number: int, dtype: np.dtype[Any]) -> bool:
    """Return whether elements of a type take fewer bytes in a coding; integers are never rounded."""
    return dtype.kind == "f" and CODINGS[number].num_bytes(_MANY) < _MANY * dtype.itemsize


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
    if number not in CODINGS:
        raise MismatchError(
            f"a push came in coding {number}, which is not known here; all processes must run the same "
            "version of kvstore_mpi"
        )
    for payload, size in zip(payloads, sizes):
        CODINGS[number].check(payload, size)
