"""A communicator that leaves everything to another one; those that do a part themselves derive from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.sums_interface import SumUnderWay

Array = np.ndarray[Any, Any]


class DelegatingCommunicator:
    """The ranks of another communicator."""

    def __init__(self, inner: Communicator) -> None:
        """Take ownership of a communicator."""
        self.rank = inner.rank
        self.size = inner.size
        self._inner = inner

    def allreduce(self, array: Array) -> None:
        """See ``interfaces.Communicator``."""
        self._inner.allreduce(array)

    def prepare_allreduce(self, array: Array) -> Callable[[], None]:
        """See ``interfaces.Communicator``."""
        return self._inner.prepare_allreduce(array)

    def begin_allreduce(self, array: Array) -> SumUnderWay | None:
        """See ``interfaces.Communicator``."""
        return self._inner.begin_allreduce(array)

    def begin_reduce(self, array: Array, root: int) -> SumUnderWay | None:
        """See ``interfaces.Communicator``."""
        return self._inner.begin_reduce(array, root)

    def begin_broadcast(self, array: Array, root: int) -> SumUnderWay | None:
        """See ``interfaces.Communicator``."""
        return self._inner.begin_broadcast(array, root)

    def reduce(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        self._inner.reduce(array, root)

    def broadcast(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        self._inner.broadcast(array, root)

    def minimum(self, number: int) -> int:
        """See ``interfaces.Communicator``."""
        return self._inner.minimum(number)

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """See ``interfaces.Communicator``."""
        return self._inner.broadcast_bytes(data, root)

    def exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """See ``interfaces.Communicator``."""
        self._inner.exchange(sends, receives)

    def library(self) -> str:
        """See ``interfaces.Communicator``."""
        return self._inner.library()

    def barrier(self, ranks: tuple[int, ...]) -> None:
        """See ``interfaces.Communicator``."""
        self._inner.barrier(ranks)

    def hosts(self) -> list[list[int]]:
        """See ``interfaces.Communicator``."""
        return self._inner.hosts()

    def local_rank(self) -> int:
        """See ``interfaces.Communicator``."""
        return self._inner.local_rank()

    def close(self) -> None:
        """See ``interfaces.Communicator``."""
        self._inner.close()
