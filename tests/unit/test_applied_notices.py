"""What a server tells workers at the end of a pass whose pushes wanted no value."""

from __future__ import annotations

import pytest

from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.records import NodeId, Role, Topology
from kvstore_mpi.server.peer_buffers import PeerBuffers
from kvstore_mpi.server.replies import Replies
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

ZERO, ONE = (NodeId(Role.WORKER, index) for index in range(2))


@pytest.fixture
def sent():
    return []


@pytest.fixture
def replies(sent):
    return Replies(
        Topology(2, 2, 1),
        ShardStore(),
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
