"""A worker's blocking requests: each has a number, and a thread that waits for its answer.

This file must not know what is asked, or how it travels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from kvstore_mpi.wire.message import Message

if TYPE_CHECKING:
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.worker.instructions import Resolve

Parts = list[tuple[Message, Sequence[Any]]]
"""The messages that make up one request, with their payloads."""


class Requests:
    """The requests of one worker.

    The user's thread calls ``ask`` and ``barrier``, the I/O thread ``resolve``. Barriers are numbered by
    themselves, because all workers must give the n-th the same number; among the requests they have the
    negative numbers.
    """

    def __init__(
        self,
        start: Callable[[int, NodeId, Parts], None],
        wait: Callable[[Future[Any], Callable[[], str], NodeId | None], Any],
    ) -> None:
        """Start without any.

        Args:
            start: Has the I/O thread send a request.
            wait: Waits for an answer; is given words for what it waits for, and the process that answers,
                or ``None`` for all workers.
        """
        self._start = start
        self._wait = wait
        self._futures: dict[int, Future[Any]] = {}
        # The first is number 1: 0 stands in messages for which nobody waits, and an answer to those must
        # not meet a caller.
        self._asked = 0
        self._barriers = 0

    def ask(
        self, what: str, peers: Sequence[NodeId], parts_for: Callable[[int, NodeId], Parts]
    ) -> list[Any]:
        """Send a request to each peer and wait for all answers.

        Args:
            what: Words for it.
            peers: Whom to ask.
            parts_for: Makes the messages, of the request's number and the peer.
        """
        # All are asked before the first answer is waited for: servers work at the same time, and one that
        # is down holds up its own answer alone.
        futures = []
        for peer in peers:
            self._asked += 1
            future = self._new(self._asked)
            self._start(self._asked, peer, parts_for(self._asked, peer))
            futures.append((peer, future))
        return [
            self._wait(future, partial("{} on {}".format, what, peer), peer) for peer, future in futures
        ]

    def barrier(self, arrive: Callable[[int], None], what: str = "") -> None:
        """Wait until all workers have come to this barrier.

        Args:
            arrive: Has its number sent.
            what: Words for what they come for, to be followed by which barrier it is, if not for itself.
        """
        # Counted where the user calls and not where it is sent: the n-th call of every worker is the same
        # barrier, whatever else travels meanwhile.
        self._barriers += 1
        number = self._barriers
        # Before it is sent: the last one to arrive is answered at once, by the other thread.
        future = self._new(-number)
        arrive(number)
        self._wait(future, lambda: f"{what}barrier {number} of all workers", None)

    def _new(self, number: int) -> Future[Any]:
        future = self._futures[number] = Future()
        return future

    def resolve(self, answer: Resolve) -> None:
        """Hand an answer, or the error instead of it, to who waits for it."""
        # Two threads share the dictionary without a lock: a number is put in before the request is posted,
        # and taken out once.
        future = self._futures.pop(answer.request)
        # An error is raised in the caller's thread, where the user sees which call it was.
        if answer.error is None:
            future.set_result(answer.result)
        else:
            future.set_exception(answer.error)
