"""A coding of gradients is one class and one line where it is registered: real workers and servers."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.esgd.terms import check_terms
from kvstore_mpi.records import Mode
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.values.coding import CODINGS, coding_of, name_of

NUMBER, SIZE, ROUNDS = 99, 10, 8
STEP = 0.25


class Steps:
    """A gradient as whole numbers of steps, a signed byte each; what is less waits for the next push."""

    gradients = True
    largest_error = np.inf

    def __init__(self):
        self.decoded = 0

    def num_bytes(self, size):
        return size

    def check(self, payload, size):
        assert len(payload) == size

    def encode(self, values, base, seen):
        steps = np.trunc((values - base) / STEP).astype(np.int8)
        seen[...] = base + steps * STEP
        return steps.tobytes()

    def decode(self, payload, base, out):
        self.decoded += 1
        out[...] = base + np.frombuffer(payload, np.int8) * STEP


@pytest.fixture
def coding(monkeypatch):
    """The one line of the registry."""
    steps = Steps()
    monkeypatch.setitem(CODINGS, NUMBER, steps)
    return steps


def sgd(**more):
    return OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0), compress=NUMBER, **more)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("ranks", "leaders"), [(1, "one"), (2, "all")])
def test_gradients_travel_coded(coding, mode, ranks, leaders):
    """Values are those of what the payloads say, and what these leave out comes with later ones."""
    gradient = np.arange(SIZE, dtype=np.float32) / 16 / ranks  # of each rank; steps of 4 of a sixteenth

    def train(worker):
        store = BlockingStore(worker, mode)
        worker.set_optimizer(store.number, sgd().to_dict())
        store.init("w", np.zeros(SIZE, np.float32))
        for _ in range(ROUNDS):
            value = store.pushpull("w", gradient)
        worker.barrier()
        return store.pull("w"), value

    network = MemoryNetwork()
    options = {"slice_elements": 4, "transport": "tcp", "leaders": leaders}
    with Cluster(network.transport, clients=2, workers_per_client=ranks, servers=1, **options) as job:
        ended = job.on_all(train)
    said = np.trunc(ROUNDS * np.arange(SIZE) / 16 / STEP) * STEP  # of one client, over all rounds
    for value, _ in ended:
        np.testing.assert_array_equal(value, -2 * said)
    assert coding.decoded == 2 * ROUNDS * 3  # clients, rounds, slices


@pytest.mark.usefixtures("coding")
def test_a_coding_of_gradients_is_not_for_parameters():
    """There the payload would have to refer to what the client was sent."""
    spec = OptimizerSpec(
        name="elastic", hyper=HyperParameters(lr=1.0), params={"alpha": 0.1}, compress=NUMBER
    )
    with pytest.raises(UsageError, match="'elastic' takes parameters"):
        check_terms(spec, Mode.SYNC, 2)
    assert check_terms(sgd(), Mode.SYNC, 2) == []
    with pytest.raises(UsageError, match="'sgd' takes gradients"):
        check_terms(OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0), compress=8), Mode.SYNC, 2)


@pytest.mark.parametrize(("compress", "digits"), [("float16", 11), ("bfloat16", 8)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_what_half_precision_rounds_comes_later(compress, digits, dtype):
    """All of it but for the last push's; keys that are no longer anyway travel as they are."""
    gradient = (np.arange(1, SIZE + 1) / 3).astype(dtype)
    network = MemoryNetwork()
    hyper = HyperParameters(lr=1.0)
    spec = OptimizerSpec(name="sgd", hyper=hyper, compress=coding_of(compress)).to_dict()

    def train(worker):
        store = BlockingStore(worker, "sync")
        worker.set_optimizer(store.number, spec)
        store.init("w", np.zeros(SIZE, dtype))
        return [store.pushpull("w", gradient).copy() for _ in range(ROUNDS)]

    with Cluster(network.transport, clients=2, servers=1, slice_elements=4, transport="tcp") as job:
        values, others = job.on_all(train)
    np.testing.assert_array_equal(values, others)
    np.testing.assert_array_equal(values[0][2], -2 * gradient[2])  # a number that is not rounded
    if dtype == "float16":
        exact = np.zeros(SIZE, dtype)
        for value in values:
            exact -= gradient + gradient
            np.testing.assert_array_equal(value, exact)
        return
    assert not np.array_equal(values[0], -2 * gradient)
    # Each client owes half a unit of its last push at most, which the last but one's remainder has made
    # little larger; besides, float32 rounds each sum.
    bound = 2.5 * gradient * 2.0**-digits + 1e-5
    assert (np.abs(values[-1] + 2.0 * ROUNDS * gradient) <= bound).all()


@pytest.mark.parametrize(("ranks", "leaders"), [(1, "one"), (2, "all")])
def test_two_bits_come_in_parts(ranks, leaders):
    """What a client's sum has beyond the threshold takes as many pushes as there are thresholds in it."""
    gradient = np.array([0, 0.25, 0.5, 1, 2, -0.25, -3], np.float32)  # of a client
    hyper = HyperParameters(lr=1.0)
    spec = OptimizerSpec(name="sgd", hyper=hyper, compress=coding_of("2bit")).to_dict()

    def train(worker):
        store = BlockingStore(worker, "sync")
        worker.set_optimizer(store.number, spec)
        store.init("w", np.zeros(gradient.size, np.float32))
        found = [store.pushpull("w", gradient / ranks).copy()]
        return found + [store.pushpull("w", np.zeros_like(gradient)).copy() for _ in range(6)]

    options = {"slice_elements": 4, "transport": "tcp", "leaders": leaders}
    network = MemoryNetwork()
    with Cluster(network.transport, clients=2, workers_per_client=ranks, servers=1, **options) as job:
        values, *others = job.on_all(train)
    said = [np.sign(gradient) * np.minimum(np.abs(gradient) // 0.5, pushes) * 0.5 for pushes in range(1, 8)]
    np.testing.assert_array_equal(values, -2 * np.array(said))
    for each in others:
        np.testing.assert_array_equal(each, values)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("names", [(None, "float16", None), ("2bit", "2bit:0.25", "2bit")])
def test_who_compresses_otherwise_than_rank_0_is_told(mode, names):
    """Before any push: sums of rounded and of exact gradients would be nobody's."""
    hyper = HyperParameters(lr=1.0)

    def give(worker):
        store = BlockingStore(worker, mode)
        store.init("w", np.zeros(SIZE, np.float32))
        compress = coding_of(names[worker.rank])
        spec = OptimizerSpec(name="sgd", hyper=hyper, compress=compress).to_dict()
        if worker.rank == 1:
            own, given = (name_of(coding_of(name)) for name in (names[1], names[0]))
            words = (
                rf"worker 1 .*'sgd' with compress={own}, and it has one with compress={given}, of rank 0"
            )
            with pytest.raises(MismatchError, match=words):
                worker.set_optimizer(store.number, spec)
        else:
            worker.set_optimizer(store.number, spec)

    with Cluster(MemoryNetwork().transport, clients=3, servers=2) as job:
        job.on_all(give)
