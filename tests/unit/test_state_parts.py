"""Optimizer states between the form in which they travel and one record for each key."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.records import KeySpec, NodeId, Role, Slice
from kvstore_mpi.scheduler.placement import Placement
from kvstore_mpi.wire import state_parts as wire_pieces
from kvstore_mpi.wire.state_parts import NO_ARRAY, StatePart
from kvstore_mpi.worker import state_parts
from kvstore_mpi.worker.instructions import ReceivedPart
from kvstore_mpi.worker.records import KeyState
from kvstore_mpi.worker.state_parts import KeyStates, assemble, parts_for

SLICE = 4


def server(index):
    return NodeId(Role.SERVER, index)


class Model:
    """Keys spread over servers; whole ones stay in one place."""

    def __init__(self, sizes, *, servers=2, whole=False):
        self.servers = [server(index) for index in range(servers)]
        self.units = []
        placement = Placement(servers, SLICE)
        for key_id, (name, size) in enumerate(sizes.items()):
            key = KeyState(KeySpec(0, name, (size,), "float32"), None, None)
            key.place(key_id, placement.place(size, 4, whole=whole), SLICE)
            if whole:
                self.units.append((key, key.slices[0][0], Slice(key_id, 0, size)))
            else:
                self.units += [(key, owner, piece) for owner, piece in key.slices]

    def travel(self, states):
        """Send states to the servers and get them back, as bytes."""
        received = []
        specs = {key.key_id: key.spec for key, _, _ in self.units}
        for each in self.servers:
            messages = parts_for(each, self.units, states)
            assert [last for _, _, last in messages] == [False] * (len(messages) - 1) + [True]
            for pieces, payloads, _ in messages:
                assert len(pieces) == len(payloads)
                owned = {(unit.key_id, unit.lo) for _, owner, unit in self.units if owner == each}
                assert all((piece.key_id, piece.lo) in owned for piece in pieces)
                received += [
                    ReceivedPart(specs[piece.key_id], piece, bytes(payload))
                    for piece, payload in zip(pieces, payloads)
                ]
        return assemble(received)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key, state in one.items():
        assert state.updates == other[key].updates
        assert len(state.arrays) == len(other[key].arrays)
        for mine, theirs in zip(state.arrays, other[key].arrays):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
        if state.master is None:
            assert other[key].master is None
        else:
            np.testing.assert_array_equal(state.master, other[key].master)


@pytest.mark.parametrize("piece_bytes", [8, 1 << 20])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_states_come_back_as_they_were_sent(servers, piece_bytes, monkeypatch):
    """Whatever the number of servers and the size of pieces: two arrays, one with a master copy, none."""
    for module in (wire_pieces, state_parts):
        monkeypatch.setattr(module, "PART_BYTES", piece_bytes)
    states = {
        "adam": KeyStates(3, [np.arange(19, dtype=np.float32), np.arange(19, dtype=np.float32) ** 2], None),
        "half": KeyStates(2, [np.arange(6, dtype=np.float32)], np.linspace(0, 1, 6, dtype=np.float32)),
        "plain": KeyStates(5, [], None),
        "empty": KeyStates(1, [np.zeros(0, np.float32)], None),
    }
    model = Model({"adam": 19, "half": 6, "plain": 9, "empty": 0}, servers=servers)
    assert_same(states, model.travel(states))


def test_states_of_whole_tensors_may_have_any_length():
    """LARS keeps a number for each tensor, LAMB arrays like the weight."""
    states = {
        "a": KeyStates(4, [np.arange(11, dtype=np.float32), np.array([7.0], np.float64)], None),
        "b": KeyStates(4, [np.arange(3, dtype=np.float32), np.array([9.0], np.float64)], None),
    }
    model = Model({"a": 11, "b": 3}, whole=True)
    assert_same(states, model.travel(states))


def test_keys_without_states_are_left_out():
    """Only what is given travels; a server without any of it still ends the request."""
    states = {"b": KeyStates(1, [np.ones(2, np.float32)], None)}
    model = Model({"a": 3, "b": 2, "unknown": 1})
    assert_same(states, model.travel(states))
    (message,) = parts_for(server(0), model.units, states)
    assert message == ([], [], True)


def test_bundles_stay_below_the_bound(monkeypatch):
    """Messages are cut where the next payload would exceed it."""
    for module in (wire_pieces, state_parts):
        monkeypatch.setattr(module, "PART_BYTES", 40)
    states = {"w": KeyStates(1, [np.arange(50, dtype=np.float32)], None)}
    model = Model({"w": 50}, servers=1)
    messages = parts_for(server(0), model.units, states)
    assert all(sum(payload.nbytes for payload in payloads) <= 40 for _, payloads, _ in messages)
    assert sum(payload.nbytes for _, payloads, _ in messages for payload in payloads) == 200


def test_nothing_received_is_nothing():
    """A store without keys has no states."""
    assert assemble([]) == {}


def test_a_key_without_updates_has_an_empty_state():
    """The servers say that there is nothing but the count."""
    spec = KeySpec(0, "w", (4,), "float32")
    piece = StatePart(0, 0, 4, 0, NO_ARRAY, 0, 0, 0, "uint8")
    assert assemble([ReceivedPart(spec, piece, b"")]) == {"w": KeyStates(0, [], None)}
