"""What a server tells rank 0 of a step whose gradients wait for their norm, while keys come and go."""

from __future__ import annotations

import pytest
from support.one_server import SPEC, Server, leader, only

from kvstore_mpi.records import KeySpec, StoreTerms
from kvstore_mpi.server.records import Hold
from kvstore_mpi.server_optimizers import HyperParameters
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

WHOLE = ((0, 5), (5, 8))


@pytest.fixture
def server():
    """Return one of a store that clips, with two keys."""
    server = Server(clients=1, create=False)
    server.state.set_optimizer(0, SPEC, HyperParameters(lr=1.0), StoreTerms(clip_norm=1.0))
    server.create(0, "w")
    server.create(1, "v")
    return server


def told(instructions):
    return [(each.message.value, each.message.keys) for each in only(Send, instructions)]


def push(server, key_id, sequence=1):
    """Have the client push a key, of which each slice has a sum of squares of 1; return what is told."""
    held, out = server.state.rounds.held, []
    for hold in only(Hold, server.push(0, sequence, slices=WHOLE, key_id=key_id)):
        out += held.put(hold.unit, "sum", 1.0)
    return told(out)


def elsewhere(server, key_id, key):
    """Have a key made, again if it is known, of which nothing is here."""
    message = m.Create(KeySpec(0, key, (8,), "float32"), "sync", key_id, (0, 0), [])
    return told(server.state.create(leader(0), message, []))


def test_a_step_is_told_when_all_keys_have_been_pushed(server):
    assert push(server, 0) == []
    assert push(server, 1) == [(4.0, 2)]
    assert [*server.state.rounds.release(server.state.rounds.held.take(0, 0.5), 0.0)]
    assert push(server, 1, 2) == []
    assert push(server, 0, 2) == [(4.0, 2)]


def test_it_is_told_again_with_a_key_that_has_come(server):
    """And not without it."""
    push(server, 0)
    push(server, 1)
    server.create(2, "x")
    assert push(server, 2) == [(6.0, 3)]


def test_it_is_whole_when_the_key_that_lacks_has_gone(server):
    """Nobody pushes what was here of it, and nothing else would be told of."""
    push(server, 0)
    assert elsewhere(server, 5, "v") == [(2.0, 1)]


def test_what_comes_elsewhere_is_no_reason_to_tell_it_once_more(server):
    """Rank 0 may have answered, and would take that for the next step's."""
    push(server, 0)
    assert elsewhere(server, 5, "y") == []
    assert push(server, 1) == [(4.0, 2)]
    assert elsewhere(server, 6, "z") == []
