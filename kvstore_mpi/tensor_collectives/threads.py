"""Threads that reduce on the host: several that add side by side, or one beside the thread that transfers.

MPI makes progress only while somebody calls it. With several rings one thread is in MPI for one of them,
while another reduces for the other ring: NumPy releases the interpreter's lock while it works on an array.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.local_reduce import CACHED_BYTES, HostMemory, combine
from kvstore_mpi.tensor_collectives.steps import split

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from kvstore_mpi.tensor_collectives.executor import LocalReducer
    from kvstore_mpi.tensor_collectives.tensor import Operation, Tensor

Array = np.ndarray[Any, Any]


class ThreadedCombine:
    """``local_reduce.combine`` by threads, as with OpenMP in one of the paper's designs (section 7.3)."""

    def __init__(self, num_threads: int) -> None:
        """Make the threads."""
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="tensor-add")

    def __call__(
        self, targets: Sequence[Array], sources: Sequence[Array], operation: Operation, divisor: int = 1
    ) -> None:
        """Reduce arrays; the bits are those of one thread."""
        size = targets[0].size
        count = min(self._num_threads, max(1, targets[0].nbytes // CACHED_BYTES))
        works = [
            self._pool.submit(
                combine,
                [each[lo:hi] for each in targets],
                [each[lo:hi] for each in sources],
                operation,
                divisor,
            )
            for lo, hi in split(0, size, count)
        ]
        for work in works:
            work.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


class BackgroundMemory:
    """Where tensors of NumPy arrays lie that a thread reduces; owned by one tensor group.

    Attributes:
        thread: Starts when it is needed.
    """

    def __init__(self) -> None:
        """Have a thread."""
        self.thread = ThreadPoolExecutor(1, "tensor-reduce")

    allocate = staticmethod(HostMemory.allocate)
    buffer = staticmethod(HostMemory.buffer)
    pin = staticmethod(HostMemory.pin)

    def reducer(self, tensor: Tensor, operation: Operation, into: Tensor) -> LocalReducer:
        """Make what works on a tensor."""
        return BackgroundReducer(HostMemory.reducer(tensor, operation, into), self.thread)

    def close(self) -> None:
        """End the thread."""
        self.thread.shutdown(wait=False)


class BackgroundReducer:
    """Does what another reducer does, in a thread, in the order of the calls."""

    def __init__(self, reducer: LocalReducer, thread: ThreadPoolExecutor) -> None:
        """Give a reducer to a thread."""
        self._reducer = reducer
        self._thread = thread
        self._under_way: dict[tuple[int, int], Future[None]] = {}

    def reduce(self, buffer: Array, lo: int, hi: int, incoming: Array | None) -> None:
        """Start to reduce what has come, if anything, and the vectors into a range of the buffer."""
        self._start(lo, hi, self._reducer.reduce, buffer, lo, hi, incoming)

    def share(self, buffer: Array, lo: int, hi: int) -> None:
        """Start to copy a range of the buffer to all vectors."""
        self._start(lo, hi, self._reducer.share, buffer, lo, hi)

    def wait(self, lo: int, hi: int) -> None:
        """Wait for what was started last on a range; raises what it ended with."""
        work = self._under_way.pop((lo, hi), None)
        if work is not None:
            work.result()

    def _start(self, lo: int, hi: int, call: Callable[..., None], *arguments: Any) -> None:
        self._under_way[lo, hi] = self._thread.submit(call, *arguments)
