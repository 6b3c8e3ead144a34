"""What a server answers when: urgency of what has waited, and nothing of a run that is over."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from kvstore_mpi.records import KeySpec, NodeId, Role, Topology
from kvstore_mpi.server.records import Answer, Update
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

SIZE = 4


def leader(client):
    """One worker in each client."""
    return NodeId(Role.WORKER, client)


@pytest.fixture
def server():
    """A server of two clients with one key of one slice."""
    state = ServerState(Topology(2, 2, 1), slice_elements=SIZE, warn_after=10.0, step_timeout=600.0)
    create = m.Create(KeySpec(0, "w", (SIZE,), "float32"), "sync", 0, (0, SIZE), [(0, SIZE)])
    list(state.create(leader(0), create, [bytes(4 * SIZE)]))
    return state


def push(server, client, sequence, payload, priority=0, *, value=True):
    message = m.Push([(0, 0, SIZE, sequence, value)], shared=False, priority=priority)
    return list(server.rounds.push(leader(client), message, [payload], 0.0))


def answers(instructions):
    return [(each.peer, each.priority) for each in instructions if type(each) is Answer]


def test_each_client_is_answered_with_the_priority_of_its_own_push(server):
    """Clients may rate a key differently."""
    assert push(server, 0, 1, b"a" * 16, priority=-3) == []
    assert answers(push(server, 1, 1, b"b" * 16, priority=5)) == [(leader(0), -3), (leader(1), 5)]


def test_a_pull_that_has_waited_is_as_urgent_as_it_was(server):
    """Whether its value was there at once or not."""
    push(server, 0, 1, b"a" * 16, value=False)
    asked = m.Pull([(0, 0, SIZE, 1)], priority=7)
    assert list(server.pull(leader(0), asked)) == []
    assert (leader(0), 7) in answers(push(server, 1, 1, b"b" * 16))
    assert answers(server.pull(leader(0), asked)) == [(leader(0), 7)]


def test_what_a_restarted_client_had_pushed_before_does_not_stand_for_what_it_pushes(server):
    """It counts from the start, and the round that waits is one with its new push."""
    push(server, 1, 1, b"a" * 16)
    assert server.begins(leader(1), 1) == []
    push(server, 1, 1, b"b" * 16)
    (update,) = [each for each in push(server, 0, 1, b"c" * 16) if type(each) is Update]
    assert [contribution.payloads[0] for contribution in update.contributions] == [b"c" * 16, b"b" * 16]


def test_who_is_gone_is_answered_nothing():
    """Whatever it has asked for; the server goes on."""
    with Cluster(MemoryNetwork().transport, servers=1) as cluster:
        [server], answered = cluster.servers, Future()

        def answer(_now):
            server._do([Send(leader(7), m.Ok(1))])
            answered.set_result(None)

        server._loop.post(answer)
        assert answered.result(20) is None
    assert cluster.errors == {}
