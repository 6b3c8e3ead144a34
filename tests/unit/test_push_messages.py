"""What a worker pushes: messages as urgent as their slices, compressed or not, and answered once."""

from __future__ import annotations

import pytest
from support.one_worker import Worker, only

from kvstore_mpi.records import StoreTerms
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.collectives import Kind


class Base:
    """Compresses the slices that begin early in the key, each to two bytes."""

    def coding_of(self, lo):
        return 8 if lo < 8 else 0

    def num_bytes(self, lo, hi):
        return 2 if self.coding_of(lo) else 4 * (hi - lo)

    def encode(self, lo, hi):
        return bytes([lo, hi])


def pushes(worker):
    return [send.message for send in only(Send, worker.flush())]


def test_a_message_is_as_urgent_as_its_most_urgent_slice():
    """Slices of several keys share one; what is in it would otherwise wait for less urgent ones."""
    worker = Worker().init("a", 0).init("b", 1)
    worker.submit(Kind.PUSHPULL, "a", priority=-5)
    worker.submit(Kind.PUSHPULL, "b", priority=-2)
    (message,) = pushes(worker)
    assert [entry[:2] for entry in message.entries] == [(1, 0), (0, 0)]
    assert message.priority == -2


def test_what_is_compressed_has_a_message_of_its_own_and_the_same_priority():
    """The two differ in what their payloads are, and in nothing else."""
    worker = Worker().init("w", size=16)
    worker.state.keys.by_name[0, "w"].base = Base()
    worker.submit(Kind.PUSHPULL, "w", priority=-3)
    sends = only(Send, worker.flush())
    assert [(send.message.coding, send.message.priority) for send in sends] == [(8, -3), (0, -3)]
    assert [entry[1:3] for send in sends for entry in send.message.entries] == [(0, 4), (4, 8), (8, 16)]
    assert sends[0].payloads == [bytes([0, 4]), bytes([4, 8])]


@pytest.mark.parametrize("repeats", [1, 3])
def test_an_answer_to_an_exchange_counts_once(repeats):
    """It may be sent again; the second one finishes no slice of what follows."""
    worker = Worker(mode="async").init("w", size=10)
    worker.state.keys.take_terms(0, StoreTerms(params=True))
    worker.submit(Kind.PUSHPULL, "w")
    key = worker.state.keys.by_name[0, "w"]
    taken = [
        [(lo, hi) for _, lo, hi, _ in key.missing(0, 8, 1, None, answers_push=True)] for _ in range(repeats)
    ]
    assert taken == [[(0, 4), (4, 8)]] + [[]] * (repeats - 1)
    assert list(key.missing(8, 10, 0, None, answers_push=True)) == []  # answers another push
