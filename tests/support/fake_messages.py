"""Messages of MPI between ranks that are threads of one process; they are seen to end in a random order."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    Array = np.ndarray[Any, Any]
    Route = tuple[int, int, int]

SEEN = 0.7
"""Of the questions whether messages have ended that are answered as soon as they have."""


class FakeNetwork:
    """Carries messages between ranks: those of one source, target and tag in order."""

    def __init__(self, size: int, deadline_s: float, seed: int = 0) -> None:
        """Start without messages; whoever waits for one for longer than that fails."""
        self.size = size
        self.deadline_s = deadline_s
        self.random = random.Random(seed)
        self.moved = threading.Condition()
        self.sent: defaultdict[Route, list[tuple[Array, FakeRequest]]] = defaultdict(list)
        self.wanted: defaultdict[Route, list[tuple[Array, FakeRequest]]] = defaultdict(list)
        self.messages: list[tuple[int, int, int, int]] = []

    def match(self, route: Route) -> None:
        """Carry what is both sent and wanted."""
        while self.sent[route] and self.wanted[route]:
            (data, gone), (space, came) = self.sent[route].pop(0), self.wanted[route].pop(0)
            assert data.nbytes == space.nbytes
            space[:] = data
            gone.ended = came.ended = True
        self.moved.notify_all()


class FakeRequest:
    """Stands for mpi4py's."""

    def __init__(self, network: FakeNetwork) -> None:
        """Note what to wait for."""
        self._network = network
        self.ended = False

    def Wait(self) -> None:  # noqa: N802  mpi4py's name
        """Wait until it has ended."""
        with self._network.moved:
            ended = self._network.moved.wait_for(lambda: self.ended, self._network.deadline_s)
            assert ended, "nothing comes any more"


class FakeComm:
    """Stands for mpi4py's communicator of one rank, for its module and for that's class of requests."""

    def __init__(self, network: FakeNetwork, rank: int) -> None:
        """Take part as this rank."""
        self._network, self._rank = network, rank
        self.questions = 0
        self.Request = self

    def Get_rank(self) -> int:  # noqa: N802  mpi4py's name
        """Return this rank's number."""
        return self._rank

    def Get_size(self) -> int:  # noqa: N802  likewise
        """Return how many there are."""
        return self._network.size

    def Isend(self, data: Array, target: int, tag: int) -> FakeRequest:  # noqa: N802  likewise
        """Begin to send."""
        with self._network.moved:
            self._network.messages.append((self._rank, target, tag, data.nbytes))
            return self._put(self._network.sent, data, (self._rank, target, tag))

    def Irecv(self, space: Array, source: int, tag: int) -> FakeRequest:  # noqa: N802  likewise
        """Begin to receive."""
        with self._network.moved:
            return self._put(self._network.wanted, space, (source, self._rank, tag))

    def _put(
        self, where: defaultdict[Route, list[tuple[Array, FakeRequest]]], array: Array, route: Route
    ) -> FakeRequest:
        request = FakeRequest(self._network)
        where[route].append((array, request))
        self._network.match(route)
        return request

    def Testall(self, requests: Sequence[FakeRequest]) -> bool:  # noqa: N802  likewise
        """Tell at times what is not known yet, as MPI does."""
        self.questions += 1
        with self._network.moved:
            return all(each.ended for each in requests) and self._network.random.random() < SEEN
