"""Whole jobs in one process: every operation, layout and type, over memory and over sockets."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from kvstore_mpi.records import ITEMSIZES
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.transport.sockets import SocketTransport

LAYOUTS = [(1, 1, 0), (1, 3, 0), (1, 1, 1), (2, 1, 1), (2, 2, 2), (1, 4, 2), (3, 1, 2)]
"""Clients, workers of each, servers."""

SIZES = {"empty": 0, 1: 1, "bias": 7, 2: 64, "weight": 1000}
"""Elements of keys, with names of both kinds; a slice has 64."""

NETWORKS = {
    "memory": (lambda: MemoryNetwork().transport, "tcp"),
    "memory-shared": (lambda: MemoryNetwork().transport, "auto"),
    "tcp": (lambda: lambda: SocketTransport(schemes="tcp"), "tcp"),
    "ipc-shared": (lambda: lambda: SocketTransport(schemes="auto"), "auto"),
}
"""What carries messages, and whether servers work on the workers' buffers where they lie."""


def start(layout, network="memory", **config):
    make, transport = NETWORKS[network]
    clients, workers, servers = layout
    config = {"slice_elements": 64, "transport": transport, **config}
    return Cluster(make(), clients=clients, workers_per_client=workers, servers=servers, **config)


def finish(futures):
    for future in list(futures):
        future.result(30.0)


def sgd(lr, **params):
    return OptimizerSpec(name="sgd", hyper=HyperParameters(lr=lr), params=params).to_dict()


def layout_name(layout):
    return "x".join(map(str, layout))


# --- every operation ---


def _exchange_all(store, order, values, expected):
    """Push and pull all keys in two ways, each time in another order; check what comes back."""
    keys = list(values)
    order.shuffle(keys)
    finish(store.begin_pushpull(key, values[key], priority=-i) for i, key in enumerate(keys))
    for key in keys:
        np.testing.assert_array_equal(store.value(key), expected[key])
    order.shuffle(keys)
    finish(store.begin_push(key, 2 * values[key]) for key in keys)
    finish(store.begin_pull(key, priority=i) for i, key in enumerate(keys))
    for key in keys:
        np.testing.assert_array_equal(store.value(key), 2 * expected[key])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=layout_name)
def test_all_operations_give_exact_sums_in_any_order(layout, network):
    """Init, push, pull and pushpull of keys of all sizes, in another order on each worker."""
    with start(layout, network) as job:
        ranks = range(job.topology.num_workers)

        def run(worker):
            order = random.Random(worker.rank)
            store = BlockingStore(worker)
            keys = order.sample(list(SIZES), len(SIZES))
            finish(store.begin_init(key, np.full(SIZES[key], 5.0 + worker.rank)) for key in keys)
            for key in keys:
                np.testing.assert_array_equal(store.value(key), np.full(SIZES[key], 5.0))
            for number in range(3):
                ramps = {key: np.arange(SIZES[key]) * (number + 1.0) for key in keys}
                values = {key: ramp + worker.rank for key, ramp in ramps.items()}
                expected = {key: sum(ramp + rank for rank in ranks) for key, ramp in ramps.items()}
                _exchange_all(store, order, values, expected)
            worker.barrier()

        job.on_all(run)
    assert job.errors == {}


@pytest.mark.parametrize("layout", [(1, 3, 0), (2, 2, 2)], ids=layout_name)
def test_all_types_travel(layout):
    """Each in its own type, zero-dimensional and empty arrays too."""
    with start(layout) as job:
        ranks = range(job.topology.num_workers)

        def run(worker):
            store = BlockingStore(worker)
            for dtype in ITEMSIZES:
                for shape in ((3, 5), (), (0, 4)):
                    values = [np.full(shape, rank % 3, dtype) for rank in ranks]
                    key = f"{dtype} {shape}"
                    first = store.init(key, values[worker.rank])
                    assert (first.shape, first.dtype) == (shape, np.dtype(dtype))
                    result = store.pushpull(key, values[worker.rank])
                    np.testing.assert_array_equal(result, np.sum(values, axis=0, dtype=dtype))

        job.on_all(run)


def test_stores_do_not_mix():
    """The same key in several stores, of different shape and mode."""
    with start((2, 1, 2)) as job:

        def run(worker):
            one, other = BlockingStore(worker), BlockingStore(worker)
            averaging = BlockingStore(worker, "async")
            worker.set_optimizer(averaging.number, sgd(1.0))
            one.init("w", np.zeros(3))
            other.init("w", np.zeros((200, 2), np.float32))
            averaging.init("w", np.full(5, 10.0))
            np.testing.assert_array_equal(one.pushpull("w", np.full(3, 1.0)), np.full(3, 2.0))
            result = other.pushpull("w", np.full((200, 2), 3.0))
            np.testing.assert_array_equal(result, np.full((200, 2), 6.0))
            averaging.push("w", np.full(5, 1.0))
            worker.barrier()
            np.testing.assert_array_equal(averaging.pull("w"), np.full(5, 8.0))

        job.on_all(run)


def test_a_large_key_is_spread_over_all_servers():
    """Each holds a third of its slices, and all of it comes back in order."""
    with start((2, 1, 3)) as job:
        size = 64 * 30

        def run(worker):
            store = BlockingStore(worker)
            np.testing.assert_array_equal(store.init("w", np.arange(size) * 1.0), np.arange(size))
            np.testing.assert_array_equal(store.pushpull("w", np.arange(size)), 2.0 * np.arange(size))

        job.on_all(run)
        assert [len(list(server._state.keys.units(0))) for server in job.servers] == [10, 10, 10]


@pytest.mark.parametrize(("network", "travels"), [("memory", True), ("memory-shared", False)])
def test_shared_buffers_do_not_travel(network, travels):
    """On one host only references do; the values are the same."""
    with start((2, 1, 1), network) as job:
        size = 10_000

        def run(worker):
            store = BlockingStore(worker)
            store.init("w", np.zeros(size))
            worker.barrier()
            before = worker._loop.endpoint.statistics().bytes_sent
            for _ in range(5):
                np.testing.assert_array_equal(store.pushpull("w", np.ones(size)), np.full(size, 2.0))
            return worker._loop.endpoint.statistics().bytes_sent - before

        for num_bytes in job.on_all(run):
            assert (num_bytes > 5 * 8 * size) is travels


@pytest.mark.parametrize("layout", [(1, 2, 1), (2, 1, 1)], ids=layout_name)
def test_many_keys_of_many_priorities_at_once(layout):
    """Hundreds of operations under way together, as in the backward pass of a deep network."""
    with start(layout) as job:
        workers = job.topology.num_workers

        def run(worker):
            store = BlockingStore(worker)
            finish([store.begin_init(key, np.zeros(key % 90)) for key in range(150)])
            for number in range(1, 4):
                value = float(number)
                finish([store.begin_pushpull(key, np.full(key % 90, value), -key) for key in range(150)])
                for key in range(150):
                    np.testing.assert_array_equal(store.value(key), np.full(key % 90, workers * value))

        job.on_all(run)


# --- optimizers on the servers ---


@pytest.mark.parametrize("network", ["memory", "ipc-shared"])
@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 1, 1), (2, 2, 2), (3, 1, 2)], ids=layout_name)
def test_synchronous_sgd_equals_one_process(layout, network):
    """Momentum on the servers against the formula in float64, from the sum of all gradients."""
    with start(layout, network) as job:
        ranks = range(job.topology.num_workers)
        shapes = {"weight": (40, 5), "bias": (5,), 3: (1000,)}

        def gradient(rank, key, step):
            return np.sin(np.arange(np.prod(shapes[key])) + 10 * rank + step).reshape(shapes[key])

        def run(worker):
            store = BlockingStore(worker)
            worker.set_optimizer(store.number, sgd(0.1, momentum=0.9))
            weights = {key: np.ones(shape) for key, shape in shapes.items()}
            momenta = {key: np.zeros(shape) for key, shape in shapes.items()}
            finish([store.begin_init(key, weights[key]) for key in shapes])
            for step in range(6):
                finish([store.begin_pushpull(key, gradient(worker.rank, key, step)) for key in shapes])
                for key in shapes:
                    total = sum(gradient(rank, key, step) for rank in ranks)
                    momenta[key] = 0.9 * momenta[key] - 0.1 * total
                    weights[key] += momenta[key]
                    np.testing.assert_allclose(store.value(key), weights[key], rtol=1e-12)
            return {key: store.value(key).tobytes() for key in shapes}

        results = job.on_all(run)
        assert all(result == results[0] for result in results)


@pytest.mark.parametrize("layout", [(2, 1, 1), (2, 2, 2), (3, 1, 2)], ids=layout_name)
def test_asynchronous_pushes_all_count_once(layout):
    """Workers go their own way; in the end the weight has moved by the sum of everything."""
    with start(layout) as job:
        workers = job.topology.num_workers

        def run(worker):
            store = BlockingStore(worker, "async")
            worker.set_optimizer(store.number, sgd(1.0))
            store.init("w", np.zeros(200))
            seen = np.zeros(200)
            for _ in range(10):
                value = store.pushpull("w", np.full(200, 1.0))
                assert np.all(value <= seen - job.topology.client_size)
                seen = value
            worker.barrier()
            np.testing.assert_array_equal(store.pull("w"), np.full(200, -10.0 * workers))

        job.on_all(run)


def test_a_new_learning_rate_holds_from_the_next_push_on():
    """On all servers, for all slices; rank 0 decides."""
    with start((2, 1, 2)) as job:

        def run(worker):
            store = BlockingStore(worker)
            worker.set_optimizer(store.number, sgd(1.0))
            store.init("w", np.zeros(300))
            np.testing.assert_array_equal(store.pushpull("w", np.ones(300)), np.full(300, -2.0))
            if worker.rank == 0:
                worker.set_hyper(store.number, HyperParameters(lr=0.25).to_dict())
            np.testing.assert_array_equal(store.pushpull("w", np.ones(300)), np.full(300, -2.5))

        job.on_all(run)


def test_the_optimizer_may_be_set_after_the_keys():
    """Also when another client has pushed already, for which rank 0 need not wait."""
    with start((2, 1, 2)) as job:

        def run(worker):
            store = BlockingStore(worker)
            store.init("w", np.zeros(300))
            if worker.rank == 0:
                worker.barrier()
                worker.set_optimizer(store.number, sgd(1.0))
                pushed = store.begin_pushpull("w", np.ones(300))
            else:
                pushed = store.begin_pushpull("w", np.ones(300))
                worker.barrier()
            finish([pushed])
            np.testing.assert_array_equal(store.value("w"), np.full(300, -2.0))

        job.on_all(run)


def test_states_can_be_fetched_and_loaded():
    """A second job with the weights and states of the first goes on as the first does."""
    spec = OptimizerSpec(name="adam", hyper=HyperParameters(lr=0.1)).to_dict()

    def train(store, steps):
        for step in steps:
            result = store.pushpull("w", np.cos(np.arange(300) + step))
        return result

    with start((2, 1, 2)) as job:

        def run_first(worker):
            store = BlockingStore(worker)
            worker.set_optimizer(store.number, spec)
            store.init("w", np.ones(300))
            weight = train(store, range(3))
            states = worker.optimizer_states(store.number)
            worker.barrier()
            return weight, states, train(store, range(3, 6))

        weight, states, expected = job.on_all(run_first)[0]
    assert states["w"].updates == 3
    assert [array.size for array in states["w"].arrays] == [300, 300]

    with start((2, 1, 3)) as job:

        def run_second(worker):
            store = BlockingStore(worker)
            worker.set_optimizer(store.number, spec)
            store.init("w", weight)
            if worker.rank == 0:
                worker.load_optimizer_states(store.number, states)
            worker.barrier()
            return train(store, range(3, 6))

        for result in job.on_all(run_second):
            np.testing.assert_array_equal(result, expected)


# --- meeting and parting ---


@pytest.mark.parametrize("layout", [(1, 3, 0), (2, 2, 1)], ids=layout_name)
def test_a_barrier_waits_for_all_workers(layout):
    """Nobody passes before the last has come, again and again."""
    with start(layout) as job:
        arrivals = [0] * job.topology.num_workers

        def run(worker):
            for number in range(1, 6):
                arrivals[worker.rank] = number
                worker.barrier()
                assert min(arrivals) >= number
                worker.barrier()

        job.on_all(run)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_clients_leave_in_any_order(order):
    """Whoever has finished does not wait for others, and does not disturb them."""
    job = start((3, 1, 2))

    def run(worker):
        store = BlockingStore(worker)
        store.init("w", np.zeros(100))
        store.pushpull("w", np.ones(100))

    job.on_all(run)
    for rank in order:
        job.workers[rank].close()
    job.close()
    assert job.errors == {}
    assert [worker.failure() for worker in job.workers] == [None] * 3


def test_what_is_under_way_is_finished_before_the_end():
    """Close waits for pushes that nobody has waited for, on the leader and its members."""
    with start((2, 2, 1)) as job:
        pushed = []

        def run(worker):
            store = BlockingStore(worker)
            store.init("w", np.zeros(500))
            pushed.extend(store.begin_push("w", np.ones(500)) for _ in range(5))

        job.on_all(run)
    assert len(pushed) == 20
    assert all(future.done() and future.exception() is None for future in pushed)
    assert job.errors == {}


def test_a_worker_knows_where_it_stands():
    """Ranks, sizes and places of all workers of a job."""
    with start((2, 2, 1)) as job:
        places = [(w.rank, w.client, w.mpi_rank, w.local_rank) for w in job.workers]
        assert places == [(0, 0, 0, 0), (1, 0, 1, 1), (2, 1, 0, 0), (3, 1, 1, 1)]
        for worker in job.workers:
            sizes = (worker.num_workers, worker.num_clients, worker.num_servers, worker.mpi_size)
            assert sizes == (4, 2, 1, 2)


def test_jobs_run_side_by_side():
    """Ports and secrets are each job's own."""
    with start((2, 1, 1), "tcp") as one, start((2, 1, 1), "tcp") as other:

        def run(worker):
            store = BlockingStore(worker)
            store.init("w", np.zeros(3))
            return store.pushpull("w", np.ones(3))[0]

        assert one.on_all(run) == other.on_all(run) == [2.0, 2.0]
