"""What a server tells workers at the end of a pass: that pushes are applied, and values in their order."""

from __future__ import annotations

import pytest

from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.records import KeySpec, NodeId, Role, Topology
from kvstore_mpi.server.peer_buffers import PeerBuffers
from kvstore_mpi.server.records import Answer
from kvstore_mpi.server.replies import Replies
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.values.coding import Coded
from kvstore_mpi.values.row_sparse import CODING
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

ZERO, ONE = (NodeId(Role.WORKER, index) for index in range(2))


@pytest.fixture
def sent():
    return []


@pytest.fixture
def store():
    """Have one dense key of four elements, number 3."""
    store = ShardStore()
    store.allocate(m.Create(KeySpec(0, "w", (4,), "float32"), "sync", 3, (0, 4), [(0, 4)]))
    return store


@pytest.fixture
def replies(sent, store):
    return Replies(
        Topology(2, 2, 1),
        store,
        PeerBuffers(),
        sent.append,
        schedule=Schedule.P3,
        window_bytes=0,
        slice_elements=4,
        all_push=False,
    )


def end_pass(replies):
    replies.send_ready(0.0, lambda _peer: 0)


def test_neighbours_are_one_entry_and_each_is_told_once(replies, sent):
    replies.note_applied(ZERO, [(3, 0, 4, 1)])
    replies.note_applied(ONE, [(3, 0, 4, 1)])
    replies.note_applied(ZERO, [(3, 4, 8, 1), (5, 0, 4, 2)])
    assert not sent
    end_pass(replies)
    told = [Send(ZERO, m.Applied([(3, 0, 8, 1), (5, 0, 4, 2)])), Send(ONE, m.Applied([(3, 0, 4, 1)]))]
    assert sent == told
    end_pass(replies)
    assert sent == told


def test_a_worker_that_is_started_again_is_not_told_of_pushes_of_its_former_run(replies, sent):
    """It would take them for its own, or know none of the keys."""
    for peer in (ZERO, ONE):
        replies.note_applied(peer, [(3, 0, 4, 1)])
    replies.drop(ONE)
    end_pass(replies)
    assert [peer for peer, *_ in sent] == [ZERO]


@pytest.mark.parametrize("of_rows", [1, -1])
def test_of_what_leaves_together_the_most_urgent_leaves_first(replies, sent, of_rows):
    """Rows and dense slices are messages of their own; what is shared costs no time, and is first."""
    replies.put(Answer(ZERO, (3, 2, 4, 1), stable=True, shared=True, written=True, priority=-9))
    replies.put(Answer(ZERO, (3, 0, 2, 1), stable=True))
    replies.put(Answer(ZERO, (3, 0, 2, 2), stable=True, priority=of_rows, coded=Coded(b"rows", CODING)))
    end_pass(replies)
    urgent = [CODING, 0] if of_rows > 0 else [0, CODING]
    assert [(send.message.shared, send.message.coding) for send in sent] == [
        (True, 0),
        *((False, coding) for coding in urgent),
    ]
