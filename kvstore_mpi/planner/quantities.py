"""What seconds, rates and sizes may be in a plan: whatever is beyond was given in another unit. Pure.

Within these bounds no sum or quotient of a plan is infinite, or none at all.
"""

from __future__ import annotations

from kvstore_mpi.errors import UsageError

MOST_SECONDS = 1e9
"""Thirty years."""
LEAST_SECONDS = 1e-9
"""Of a step, which takes time."""
LEAST_RATE = 1e-3
"""Of bytes or operations in a second."""
MOST_TIMES = 1e6
"""As fast, or as slow, as another device."""
MOST_BYTES = 10**15
"""Of one thing."""


def check_seconds(what: str, seconds: float) -> None:
    """Check a time.

    Raises:
        UsageError: It cannot be; the text begins with ``what`` it is.
    """
    if not 0 <= seconds <= MOST_SECONDS:
        raise UsageError(f"{what} is {seconds:g}; it must be 0 to {MOST_SECONDS:g} seconds")


def check_rate(what: str, rate: float) -> None:
    """Check how much there is in a second.

    Raises:
        UsageError: It cannot be; the text begins with ``what`` it is.
    """
    if not LEAST_RATE <= rate < float("inf"):
        raise UsageError(f"{what} is {rate:g}; it must be positive, {LEAST_RATE:g} or more, and finite")


def check_speed(what: str, speed: float) -> None:
    """Check how many times as fast a device is as the one that was measured.

    Raises:
        UsageError: It cannot be; the text begins with ``what`` it is.
    """
    if not 1 / MOST_TIMES <= speed <= MOST_TIMES:
        raise UsageError(f"{what} is {speed:g}; it must be positive, {1 / MOST_TIMES:g} to {MOST_TIMES:g}")


def check_bytes(what: str, num_bytes: int) -> None:
    """Check a size.

    Raises:
        UsageError: It cannot be; the text begins with ``what`` it is.
    """
    if not 0 <= num_bytes <= MOST_BYTES:
        raise UsageError(f"{what} is {num_bytes}; it must be 0 to {MOST_BYTES:g} bytes")
