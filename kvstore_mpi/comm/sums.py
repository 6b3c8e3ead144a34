"""Sums under way together among ranks that have a host each, of at most two messages one after the other.

A rank gets its part of an array from all others, adds, and sends all of them the sum. These are as many
bytes as of recursive halving and doubling, whose 2 log2 N messages each wait behind what the links carry
besides. Small arrays go whole to all others, which is one message. This file must not know what a sum is
for.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.comm.waits import USUAL_NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.comm.waits import Patience

Array = np.ndarray[Any, Any]

MESSAGES = 2
"""One after the other, at most."""

MOST_RANKS = 16
"""Among more ranks the messages are many and small, and sums are the library's."""

WHOLE_BYTES = 32 << 10
"""Up to here, all that a rank sends it sends at once. A link of 200 Mbit/s carries that in 1.3 ms, which is
less than what often lies before a second message in the link's queue."""

_PAIR = 2
_TAGS = 32_767
"""As far as MPI lets all tags go; 0 is left to other messages of the communicator."""


class DirectSums:
    """The sums under way of one rank."""

    def __init__(self, mpi: Any, comm: Any, patience: Patience) -> None:
        """Start without any.

        Args:
            mpi: mpi4py's module.
            comm: Its communicator, which belongs to the caller.
            patience: With which sums are waited for.
        """
        self.patience = patience
        self._mpi = mpi
        self._comm = comm
        self._rank: int = comm.Get_rank()
        self._size: int = comm.Get_size()
        self._others = [rank for rank in range(self._size) if rank != self._rank]
        self._tag = 0
        self._spaces: list[Array] = []  # for what comes: of sums that have ended
        # Under way, in the order in which they have begun: with the first message, and with the second.
        self._first: deque[DirectSum] = deque()
        self._second: deque[DirectSum] = deque()

    def begin(self, array: Array) -> DirectSum:
        """Begin a sum, which is added up in the order of the ranks.

        All ranks begin the same sums in the same order, and wait for them in this order.

        Args:
            array: 1-D and contiguous, of a type that NumPy adds as it is; overwritten.
        """
        return self._begun(self._messages(array), 2 * array.nbytes)

    def begin_reduce(self, array: Array, root: int) -> DirectSum:
        """Begin a sum as of ``begin`` that one rank gets; the others' arrays must stay as they are."""
        return self._begun(self._to_root(array, root), self._at_root(root) * array.nbytes)

    def begin_broadcast(self, array: Array, root: int) -> DirectSum:
        """Begin to overwrite an array with one rank's, in order with sums."""
        return self._begun(self._from_root(array, root), self._at_root(root) * array.nbytes)

    def _begun(self, messages: Iterator[list[Any]], num_bytes: int) -> DirectSum:
        one = DirectSum(self, messages, next(messages), num_bytes)
        self._first.append(one)
        return one

    def _at_root(self, root: int) -> int:
        """Return how many messages this rank sends or gets."""
        return len(self._others) if self._rank == root else 1

    def take_further(self) -> None:
        """Begin what follows messages that have come and gone; never waits."""
        # They come about in the order in which they have left, and each question is a look at all of the
        # rank's connections: of what is behind the first that is not here, nothing is asked.
        for under_way in (self._first, self._second):
            while under_way and self._mpi.Request.Testall(under_way[0].requests):
                self._go_on(under_way.popleft())

    def _go_on(self, one: DirectSum) -> None:
        """The messages of a sum that were under way have come and gone: begin what follows, or end it."""
        one.requests = next(one.messages, [])
        if one.requests:
            self._second.append(one)
        else:
            self.patience.took(one.num_bytes, time.monotonic() - one.began)

    def _messages(self, array: Array) -> Iterator[list[Any]]:
        """Yield the requests of one sum, those together that are under way at once."""
        ranks, elements = self._size, array.size
        whole = ranks == _PAIR or array.nbytes * len(self._others) <= WHOLE_BYTES
        bounds = [elements * rank // ranks for rank in range(ranks + 1)]
        parts = [array if whole else array[lo:hi] for lo, hi in pairwise(bounds)]
        mine, theirs = parts[self._rank], [parts[rank] for rank in self._others]
        # Both, when the sum is begun: in the same order on all ranks, whichever sum then is the first to
        # come to its second message.
        first, second = self._next_tag(), self._next_tag()
        space, came = self._take_spaces(mine.nbytes)
        yield self._receive(came, first) + self._send(theirs, first)
        add_in_order(mine, [each.view(array.dtype) for each in came], self._rank)
        self._spaces.append(space)
        if not whole:
            yield self._receive(theirs, second) + self._send([mine] * len(theirs), second)

    def _to_root(self, array: Array, root: int) -> Iterator[list[Any]]:
        tag = self._next_tag()
        if self._rank != root:
            yield [self._comm.Isend(array.view(np.uint8), root, tag)]
            return
        space, came = self._take_spaces(array.nbytes)
        yield self._receive(came, tag)
        add_in_order(array, [each.view(array.dtype) for each in came], root)
        self._spaces.append(space)

    def _from_root(self, array: Array, root: int) -> Iterator[list[Any]]:
        tag = self._next_tag()
        if self._rank == root:
            yield self._send([array] * len(self._others), tag)
        else:
            yield [self._comm.Irecv(array.view(np.uint8), root, tag)]

    def _receive(self, spaces: Sequence[Array], tag: int) -> list[Any]:
        """Begin to receive from all others, in order."""
        receive = self._comm.Irecv
        return [receive(each.view(np.uint8), rank, tag) for rank, each in zip(self._others, spaces)]

    def _send(self, arrays: Sequence[Array], tag: int) -> list[Any]:
        """Begin to send to all others, in order."""
        send = self._comm.Isend
        return [send(each.view(np.uint8), rank, tag) for rank, each in zip(self._others, arrays)]

    def _take_spaces(self, num_bytes: int) -> tuple[Array, list[Array]]:
        """Return memory for as many bytes from each of the others, and each one's part of it."""
        space = self._take_space(num_bytes * len(self._others))
        return space, [space[num_bytes * place :][:num_bytes] for place in range(len(self._others))]

    def _take_space(self, num_bytes: int) -> Array:
        """Return memory of a sum that has ended, if there is enough of it."""
        fitting = [place for place, space in enumerate(self._spaces) if space.nbytes >= num_bytes]
        return self._spaces.pop(fitting[0]) if fitting else np.empty(num_bytes, np.uint8)

    def _next_tag(self) -> int:
        self._tag = self._tag % _TAGS + 1
        return self._tag


class DirectSum:
    """See ``sums_interface.SumUnderWay``.

    Attributes:
        messages: Yields what it has under way next.
        requests: What it has under way.
        num_bytes: That it sends and receives.
        began: When.
    """

    def __init__(
        self, sums: DirectSums, messages: Iterator[list[Any]], requests: list[Any], num_bytes: int
    ) -> None:
        """Note what is under way, as one of these sums."""
        self.messages = messages
        self.requests = requests
        self.num_bytes = num_bytes
        self.began = time.monotonic()
        self._sums = sums

    def pause_s(self) -> float:
        """See ``sums_interface.SumUnderWay``."""
        return pause_s(self._sums.patience, self.num_bytes)

    def has_ended(self) -> bool:
        """See ``sums_interface.SumUnderWay``."""
        self._sums.take_further()
        return not self.requests

    def wait(self) -> None:
        """See ``sums_interface.SumUnderWay``."""
        if not self.requests:
            return
        with self._sums.patience.late_timers(self.num_bytes):
            while self.requests:
                # One by one: MPICH sleeps while it waits for one or for all, and polls while for any.
                for request in self.requests:
                    request.Wait()
                    self._sums.take_further()


class LibrarySum:
    """See ``sums_interface.SumUnderWay``: one that the library takes further in each of its calls."""

    def __init__(self, request: Any, num_bytes: int, patience: Patience) -> None:
        """Note what is under way, and with which patience it is waited for."""
        self._request = request
        self._num_bytes = num_bytes
        self._patience = patience
        self._began = time.monotonic()
        self._ended = False

    def pause_s(self) -> float:
        """See ``sums_interface.SumUnderWay``."""
        return pause_s(self._patience, self._num_bytes)

    def has_ended(self) -> bool:
        """See ``sums_interface.SumUnderWay``."""
        if not self._ended and self._request.Test():
            self._end()
        return self._ended

    def wait(self) -> None:
        """See ``sums_interface.SumUnderWay``."""
        if not self._ended:
            with self._patience.late_timers(self._num_bytes):
                self._request.Wait()
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._patience.took(self._num_bytes, time.monotonic() - self._began)


def pause_s(patience: Patience, num_bytes: int) -> float:
    """Return for how many seconds nobody needs to ask whether a sum has ended."""
    slack = patience.slack_ns(num_bytes)
    # Short ones are waited for in MPI: a Python call for each time that it looks would take longer.
    return 1e-9 * slack if slack > USUAL_NS else 0.0


def add_in_order(own: Array, others: Sequence[Array], rank: int) -> None:
    """Add what came from all other ranks to what a rank has, in the order of the ranks.

    So a sum has the same bits on whatever rank it is formed: of two NaNs the first one's stay. Pure but for
    what it overwrites.

    Args:
        own: Of this rank; overwritten by the sum.
        others: Of the other ranks, in order; the first may be overwritten.
        rank: This one's number.
    """
    before, after = others[:rank], others[rank:]
    if before:
        [total, *more] = before
        for each in more:
            np.add(total, each, out=total)
        np.add(total, own, out=own)
    for each in after:
        np.add(own, each, out=own)
