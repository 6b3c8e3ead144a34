"""Where a worker lets values be written before all of their message is there."""

from __future__ import annotations

import numpy as np
import pytest
from support.one_worker import Worker, completed, server

from kvstore_mpi.records import StoreTerms
from kvstore_mpi.values.coding import CODINGS
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker import exchange_buffers
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.instructions import Write
from kvstore_mpi.worker.servers import place_of

ANSWER = m.Values([(7, 0, 8, 1), (7, 8, 10, 1)], shared=False)


def place(worker, message=ANSWER, number=0):
    return place_of(worker.state.keys.by_id, message, number)


def pushing(kind=Kind.PUSHPULL, **shape):
    """Return a worker that waits for the answer of its only server, which has all of a key."""
    worker = Worker(**shape).init("w", 7, 10)
    worker.submit(kind, "w")
    worker.flush()
    return worker


@pytest.mark.parametrize("kind", [Kind.PUSHPULL, Kind.PULL])
def test_an_answer_that_is_awaited_is_written_into_the_buffer(kind):
    """Each payload of a message to its elements; once the answer has come nothing more is."""
    worker = pushing(kind)
    assert place(worker) == "w[0:8]"
    assert place(worker, number=1) == "w[8:10]"
    assert completed(worker.hears(server(), ANSWER, ["a", "b"])) == [f"{kind.value} w"]
    assert place(worker) is None
    worker.submit(Kind.PUSHPULL, "w")
    assert place(worker) == "w[0:8]"


def test_what_was_answered_already_is_written_nowhere():
    """A second answer to the same slices would overwrite what may be in use."""
    worker = pushing()
    worker.hears(server(), m.Values([(7, 0, 8, 1)], shared=False), ["a"])
    assert place(worker) is None
    assert place(worker, number=1) == "w[8:10]"


@pytest.mark.parametrize(
    "message",
    [
        m.Values(ANSWER.entries, shared=True),
        m.Values(ANSWER.entries, shared=False, coding=min(CODINGS)),
        m.Values(ANSWER.entries, shared=False, base=True),
        m.Values([(8, 0, 8, 1)], shared=False),
        m.Applied([(7, 0, 8, 1)]),
        m.Ok(1),
    ],
)
def test_other_messages_are_written_nowhere(message):
    """What is coded or refers to something is taken apart first; and of strange keys nothing is known."""
    assert place(pushing(), message) is None


def test_where_a_server_may_be_lost_nothing_is_written_early():
    """What was pushed may have to be sent again, from the buffer."""
    assert place(pushing(mode="async")) is None
    worker = pushing()
    for terms in (StoreTerms(quorum=1), StoreTerms(params=True)):
        worker.state.keys.take_terms(0, terms)
        assert place(worker) is None
    worker.state.keys.take_terms(0, StoreTerms())
    assert place(worker) == "w[0:8]"


def test_what_was_received_in_its_place_is_not_copied():
    """The very memory; anything else is."""
    buffer = np.zeros(10, np.uint8)
    buffer.flags.writeable = False  # a copy would be an error
    view = buffer.data
    exchange_buffers.write(Write(view[2:6], view[2:6]))
    with pytest.raises(TypeError):
        exchange_buffers.write(Write(view[2:6], memoryview(bytes(4))))
