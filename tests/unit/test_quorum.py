"""Rounds with a quorum: how many clients begin the wait, how long it is, and who counts."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.esgd import LocalSGD
from kvstore_mpi.records import KeySpec, NodeId, Role, Topology
from kvstore_mpi.server.optimizer_requests import OptimizerRequests
from kvstore_mpi.server.records import Answer, Update
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.wire import messages as m

SIZE = 4
WAIT = 2.5


def leader(client):
    """One worker in each client."""
    return NodeId(Role.WORKER, client)


class Server:
    """A server with one key of one slice, whose rounds have a quorum.

    Attributes:
        rounds: The clients of each round that has been closed, and whom it has answered.
    """

    def __init__(self, clients, quorum):
        self.state = ServerState(
            Topology(clients, clients, 1), slice_elements=SIZE, warn_after=10.0, step_timeout=600.0
        )
        self.rounds = []
        spec = {**LocalSGD().spec().to_dict(), "quorum": quorum, "quorum_wait": WAIT}
        optimizers = OptimizerRequests(self.state, ShardStore(clients))
        self._note(optimizers.give(leader(0), m.SetOptimizer(1, 0, spec)))
        create = m.Create(KeySpec(0, "w", (SIZE,), "float32"), "sync", 0, (0, SIZE), [(0, SIZE)])
        self._note(self.state.create(leader(0), create, [np.zeros(SIZE, np.float32).data]))

    def push(self, client, sequence, now=0.0):
        message = m.Push([(0, 0, SIZE, sequence, True)], shared=False)
        self._note(self.state.rounds.push(leader(client), message, [bytes(4 * SIZE)], now))

    def lose(self, client, now=0.0):
        self._note(
            self.state.gone(m.PeerGone(str(leader(client)), "killed", orderly=False, returns=True), now)
        )

    def close(self, now):
        self._note(self.state.rounds.close_due(now))

    def _note(self, instructions):
        out = list(instructions)
        answered = [each.peer.index for each in out if type(each) is Answer]
        self.rounds += [(list(each.clients), answered) for each in out if type(each) is Update]


def test_with_everybody_there_is_nothing_to_wait_for():
    """The round is closed by the last push."""
    server = Server(3, quorum=2)
    for client in (2, 0, 1):
        assert server.rounds == []
        server.push(client, 1)
    assert server.rounds == [([0, 1, 2], [0, 1, 2])]
    assert server.state.rounds.next_deadline() is None


@pytest.mark.parametrize("quorum", [1, 2, 3])
def test_the_wait_begins_when_as_many_as_the_quorum_have_pushed(quorum):
    """Not one earlier; it is not begun anew by clients that come meanwhile."""
    server = Server(4, quorum)
    for client in range(3):
        server.push(client, 1, now=float(client))
        begun = client + 1 >= quorum
        assert server.state.rounds.next_deadline() == (quorum - 1 + WAIT if begun else None)


def test_the_round_is_closed_without_those_who_are_late():
    """When the wait is over and not before; who is late opens the next round, and waits as long."""
    server = Server(3, quorum=2)
    server.push(0, 1, now=1.0)
    server.push(2, 1, now=2.0)
    server.close(2.0 + WAIT - 0.1)
    assert server.rounds == []
    server.close(2.0 + WAIT)
    assert server.rounds == [([0, 2], [0, 2])]
    assert server.state.rounds.next_deadline() is None
    server.push(1, 1, now=9.0)  # the others have pushed as often: they count
    assert server.state.rounds.next_deadline() == 9.0 + WAIT
    server.close(9.0 + WAIT)
    assert server.rounds[1:] == [([1], [1])]


def test_who_has_pushed_less_often_does_not_count():
    """A client that is ahead alone does not begin the wait."""
    server = Server(3, quorum=2)
    for client in range(3):
        server.push(client, 1)
    server.push(1, 2)
    assert server.state.rounds.next_deadline() is None
    server.push(0, 2, now=3.0)
    assert server.state.rounds.next_deadline() == 3.0 + WAIT


def test_nobody_waits_for_a_client_that_is_down():
    """Its loss closes the round that waits for it alone, and later ones do without it."""
    server = Server(3, quorum=2)
    server.push(0, 1)
    server.lose(1, now=1.0)
    assert server.rounds == []
    server.push(2, 1)
    assert server.rounds == [([0, 2], [0, 2])]
    server.push(0, 2)
    server.push(2, 2)
    assert server.rounds[1:] == [([0, 2], [0, 2])]


def test_the_wait_of_a_client_that_is_started_again_is_over():
    """Nothing of its round is left, so that nothing is due; its next push waits for as long as any."""
    server = Server(2, quorum=1)
    server.push(1, 1, 0.0)
    server.lose(1, 1.0)
    server.state.begins(leader(1), 1)
    assert server.state.rounds.next_deadline() is None
    server.close(3.0)
    server.push(1, 1, 4.0)
    assert server.state.rounds.next_deadline() == 4.0 + WAIT
    assert server.rounds == []


def test_a_round_that_has_lost_a_push_waits_for_the_quorum_anew():
    """What is left of it is fewer than the quorum; while it is enough, the moment stays."""
    server = Server(4, quorum=2)
    for client in range(3):
        server.push(client, 1, now=float(client))
    server.lose(2, 3.0)
    server.state.begins(leader(2), 1)
    assert server.state.rounds.next_deadline() == 1.0 + WAIT
    server.lose(1, 3.0)
    server.state.begins(leader(1), 1)
    assert server.state.rounds.next_deadline() is None
    server.push(3, 1, now=5.0)
    server.close(5.0 + WAIT)
    assert server.rounds == [([0, 3], [0, 3])]
