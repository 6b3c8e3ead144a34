"""Adds on the host with several threads, as OpenMP does in one of the paper's designs (section 7.3)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kvstore_mpi.tensor_collectives.local_reduce import BLOCK_BYTES, combine
from kvstore_mpi.tensor_collectives.steps import split

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from kvstore_mpi.tensor_collectives.tensor import Operation

    Array = np.ndarray[Any, Any]


class ThreadedCombine:
    """``local_reduce.combine`` by threads, each with a part of the arrays; NumPy lets them run at once."""

    def __init__(self, num_threads: int) -> None:
        """Make the threads."""
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="tensor-add")

    def __call__(
        self, targets: Sequence[Array], sources: Sequence[Array], operation: Operation, divisor: int = 1
    ) -> None:
        """Reduce arrays; the bits are those of one thread."""
        size = targets[0].size
        parts = min(self._num_threads, max(1, targets[0].nbytes // BLOCK_BYTES))
        works = [
            self._pool.submit(
                combine,
                [each[lo:hi] for each in targets],
                [each[lo:hi] for each in sources],
                operation,
                divisor,
            )
            for lo, hi in split(0, size, parts)
        ]
        for work in works:
            work.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
