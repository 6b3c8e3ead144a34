"""A tensor: the vectors of one key on all devices of a worker, as one object (MXNET-MPI, section 6.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import MismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]

_HALF = np.dtype(np.float16)


class Operation(NamedTuple):
    """What becomes of numbers that meet.

    Attributes:
        name: ``sum``, ``mean``, ``max`` or ``min``.
        ufunc: Combines two arrays; NaN passes.
        is_mean: The result is divided by the number of vectors of all ranks.
    """

    name: str
    ufunc: Any
    is_mean: bool = False


OPERATIONS = {
    "sum": Operation("sum", np.add),
    "mean": Operation("mean", np.add, is_mean=True),
    "max": Operation("max", np.maximum),
    "min": Operation("min", np.minimum),
}


class Tensor:
    """k vectors of equal length and type.

    Attributes:
        vectors: 1-D contiguous arrays, one for each device; the caller's, worked on in place.
        size: Elements of one vector.
        dtype: Element type.
    """

    def __init__(self, vectors: Sequence[Array]) -> None:
        """Put vectors together.

        Raises:
            UsageError: There is none, or one is not 1-D and contiguous.
            MismatchError: They differ in length or type.
        """
        if not vectors:
            raise UsageError("a tensor needs at least one vector")
        first = vectors[0]
        for index, vector in enumerate(vectors):
            if vector.ndim != 1 or not vector.flags.c_contiguous:
                raise UsageError(
                    f"vector {index} of a tensor must be 1-D and contiguous, not {vector.shape} with "
                    f"strides {vector.strides}; give array.reshape(-1) of a contiguous array"
                )
            if vector.size != first.size or vector.dtype != first.dtype:
                raise MismatchError(
                    f"the vectors of a tensor must be equal: vector 0 has {first.size} {first.dtype}, "
                    f"vector {index} has {vector.size} {vector.dtype}"
                )
        self.vectors = list(vectors)
        self.size: int = first.size
        self.dtype: np.dtype[Any] = first.dtype

    def segment(self, lo: int, hi: int) -> Tensor:
        """Return the same elements of all vectors, as views."""
        return Tensor([vector[lo:hi] for vector in self.vectors])


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which sums of a type are formed: float32 for floating point of 16 bits.

    ``bfloat16`` is the type that the package ml_dtypes gives to NumPy, or any other of that name.
    """
    if dtype.itemsize != _HALF.itemsize:  # a name takes 2 us
        return dtype
    return np.dtype(np.float32) if dtype == _HALF or dtype.name == "bfloat16" else dtype
