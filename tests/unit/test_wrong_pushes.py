"""Pushes that are not what they say: the sender is told, nothing of them counts, the server goes on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.records import KeySpec, NodeId, Role, Topology
from kvstore_mpi.server.server import Server
from kvstore_mpi.transport.shared_memory import Arena
from kvstore_mpi.values.coding import CODINGS, name_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.events import Received

SIZE, SLICE = 10, 4
WORKERS = [NodeId(Role.WORKER, rank) for rank in range(2)]


class Job:
    """A server of two clients with one key of three slices, on a loop that only notes what is sent."""

    def __init__(self, dtype="float32"):
        self.sent = []

        def send(peer, message, payloads=(), *_asks):
            self.sent.append((peer, message, payloads))

        loop = SimpleNamespace(
            send=send,
            reply=lambda answer: send(*answer),
            endpoint=SimpleNamespace(bytes_in_flight=lambda _: 0),
        )
        config = NodeConfig(num_clients=2, num_workers=2, num_servers=1, slice_elements=SLICE)
        self.server = Server(config, Topology(2, 2, 1), loop, [])
        self.dtype = np.dtype(dtype)
        shard = (0, SIZE)
        create = m.Create(KeySpec(0, "w", (SIZE,), dtype), "sync", 0, shard, [shard])
        self.receive(WORKERS[0], create, [self.payload(0)])
        self.sent.clear()

    def payload(self, value, lo=0, hi=SIZE):
        return memoryview(np.full(hi - lo, value, self.dtype).tobytes())

    def receive(self, peer, message, payloads=()):
        self.server.on_event(Received(peer, message, list(payloads)), 0.0)
        self.server.on_pass(0.0)

    def push(self, client, payloads, *, runs=((0, SIZE),), sequence=1, shared=False, coding=0):
        entries = [(0, lo, hi, sequence, True) for lo, hi in runs]
        self.receive(WORKERS[client], m.Push(entries, shared, coding=coding), payloads)

    def failures(self):
        return [(peer, each.error, each.text) for peer, each, _ in self.sent if type(each) is m.Failure]

    def trains(self):
        """Check that a round comes to its sum, as if the wrong push had not come."""
        self.sent.clear()
        for client in range(2):
            self.push(client, [self.payload(client + 1)])
        answers = [(peer, b"".join(payloads)) for peer, _, payloads in self.sent]
        assert answers == [(worker, self.payload(3).tobytes()) for worker in WORKERS]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("elements", [-4, -1, 1, 4])
def test_a_payload_of_another_size(dtype, elements):
    """Longer as well as shorter, by whole slices and by less: one error, that says what came."""
    job = Job(dtype)
    wrong = np.zeros(SIZE + elements, dtype).tobytes()
    job.push(1, [memoryview(wrong)])
    ((peer, error, text),) = job.failures()
    assert (peer, error) == (WORKERS[1], "MismatchError")
    expected = SIZE * job.dtype.itemsize
    assert f"'w': elements 0 to 10 of {dtype} are {expected} bytes, but {len(wrong)} came" in text
    job.trains()


def test_nothing_of_a_message_counts_if_one_of_its_payloads_is_wrong():
    """Not what precedes it either."""
    job = Job()
    job.push(0, [job.payload(5, 0, 4), bytes(3)], runs=[(0, 4), (4, 10)])
    assert [peer for peer, _, _ in job.failures()] == [WORKERS[0]]
    job.trains()


@pytest.mark.parametrize("number", [0, 2])
def test_another_number_of_payloads_than_of_runs(number):
    """Runs without a payload would otherwise be waited for until the deadline."""
    job = Job()
    job.push(0, [job.payload(1)] * number)
    ((_, error, text),) = job.failures()
    assert (error, text) == ("MismatchError", f"a push of 1 runs came with {number} payloads")
    job.trains()


@pytest.mark.parametrize("run", [(0, 3), (4, 9), (1, 4)])
def test_runs_that_are_not_cut_as_here(run):
    """Where one begins or ends inside a slice."""
    job = Job()
    job.push(0, [job.payload(1, *run)], runs=[run])
    ((_, error, text),) = job.failures()
    assert error == "MismatchError"
    assert "slice_elements must be the same on all processes" in text


def test_nothing_of_a_message_counts_if_one_of_its_runs_is_not_cut_as_here():
    """Not even a round that would have been complete by what precedes it."""
    job = Job()
    job.push(1, [job.payload(2)])
    job.push(0, [job.payload(1, 0, 8), job.payload(1, 8, 9)], runs=[(0, 8), (8, 9)])
    assert [peer for peer, _, _ in job.failures()] == [WORKERS[0]]
    job.sent.clear()
    job.push(0, [job.payload(1)])
    answers = [(peer, b"".join(payloads)) for peer, _, payloads in job.sent]
    assert answers == [(worker, job.payload(3).tobytes()) for worker in WORKERS]


@pytest.mark.parametrize("payloads", [[], [bytes(8)], [bytes(48)], [bytes(40), bytes(40)]])
def test_an_initial_value_of_another_size_counts_for_nothing(payloads):
    """Who asks for it waits for one that is whole."""
    job = Job()
    create = m.Create(KeySpec(0, "v", (SIZE,), "float32"), "sync", 1, (0, SIZE), [(0, SIZE)])
    job.receive(WORKERS[1], m.Pull([(1, 0, SIZE, 0)]))
    job.receive(WORKERS[0], create, payloads)
    assert [(peer, error) for peer, error, _ in job.failures()] == [(WORKERS[0], "MismatchError")]
    job.sent.clear()
    job.receive(WORKERS[0], create, [job.payload(7)])
    values = [each for peer, message, each in job.sent if type(message) is m.Values and peer == WORKERS[1]]
    assert b"".join(part for each in values for part in each) == job.payload(7).tobytes()


def test_a_coding_that_is_not_known():
    """It cannot be decoded."""
    job = Job()
    job.push(0, [bytes(9)], runs=[(0, 4)], coding=99)
    ((_, error, text),) = job.failures()
    assert error == "MismatchError"
    assert "coding 99" in text
    job.trains()


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("more", [-1, 1])
def test_a_coded_payload_of_another_size(coding, more):
    """Its sender is told when it comes, not the client that completes the round."""
    job = Job()
    wrong = bytes(CODINGS[coding].num_bytes(4) + more)
    job.push(0, [wrong], runs=[(0, 4)], coding=coding)
    ((peer, error, text),) = job.failures()
    assert (peer, error) == (WORKERS[0], "MismatchError")
    form = {8: "8 bits", 4: "4 bits"}.get(coding, name_of(coding).strip("'"))
    assert f"a slice of 4 elements, compressed to {form}, came with {len(wrong)} bytes" in text
    job.trains()


def test_a_buffer_that_was_not_shared():
    """A reference without a place."""
    job = Job()
    job.push(1, [], shared=True)
    ((peer, error, text),) = job.failures()
    assert (peer, error) == (WORKERS[1], "MismatchError")
    assert "not shared" in text
    job.trains()


@pytest.mark.skipif(not Arena.available(), reason="needs anonymous memory files")
def test_a_shared_buffer_that_is_too_short():
    """It is not read beyond its end."""
    job, arena = Job(), Arena()
    buffer = arena.allocate(SIZE - 1, job.dtype)
    job.receive(WORKERS[0], m.Share(0, tuple(arena.place(buffer))))
    job.sent.clear()
    job.push(0, [], shared=True)
    ((_, _, text),) = job.failures()
    assert "40 bytes, but 36 came" in text
    job.trains()
    arena.close()
