"""A request that comes twice: what a server's state and arrays make of it, without a loop and a network."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.esgd import DelayedNesterov, DiLoCo, Elastic, LocalSGD, Outer
from kvstore_mpi.records import KeySpec, NodeId, Role, Topology
from kvstore_mpi.server.optimizer_requests import OptimizerRequests
from kvstore_mpi.server.records import Allocate, Answer, Fill, Remember, Update
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.values.coding import CODINGS, coding_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

SIZE, SLICE = 8, 5
RULES = [Elastic(0.3), LocalSGD(), DiLoCo(), Outer("adam", learning_rate=0.1), DelayedNesterov(3)]


def draw(seed, size=SIZE):
    return np.random.RandomState(seed).normal(size=size).astype(np.float32)


def leader(client):
    return NodeId(Role.WORKER, client)


class Server:
    """State and arrays of a server, with one key of two slices, [0, 5) and [5, 8).

    Attributes:
        sent: What was sent, in order: to whom, what of the key, and the bytes.
        updates: Numbers of the updates, in order.
    """

    def __init__(self, rule, clients=3, *, mode="async", quorum=0, compress=None):
        topology = Topology(clients, clients, 1)
        self.state = ServerState(topology, slice_elements=SLICE, warn_after=10.0, step_timeout=600.0)
        self.store = ShardStore(clients)
        self.sent, self.updates = [], []
        self.bits = coding_of(compress)
        spec = {**rule.spec().to_dict(), "quorum": quorum, "quorum_wait": 0.0, "compress": self.bits}
        optimizers = OptimizerRequests(self.state, self.store)
        self._carry_out(optimizers.give(leader(0), m.SetOptimizer(1, 0, spec)))
        pieces = [(0, SLICE), (SLICE, SIZE)]
        create = m.Create(KeySpec(0, "w", (SIZE,), "float32"), mode, 0, (0, SIZE), pieces)
        self._carry_out(self.state.create(leader(0), create, [draw(99)[lo:hi].data for lo, hi in pieces]))

    def push(self, client, sequence, params, *, pieces=((0, SIZE),), value=True):
        """Push, and return what was sent meanwhile."""
        self.sent.clear()
        for lo, hi in pieces:
            cuts = [(lo, hi)]
            payloads = [params[lo:hi].tobytes()]
            if self.bits:
                cuts = [cut for cut in ((0, SLICE), (SLICE, SIZE)) if lo <= cut[0] < hi]
                payloads = [self._compressed(client, params, *cut) for cut in cuts]
            entries = [(0, *cut, sequence, value) for cut in cuts]
            message = m.Push(entries, shared=False, coding=self.bits)
            self._carry_out(self.state.rounds.push(leader(client), message, payloads, 0.0))
        return list(self.sent)

    def _compressed(self, client, params, lo, hi):
        base = np.frombuffer(self.store.payload(0, lo, hi, stable=False, client=client), np.float32)
        return bytes(CODINGS[self.bits].encode(params[lo:hi], base, np.empty_like(base)))

    def _carry_out(self, instructions):
        for each in instructions:
            kind = type(each)
            if kind is Allocate:
                self.store.allocate(each.message)
            elif kind is Fill:
                self.store.fill(each)
            elif kind is Update:
                self.updates.append(each.number)
                self.store.update(each)
            elif kind is Remember:
                self.store.remember(each)
            elif kind is Send:
                self.sent.append((each.peer, each.message, b""))
            else:
                self._answer(each)

    def _answer(self, answer):
        """Read each slice when it is sent, as a server's queue does at the latest."""
        assert type(answer) is Answer
        client = answer.peer.index if answer.base else None
        key_id, lo, hi, sequence = answer.entry
        self.store.take_coded(answer.peer.index, key_id, lo)  # once only
        payload = bytes(self.store.payload(key_id, lo, hi, stable=False, client=client))
        self.sent.append((answer.peer, (lo, hi, sequence), payload))

    def everything(self):
        """Return the center, the states of its rule and all counts."""
        arrays = [(place, array.tobytes()) for place, array in self.store.contents(0)]
        counts = [
            (*unit.pushed, *unit.applied, unit.updates, len(unit.contributions))
            for unit in self.state.keys.units(0)
        ]
        return arrays, counts


@pytest.mark.paper("MXNET-MPI equations 2 and 3")
@pytest.mark.parametrize(
    ("rule", "compress"),
    [*((rule, None) for rule in RULES), *((rule, "int8") for rule in RULES[:-1])],
    ids=repr,
)
def test_a_repeated_exchange_is_applied_once_and_answered_alike(rule, compress):
    """The same client and sequence again: nothing changes, and the same bits are sent, also when others
    have moved the center meanwhile."""
    server = Server(rule, compress=compress)
    for sequence in range(1, 4):
        params = draw(sequence)
        first = server.push(1, sequence, params)
        assert [what for _, what, _ in first] == [(0, 5, sequence), (5, 8, sequence)]
        before = server.everything()
        assert server.push(1, sequence, params) == first
        assert server.everything() == before
        server.push(0, sequence, draw(10 + sequence))
        before = server.everything()
        repeated = server.push(1, sequence, params)
        assert server.everything() == before
        if rule.spec().name == "elastic" or compress or isinstance(rule, DelayedNesterov):
            assert repeated == first
        else:  # the newest value, since no base is kept
            assert [what for _, what, _ in repeated] == [what for _, what, _ in first]
    assert server.updates == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


def test_what_is_repeated_with_other_content_is_not_looked_at():
    """Client and sequence decide, not what comes with them."""
    server = Server(Elastic(0.3))
    first = server.push(1, 1, draw(1))
    before = server.everything()
    assert server.push(1, 1, draw(2)) == first
    assert server.everything() == before


def test_an_older_exchange_is_neither_applied_nor_answered():
    """Its client has had the answer, or it would not have sent the next."""
    server = Server(Elastic(0.3))
    server.push(1, 1, draw(1))
    server.push(1, 2, draw(2))
    before = server.everything()
    assert server.push(1, 1, draw(1)) == []
    assert server.everything() == before


def test_the_sequences_of_clients_and_slices_are_their_own():
    """Two clients with the same number are two exchanges; so are two slices of one."""
    server = Server(Elastic(0.3))
    for client in range(3):
        server.push(client, 1, draw(client), pieces=((0, SLICE),))
    assert server.updates == [1, 2, 3]
    server.push(1, 1, draw(1), pieces=((SLICE, SIZE),))
    assert server.updates == [1, 2, 3, 1]


def test_a_repeated_push_without_a_value_is_told_again_that_it_counts():
    """The client waits for this word as for an answer."""
    server = Server(Elastic(0.3))
    first = server.push(1, 1, draw(1), value=False)
    assert [type(message) for _, message, _ in first] == [m.Applied, m.Applied]
    before = server.everything()
    assert server.push(1, 1, draw(1), value=False) == first
    assert server.everything() == before


@pytest.mark.parametrize("quorum", [0, 2])
def test_a_repetition_in_an_open_round_is_answered_when_the_round_is_closed(quorum):
    """Once for both; and when it is over, once more with the same."""
    server = Server(Elastic(0.2), mode="sync", quorum=quorum)
    params = [draw(client) for client in range(3)]
    assert server.push(1, 1, params[1]) == []
    assert server.push(1, 1, params[1]) == []
    assert server.push(0, 1, params[0]) == []
    last = server.push(2, 1, params[2])
    answers = {client: [each for each in last if each[0] == leader(client)] for client in range(3)}
    assert [len(answer) for answer in answers.values()] == [2, 2, 2]
    assert server.updates == [1, 1]
    center = draw(99) + np.float32(0.2) * sum(each - draw(99) for each in params)
    np.testing.assert_allclose(_value(server), center, rtol=0, atol=1e-6)
    before = server.everything()
    for client in range(3):
        assert server.push(client, 1, params[client]) == answers[client]
    assert server.everything() == before


def _value(server):
    return np.frombuffer(server.store.payload(0, 0, SIZE, stable=False), np.float32)
