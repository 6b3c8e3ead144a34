"""A large slice is updated in blocks that stay in the cache, and written where clients share buffers."""

from __future__ import annotations

from copy import copy
from functools import partial

import numpy as np
import pytest
from support.dense_job import NormRule

from kvstore_mpi.esgd import DCASGD, Outer, StalenessAware
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.records import KeySpec, NodeId, Role, StoreTerms, Topology
from kvstore_mpi.server.peer_buffers import PeerBuffers
from kvstore_mpi.server.records import Allocate, Answer, Fill, Remember, Update
from kvstore_mpi.server.replies import Replies
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec, build, terms_of
from kvstore_mpi.values import dense
from kvstore_mpi.values.coding import CODINGS, coding_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

LO, SIZE, CLIENTS, ROUNDS = 3, 100, 3, 4


class Server:
    """State and store of a server that has a key from ``LO`` on, in slices, or a whole tensor."""

    def __init__(
        self, name, params, *, dtype="float32", mode="sync", slices=SIZE, compress=0, half=False, held=False
    ):
        self.held = held
        lo = 0 if name == "norm" else LO
        topology = Topology(CLIENTS, CLIENTS, 1)
        self.state = ServerState(topology, slice_elements=slices, warn_after=1e3, step_timeout=1e3)
        self.store = ShardStore(CLIENTS)
        self.dtype = np.dtype(dtype)
        if name:
            hyper = HyperParameters(lr=0.25, wd=0.5)
            spec = OptimizerSpec(name=name, hyper=hyper, params=params, multi_precision=half)
            spec = WRAPPED[name].spec() if name in WRAPPED else spec
            whole = name == "norm"
            terms = StoreTerms(whole=True) if whole else terms_of(spec)._replace(compress=compress)
            self.store.set_optimizer(0, spec, NormRule() if whole else build(spec), terms)
            self.state.set_optimizer(0, spec.to_dict(), spec.hyper, terms)
        self.part = (lo, lo + SIZE)
        create = m.Create(KeySpec(0, "w", (lo + SIZE,), dtype), mode, 0, self.part, [self.part])
        self.carry_out(self.state.create(leader(0), create, [np.linspace(-1, 1, SIZE).astype(dtype).data]))

    def carry_out(self, instructions, into=()):
        """Do what the state has decided; return what is answered."""
        answers = []
        act = {
            Allocate: lambda each: self.store.allocate(each.message),
            Fill: self.store.fill,
            Remember: self.store.remember,
            Update: partial(self.update, into=into),
            Answer: answers.append,
            Send: lambda _notice: None,
        }
        for each in instructions:
            act[type(each)](each)
        return answers

    def update(self, update, into):
        """Update a unit; where that is to be so, with a sum that was made before."""
        if self.held:
            update = update._replace(summed=self.store.hold(unit_with(update))[0])
        self.store.update(update, into)

    def push(self, client, sequence, *, shared=False, coding=0, value=True):
        """Return what the state decides of a client's push of all elements."""
        random = np.random.RandomState(7 * sequence + client)
        gradient = random.normal(size=SIZE).astype(self.dtype)
        payload = gradient.view(np.uint8).data
        if coding:
            payload = CODINGS[coding].encode(gradient, np.zeros_like(gradient), np.empty_like(gradient))
        message = m.Push([(0, *self.part, sequence, value)], shared=shared, coding=coding)
        return list(self.state.rounds.push(leader(client), message, [payload], 0.0))

    @property
    def arrays(self):
        """All arrays of the key, as a snapshot has them, and what each client was sent last."""
        sent = [self.store.payload(0, *self.part, stable=False, client=each) for each in range(CLIENTS)]
        return [*(array.tobytes() for _, array in self.store.contents(0)), *sent]


def leader(client):
    return NodeId(Role.WORKER, client)


def unit_with(update):
    """Return an update's unit as it is before its round is closed."""
    unit = copy(update.unit)
    unit.contributions = dict(zip(update.clients, update.contributions))
    return unit


def trained(block, monkeypatch, shared=False, **how):
    """Train with blocks of some size; return all arrays, and the clients' buffers, if they are shared."""
    monkeypatch.setattr(dense, "_UPDATED_BLOCK", block)
    server = Server(**how)
    buffers = [np.full(LO + SIZE, -9, server.dtype) for _ in range(CLIENTS if shared else 0)]
    into = [memoryview(buffer.view(np.uint8)) for buffer in buffers]
    for sequence in range(1, ROUNDS + 1):
        for client in range(CLIENTS):
            coding = how.get("compress", 0)
            server.carry_out(server.push(client, sequence, coding=coding), into)
    return server.arrays, buffers


WRAPPED = {
    "staleness-aware": StalenessAware("sgd", learning_rate=0.5, momentum=0.5),
    "outer": Outer("sgd", learning_rate=0.5, momentum=0.5),
    "dc-asgd": DCASGD("sgd", learning_rate=0.5, lamda=0.25),
}

KINDS = [
    {"name": "", "params": {}},
    {"name": "", "params": {}, "dtype": "float16"},
    {"name": "", "params": {}, "dtype": "int64"},
    {"name": "", "params": {}, "slices": 30},
    {"name": "sgd", "params": {"momentum": 0.5}},
    {"name": "sgd", "params": {"momentum": 0.5}, "slices": 30},
    {"name": "sgd", "params": {"momentum": 0.5}, "dtype": "float16", "half": True},
    {"name": "sgd", "params": {}, "dtype": "float16"},
    {"name": "adam", "params": {}, "dtype": "float64"},
    {"name": "adam", "params": {}, "compress": coding_of("float16")},
    {"name": "ftrl", "params": {}},
    {"name": "norm", "params": {}},
    {"name": "norm", "params": {}, "slices": 30},
    {"name": "sgd", "params": {"momentum": 0.5}, "held": True},
    {"name": "staleness-aware", "params": {}, "mode": "async"},
    {"name": "dc-asgd", "params": {}, "mode": "async"},
    {"name": "elastic", "params": {"alpha": 0.3}},
    {"name": "elastic", "params": {"alpha": 0.3}, "mode": "async", "dtype": "float16"},
    {"name": "elastic", "params": {"alpha": 0.3}, "slices": 30},
    {"name": "outer", "params": {}},
    {"name": "delayed-nesterov", "params": {"num_clients": 3}, "mode": "async"},
]


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_blocks_change_no_bit(how, monkeypatch):
    """Of values, masters and states; rules that look at more than elements get all of them."""
    at_once, _ = trained(1 << 30, monkeypatch, **how)
    assert at_once[0] != np.linspace(-1, 1, SIZE).astype(how.get("dtype", "float32")).tobytes()
    assert trained(7, monkeypatch, **how)[0] == at_once


@pytest.mark.parametrize("block", [7, 50, 1 << 30])
@pytest.mark.parametrize("how", [KINDS[0], KINDS[2], KINDS[4], KINDS[6]], ids=str)
def test_the_new_value_is_written_into_all_buffers(how, block, monkeypatch):
    """At its place in the whole key, and nowhere else."""
    (value, *_), buffers = trained(block, monkeypatch, shared=True, **how)
    for buffer in buffers:
        assert buffer[LO:].tobytes() == value
        assert (buffer[:LO] == -9).all()


def decided(server, shares, *, value=True):
    """Return who gets the value with the update of a round, and which answers say that it is there."""
    for client, shared in enumerate(shares):
        instructions = server.push(client, 1, shared=shared, value=value)
    taken = [each.takers for each in instructions if type(each) is Update]
    written = [each.peer for each in instructions if type(each) is Answer and each.shared and each.written]
    return taken, written


@pytest.mark.parametrize("shares", [(True, True, True), (False, True, False), (False, False, False)])
def test_those_who_share_their_buffers_get_the_value_with_the_update(shares):
    """And no others, who are sent it."""
    sharing = [leader(client) for client, shared in enumerate(shares) if shared]
    assert decided(Server("sgd", {}), shares) == ([sharing], sharing)


def test_who_wants_no_value_gets_none():
    """What was pushed stays in its buffer."""
    assert decided(Server("sgd", {}), (True, True, True), value=False) == ([[]], [])


@pytest.mark.parametrize("slices", [SIZE, 30])
def test_what_a_client_was_sent_last_is_the_value_after_its_push(slices, monkeypatch):
    """Of each slice, under a rule that answers with the center after its update."""
    (value, *_, last), _ = trained(
        7, monkeypatch, name="delayed-nesterov", params={"num_clients": 3}, mode="async", slices=slices
    )
    assert last == value


@pytest.mark.parametrize(
    "how",
    [
        # Another client's update may come before the answer leaves.
        {"name": "sgd", "params": {}, "mode": "async"},
        # The answer is what the client is sent, and not the value.
        {"name": "elastic", "params": {"alpha": 0.3}},
        # A client may push some of the slices.
        {"name": "norm", "params": {}, "slices": 30},
    ],
    ids=str,
)
def test_other_values_are_written_when_the_answer_leaves(how):
    """Nobody takes them with the update."""
    taken, written = decided(Server(**how), (True, True, True))
    assert not any(taken)
    assert not written


def test_an_answer_writes_what_is_not_written_yet():
    """What has been is left alone; the peer is told of both in one message."""
    server, sent, buffers = Server("", {}, slices=50), [], PeerBuffers()
    place = {"schedule": Schedule.P3, "window_bytes": 0, "slice_elements": 50, "all_push": False}
    replies = Replies(Topology(CLIENTS, CLIENTS, 1), server.store, buffers, sent.append, **place)
    replies.expect_key(server.state.keys.by_id[0])
    buffer = np.full(LO + SIZE, -9, np.float32)
    buffers.views[leader(1), 0] = memoryview(buffer.view(np.uint8))
    for lo, written in ((LO, True), (LO + 50, False)):
        entry = (0, lo, lo + 50, 1)
        replies.put(Answer(leader(1), entry, stable=True, shared=True, written=written))
    replies.send_ready(0.0, lambda _peer: 0)
    assert sent == [Send(leader(1), m.Values([(0, LO, LO + SIZE, 1)], shared=True), [])]
    np.testing.assert_array_equal(buffer[: LO + 50], -9)
    np.testing.assert_array_equal(buffer[LO + 50 :], np.linspace(-1, 1, SIZE)[50:].astype(np.float32))
