"""The length of a coded payload, by which all codings of a fixed length tell whose it is not. Pure."""

from __future__ import annotations

from typing import Any

from kvstore_mpi.errors import MismatchError


def check_length(payload: Any, size: int, num_bytes: int, form: str) -> None:
    """Raise where a payload is not of a slice of ``size`` elements.

    Args:
        payload: Any buffer.
        size: Elements of the slice.
        num_bytes: How long the payload of such a slice is.
        form: What the slice was compressed to, for people.

    Raises:
        MismatchError: It says what came.
    """
    found = memoryview(payload).nbytes
    if found != num_bytes:
        raise MismatchError(
            f"a slice of {size} elements, compressed to {form}, came with {found} bytes; all processes "
            "must use the same compression"
        )
