"""A server's arrays: sums, updates and optimizer states, with the real decisions in front of them."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.records import KeySpec, NodeId, Role, Topology
from kvstore_mpi.server.records import Allocate, Answer, Fill, Update
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec, build, terms_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire import state_parts
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.wire.state_parts import NO_ARRAY

SLICE = 4
DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]


class Server:
    """State and store of a server with one key, without messages."""

    def __init__(self, initial, *, clients=1, mode="sync", lo=0, spec=None):
        self.clients = clients
        topology = Topology(clients, clients, 1)
        self.state = ServerState(topology, slice_elements=SLICE, warn_after=10.0, step_timeout=600.0)
        self.store = ShardStore()
        self.values = {}
        self.dtype = initial.dtype
        self.lo, self.hi = lo, lo + initial.size
        if spec is not None:
            self.set_optimizer(spec)
        create = m.Create(
            KeySpec(0, "w", (100,), initial.dtype.name), mode, 0, (self.lo, self.hi), [(lo, self.hi)]
        )
        self.carry(self.state.create(self.leader(0), create, [initial.tobytes()]))

    @staticmethod
    def leader(client):
        return NodeId(Role.WORKER, client)

    def set_optimizer(self, spec):
        self.store.set_optimizer(0, spec, build(spec), terms_of(spec))
        self.state.set_optimizer(0, spec.to_dict(), spec.hyper, terms_of(spec))

    def carry(self, instructions):
        actions = {
            Allocate: lambda i: self.store.allocate(i.message),
            Fill: self.store.fill,
            Update: self.store.update,
            Answer: self.answer,
            Send: lambda _: None,
        }
        for instruction in instructions:
            actions[type(instruction)](instruction)

    def answer(self, answer):
        key_id, lo, hi, _ = answer.entry
        part = np.frombuffer(self.store.payload(key_id, lo, hi, stable=answer.stable), self.dtype)
        self.values[answer.peer.index][lo - self.lo : hi - self.lo] = part

    def pushpull(self, sequence, *gradients):
        """Push one gradient of each client; return what each gets."""
        for client, gradient in enumerate(gradients):
            self.values[client] = np.zeros(self.hi - self.lo, self.dtype)
            push = m.Push([(0, self.lo, self.hi, sequence, True)], shared=False)
            self.carry(
                self.state.rounds.push(self.leader(client), push, [memoryview(gradient.tobytes())], 0.0)
            )
        return [self.values[client] for client in range(len(gradients))]

    def value(self):
        return np.frombuffer(self.store.payload(0, self.lo, self.hi, stable=False), self.dtype)


def sgd(momentum=0.0, **more):
    hyper = HyperParameters(lr=more.pop("lr", 0.5))
    return OptimizerSpec(name="sgd", hyper=hyper, params={"momentum": momentum} if momentum else {}, **more)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_an_optimizer_the_value_is_the_sum(dtype):
    """In the key's own type; every client gets the same bits."""
    numbers = np.arange(10) % 3
    server = Server(np.zeros(10, dtype), clients=3)
    gradients = [(numbers + client).astype(dtype) for client in range(3)]
    results = server.pushpull(1, *gradients)
    expected = np.sum(gradients, axis=0, dtype=dtype)
    for result in results:
        np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(server.value(), expected)


def test_float16_is_summed_in_float32():
    """Large and small values of three clients are rounded once, not twice."""
    server = Server(np.zeros(1, np.float16), clients=3)
    parts = [np.array([value], np.float16) for value in (2048.0, 1.0, 1.0)]
    assert server.pushpull(1, *parts)[0][0] == np.float16(2050.0)
    assert parts[0][0] + parts[1][0] + parts[2][0] == np.float16(2048.0)


def test_one_client_gets_its_own_gradient_back():
    """The sum over one client needs no sum."""
    server = Server(np.zeros(9, np.float32), lo=8)
    gradient = np.arange(9, dtype=np.float32)
    np.testing.assert_array_equal(server.pushpull(1, gradient)[0], gradient)


def test_an_update_uses_the_optimizer_on_the_sum():
    """Momentum against its formula, over several rounds, slice by slice."""
    start = np.linspace(-1, 1, 10)
    server = Server(start.copy(), clients=2, spec=sgd(momentum=0.9))
    weight, momentum = start.copy(), np.zeros(10)
    for sequence in range(1, 5):
        gradients = [np.sin(np.arange(10) * sequence + client) for client in range(2)]
        momentum = 0.9 * momentum - 0.5 * (gradients[0] + gradients[1])
        weight += momentum
        for result in server.pushpull(sequence, *gradients):
            np.testing.assert_allclose(result, weight, rtol=1e-13)


def test_multi_precision_keeps_a_float32_copy():
    """Steps too small for float16 add up."""
    server = Server(np.ones(5, np.float16), spec=sgd(lr=1.0, multi_precision=True))
    step = np.full(5, 2.0**-12, np.float16)
    for sequence in range(1, 17):
        (result,) = server.pushpull(sequence, step)
    np.testing.assert_array_equal(result, np.full(5, 1 - 16 * 2.0**-12, np.float16))
    plain = Server(np.ones(5, np.float16), spec=sgd(lr=1.0))
    for sequence in range(1, 17):
        (result,) = plain.pushpull(sequence, step)
    np.testing.assert_array_equal(result, np.ones(5, np.float16))


def test_integers_and_optimizers_do_not_go_together():
    """The message names the key and says what to do."""
    server = Server(np.zeros(4, np.int32), spec=sgd())
    with pytest.raises(UsageError, match="'w' is int32"):
        server.pushpull(1, np.ones(4, np.int32))


@pytest.mark.parametrize("num_bytes", [5, 12, 20])
def test_an_initial_value_of_the_wrong_size_is_refused(num_bytes):
    """A longer one, too: the two sides disagree about the key."""
    server = Server(np.zeros(4, np.float32))
    create = m.Create(KeySpec(0, "v", (4,), "float32"), "sync", 1, (0, 4), [(0, 4)])
    with pytest.raises(MismatchError, match="'v'"):
        server.carry(server.state.create(server.leader(0), create, [bytes(num_bytes)]))


def test_an_empty_key_has_a_value():
    """Of no elements."""
    server = Server(np.zeros(0, np.float32), spec=sgd(momentum=0.9))
    assert server.pushpull(1, np.zeros(0, np.float32))[0].size == 0


def test_stable_values_are_not_copied_and_others_are():
    """What cannot change while it travels is sent from where it lies."""
    server = Server(np.arange(4, dtype=np.float32))
    stable = np.frombuffer(server.store.payload(0, 0, 4, stable=True), np.float32)
    copied = np.frombuffer(server.store.payload(0, 0, 4, stable=False), np.float32)
    server.pushpull(1, np.full(4, 7, np.float32))
    np.testing.assert_array_equal(stable, np.full(4, 7))
    np.testing.assert_array_equal(copied, np.arange(4))


def test_values_can_be_written_into_a_shared_buffer():
    """As they are, where they belong in the buffer of the whole key."""
    server = Server(np.arange(6, dtype=np.float32))
    target = np.zeros(6, np.float32)
    server.store.write_back(0, 2, 5, memoryview(target.view(np.uint8)))
    np.testing.assert_array_equal(target, [0, 0, 2, 3, 4, 0])


def test_a_new_optimizer_starts_with_new_states():
    """Momentum of the old one is forgotten."""
    server = Server(np.zeros(4, np.float64), spec=sgd(momentum=0.9))
    server.pushpull(1, np.ones(4))
    server.set_optimizer(sgd(momentum=0.9, lr=1.0))
    before = server.value().copy()
    np.testing.assert_allclose(server.pushpull(2, np.ones(4))[0], before - 1.0)


# --- states ---


def _states(server):
    return [(piece, bytes(data)) for piece, data in server.store.states(server.state.keys.units(0))]


@pytest.mark.parametrize("multi_precision", [False, True])
def test_states_that_are_loaded_continue_the_training(multi_precision):
    """Another server with the same states and weights makes the same next update, bit by bit."""
    start = np.linspace(-1, 1, 10).astype(np.float16)
    spec = OptimizerSpec(name="adam", hyper=HyperParameters(lr=0.1), multi_precision=multi_precision)
    first = Server(start, spec=spec)
    for sequence in range(1, 4):
        first.pushpull(sequence, np.cos(np.arange(10) + sequence).astype(np.float16))
    second = Server(first.value().copy(), spec=spec)
    for piece, data in _states(first):
        second.store.put_state(second.state.keys.unit(piece.key_id, piece.lo), piece, data)
    gradient = np.sin(np.arange(10)).astype(np.float16)
    np.testing.assert_array_equal(second.pushpull(1, gradient)[0], first.pushpull(4, gradient)[0])
    assert _states(second) == _states(first)


def test_states_travel_in_pieces(monkeypatch):
    """Large ones are cut, small ones are whole, and together they are everything once."""
    monkeypatch.setattr(state_parts, "PART_BYTES", 16)
    server = Server(np.zeros(10, np.float64), spec=sgd(momentum=0.9))
    server.pushpull(1, np.arange(10.0))
    pieces = _states(server)
    assert all(len(data) <= 16 for _, data in pieces)
    momentum = np.zeros(10)
    for piece, data in pieces:
        part = np.frombuffer(data, piece.dtype)
        start = piece.lo + piece.offset
        momentum[start : start + part.size] += part
        assert (piece.count, piece.array, piece.arrays) == (1, 0, 1)
    np.testing.assert_array_equal(momentum, -0.5 * np.arange(10))


def test_a_rule_without_states_still_has_a_count():
    """Schedules and bias corrections go on from it."""
    server = Server(np.zeros(3, np.float32), spec=sgd())
    server.pushpull(1, np.ones(3, np.float32))
    ((piece, data),) = _states(server)
    assert (piece.array, piece.count, data) == (NO_ARRAY, 1, b"")
    other = Server(np.zeros(3, np.float32), spec=sgd())
    other.store.put_state(other.state.keys.unit(0, 0), piece, data)
    assert other.state.keys.unit(0, 0).updates == 1
