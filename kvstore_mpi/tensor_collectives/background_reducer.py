"""Local reductions on the host in a thread of their own, so that the thread that transfers can go on.

MPI makes progress only while somebody calls it. With several rings one thread is in MPI for one of them,
and this one reduces for another: NumPy lets go of the interpreter for as long as an array takes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.local_reduce import HostMemory

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from kvstore_mpi.tensor_collectives.executor import LocalReducer
    from kvstore_mpi.tensor_collectives.tensor import Operation, Tensor

Array = np.ndarray[Any, Any]


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
    copy = staticmethod(HostMemory.copy)
    combine = staticmethod(HostMemory.combine)

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
