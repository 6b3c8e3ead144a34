"""Exchanges with the center in whole jobs in one process, over memory and over shared memory."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.elastic_client import elastic_step
from support.exchange_job import SIZE, open_center, params_of, spec_of, start

from kvstore_mpi.errors import MismatchError, UnsupportedError, UsageError
from kvstore_mpi.esgd import DCASGD, DiLoCo, Elastic, LocalSGD, Outer, StalenessAware
from kvstore_mpi.server_optimizers import OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore

TRANSPORTS = ("tcp", "auto")
"""Whether servers work on the workers' buffers where they lie (``auto``)."""


# --- what an exchange is ---


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.paper("MXNET-MPI equations 2 and 3")
def test_alpha_1_swaps(mode, transport):
    """EASGD with alpha = 1 and one client: the center before comes back, the parameters stay."""
    with start(1, servers=2, transport=transport) as job:

        def run(worker):
            store = open_center(worker, Elastic(1.0), mode)
            for seed in range(3):
                before = store.pull("w")
                center = store.pushpull("w", params_of(seed))
                np.testing.assert_array_equal(center, before)
                np.testing.assert_allclose(store.pull("w"), params_of(seed), rtol=1e-6, atol=1e-7)

        job.on_all(run)


@pytest.mark.paper("MXNET-MPI equations 2 and 3")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_alpha_0_changes_nothing(mode, transport):
    """The center's bits stay."""
    with start(2, transport=transport) as job:

        def run(worker):
            store = open_center(worker, Elastic(0.0), mode)
            for seed in range(3):
                center = store.pushpull("w", params_of(worker.rank + 10 * seed))
                np.testing.assert_array_equal(center, params_of(99))
            np.testing.assert_array_equal(store.pull("w"), params_of(99))

        job.on_all(run)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("compress", [None, "int8", "int4"])
@pytest.mark.parametrize(("mode", "clients", "alpha"), [("async", 3, 0.7), ("sync", 3, 0.3)])
@pytest.mark.paper("EASGD section 2")
def test_parameters_and_center_conserve_their_sum(mode, clients, alpha, compress, transport):
    """MXNET-MPI equations 2 and 3 move both by the same, with the decoded values where it is compressed."""
    with start(clients, servers=2, transport=transport) as job:
        weights = [params_of(client) for client in range(clients)]
        total = np.sum(weights, axis=0, dtype=np.float64) + params_of(99)
        centers = {}

        def run(worker):
            store = open_center(worker, Elastic(alpha), mode, compress=compress)
            weight = weights[worker.client]
            for _ in range(12):
                elastic_step(weight, store.pushpull("w", weight), alpha)
            worker.barrier()
            centers[worker.rank] = store.pull("w")

        job.on_all(run)
        found = np.sum(weights, axis=0, dtype=np.float64) + centers[0]
        np.testing.assert_allclose(found, total, atol=5e-6)
        if mode == "sync":  # all have come closer
            assert max(np.abs(weight - centers[0]).max() for weight in weights) < 0.1


@pytest.mark.parametrize("leaders", ["one", "all"])
@pytest.mark.parametrize("compress", [None, "int8"])
@pytest.mark.parametrize(("clients", "workers"), [(1, 2), (2, 2), (1, 3)])
@pytest.mark.paper("MXNET-MPI section 6")
def test_ranks_are_averaged_and_get_the_same_bits(clients, workers, compress, leaders):
    """The client's parameters count once however many ranks it has, and all see the same center."""
    with start(clients, workers, servers=2, leaders=leaders) as job:
        seen = {}

        def run(worker):
            store = open_center(worker, Elastic(1.0), compress=compress)
            weight = params_of(worker.client)
            centers = [store.pushpull("w", weight) for _ in range(3)]
            seen[worker.rank] = np.concatenate(centers).tobytes()
            worker.barrier()
            return store.pull("w")

        center = job.on_all(run)[0]
        for client in range(clients):
            assert len({seen[rank] for rank in job.topology.members_of(client)}) == 1
        # With alpha = 1 a slice of the center is what came last, and not the sum over that client's ranks.
        for part in np.split(np.arange(SIZE), range(64, SIZE, 64)):
            last = [params_of(client)[part] for client in range(clients)]
            accuracy = 0.05 if compress else 1e-6
            assert any(np.allclose(center[part], params, atol=accuracy) for params in last)


@pytest.mark.paper("MXNET-MPI section 6")
@pytest.mark.parametrize("leaders", ["one", "all"])
def test_ranks_pull_the_same_center_while_others_push(leaders):
    """Also at init: parameters that differ between a client's ranks would stay different."""
    with start(2, 2, servers=2, leaders=leaders) as job:
        first = threading.Event()

        def run(worker):
            store = BlockingStore(worker, "async")
            worker.set_optimizer(store.number, spec_of(Elastic(0.9)))
            if worker.client == 1:
                first.wait(20.0)
            seen = [store.init("w", params_of(99))]
            for seed in range(20):
                if worker.client == 0:
                    store.push("w", params_of(seed))
                    first.set()
                else:
                    seen.append(store.pull("w"))
            return np.concatenate(seen).tobytes()

        _, _, one, other = job.on_all(run)
        assert one == other


@pytest.mark.paper("MXNET-MPI section 6")
def test_the_mean_of_different_ranks():
    """BatchNorm's statistics differ between ranks: their mean is what is exchanged."""
    with start(1, 2) as job:

        def run(worker):
            store = open_center(worker, LocalSGD())
            return store.pushpull("w", np.full(SIZE, 1.0 + 2.0 * worker.rank, np.float32))

        for center in job.on_all(run):
            np.testing.assert_allclose(center, np.full(SIZE, 2.0), rtol=1e-6)


@pytest.mark.paper("MXNET-MPI equations 2 and 3", "DiLoCo algorithm 1", "FedAvg algorithm 1")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (Elastic(0.25), lambda center, params: (center, center + 0.25 * (params - center))),
        (LocalSGD(), lambda center, params: (params, params)),
        (Outer("sgd", learning_rate=0.5), lambda center, params: ((center + params) / 2,) * 2),
        (DiLoCo(0.7, 0.0), lambda center, params: (center + 0.7 * (params - center),) * 2),
        (Outer("signum", learning_rate=0.0), lambda center, params: (center, center)),
    ],
    ids=["elastic", "local", "outer", "diloco", "through-mxnet"],
)
def test_old_or_new(optimizer, expected, transport):
    """Elastic answers with the center before its update, the others with the one after it."""
    with start(1, transport=transport) as job:

        def run(worker):
            store = open_center(worker, optimizer)
            answer = store.pushpull("w", params_of(1))
            told, center = expected(params_of(99).astype(np.float64), params_of(1))
            np.testing.assert_allclose(answer, told, atol=1e-6)
            np.testing.assert_allclose(store.pull("w"), center, atol=1e-6)
            store.push("w", params_of(2))
            after = expected(center, params_of(2))[1]
            if not isinstance(optimizer, Outer):
                np.testing.assert_allclose(store.pull("w"), after, atol=1e-6)

        job.on_all(run)


@pytest.mark.paper("MXNET-MPI section 6")
@pytest.mark.parametrize("compress", [None, "int4"])
@pytest.mark.parametrize("optimizer", [Elastic(0.4), DiLoCo()])
def test_shards_make_no_difference(optimizer, compress):
    """One server or three: the same bits, and the order of keys does not matter either."""

    def train(servers, keys):
        with start(2, servers=servers) as job:
            turns = [threading.Semaphore(1), threading.Semaphore(0)]

            def run(worker):
                store = BlockingStore(worker, "async")
                worker.set_optimizer(store.number, spec_of(optimizer, compress=compress))
                sizes = {"a": 50, "b": SIZE, "c": 1}
                weights = {key: params_of(worker.rank, size) for key, size in sizes.items()}
                for key, size in sizes.items():
                    store.init(key, params_of(99, size))
                for _ in range(4):
                    turns[worker.rank].acquire()
                    for key in keys:
                        elastic_step(weights[key], store.pushpull(key, weights[key]), 0.4)
                    turns[1 - worker.rank].release()
                worker.barrier()
                return {key: store.pull(key).tobytes() for key in sizes}

            return job.on_all(run)[0]

    assert train(1, "abc") == train(3, "cab")


def test_half_precision_has_a_center_of_single_precision():
    """Steps that are too small for float16 add up in the center."""
    with start(1) as job:

        def run(worker):
            store = open_center(worker, Elastic(2.0**-13), initial=np.ones(4, np.float16))
            for _ in range(16):
                store.pushpull("w", np.full(4, 2.0, np.float16))
            np.testing.assert_allclose(store.pull("w"), 1 + 2.0**-9, rtol=2.0**-11)

        job.on_all(run)


@pytest.mark.parametrize("compress", ["int8", "int4"])
def test_a_compressed_exchange_comes_as_close_as_its_bits_allow(compress):
    """Parameters and center approach each other until the difference is that of rounding, and beyond."""
    with start(1, servers=2) as job:

        def run(worker):
            store = open_center(worker, Elastic(0.5), compress=compress)
            weight = params_of(5)
            distances = []
            for _ in range(40):
                elastic_step(weight, store.pushpull("w", weight), 0.5)
                distances.append(np.abs(store.pull("w") - weight).max())
            return distances

        distances = job.on_all(run)[0]
        assert distances[-1] < 1e-4 * distances[0]


# --- delayed gradients ---


@pytest.mark.parametrize("asks", ["pushpull", "push, then pull"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.paper("DC-ASGD equation 10")
def test_delays_are_compensated_by_what_each_client_has_seen(transport, momentum, asks):
    """DC-ASGD's equation 10 with a base per client; stock MXNet has one per key, and no momentum."""
    lr, lamda = 0.5, 0.25
    order = [0, 1, 1, 0, 0, 1, 0]
    with start(2, servers=2, transport=transport) as job:
        turns = iter(order)
        turn = threading.Condition()
        state = {"next": next(turns), "pushed": 0}
        seen = {}

        def run(worker):
            store = BlockingStore(worker, "async")
            rule = DCASGD("sgd", learning_rate=lr, lamda=lamda, momentum=momentum)
            worker.set_optimizer(store.number, rule.spec().to_dict())
            store.init("w", np.full(SIZE, 3.0))
            worker.barrier()
            for _ in range(order.count(worker.rank)):
                with turn:
                    assert turn.wait_for(lambda: state["next"] == worker.rank, 20.0)
                    gradient = np.full(SIZE, 1.0 + state["pushed"])
                    if asks == "pushpull":
                        value = store.pushpull("w", gradient)
                    else:
                        store.push("w", gradient)
                        value = store.pull("w")
                    seen[state["pushed"]] = value
                    state["pushed"] += 1
                    state["next"] = next(turns, None)
                    turn.notify_all()

        job.on_all(run)
    weight, velocity, bases = 3.0, 0.0, {0: 3.0, 1: 3.0}
    for number, client in enumerate(order):
        gradient = 1.0 + number
        gradient += lamda * gradient**2 * (weight - bases[client])
        velocity = momentum * velocity - lr * gradient
        weight += velocity
        bases[client] = weight
        np.testing.assert_allclose(seen[number], np.full(SIZE, weight), rtol=1e-12)


@pytest.mark.paper("Staleness-aware async-SGD section 3")
def test_the_learning_rate_is_divided_by_the_staleness():
    """A gradient that is n updates old counts 1/n (Zhang et al. 2016, section 3); a fresh one as it is."""
    with start(2) as job:
        turns = [threading.Event() for _ in range(3)]

        def run(worker):
            store = BlockingStore(worker, "async")
            rule = StalenessAware("sgd", learning_rate=1.0)
            worker.set_optimizer(store.number, rule.spec().to_dict())
            store.init("w", np.zeros(SIZE))
            worker.barrier()
            if worker.rank == 0:
                for _ in range(4):
                    value = store.pushpull("w", np.full(SIZE, -1.0))
                np.testing.assert_array_equal(value, np.full(SIZE, 4.0))
                turns[0].set()
            else:
                assert turns[0].wait(20.0)
                np.testing.assert_array_equal(store.pushpull("w", np.full(SIZE, -1.0)), np.full(SIZE, 4.25))
                np.testing.assert_array_equal(store.pushpull("w", np.full(SIZE, -1.0)), np.full(SIZE, 5.25))

        job.on_all(run)


# --- what is refused ---


def test_what_cannot_work_is_refused():
    """Each mistake raises at the call and says what to do."""
    with start(2) as job:

        def run(worker):
            sync, free = BlockingStore(worker), BlockingStore(worker, "async")
            for store, spec, words in [
                (sync, spec_of(Elastic(0.7)), "diverges on sync-mpi with 2 clients"),
                (sync, spec_of(Elastic(0.3), quorum=3), "the job's 2 clients"),
                (free, spec_of(Elastic(0.3), quorum=1), "wait for nobody"),
                (free, {"name": "sgd", "hyper": {"lr": 1.0}, "compress": 8}, "takes gradients"),
            ]:
                with pytest.raises(UsageError, match=words):
                    worker.set_optimizer(store.number, spec)

        job.on_all(run)


def test_a_center_needs_servers():
    """Pure MPI has none."""
    with start(1, 2, servers=0) as job:

        def run(worker):
            with pytest.raises(UnsupportedError, match="no servers"):
                worker.set_optimizer(BlockingStore(worker).number, spec_of(Elastic()))

        job.on_all(run)


def test_rank_0s_optimizer_counts(caplog):
    """Another alpha elsewhere is a warning, another kind of optimizer an error."""
    with start(2) as job:

        def run(worker):
            store = BlockingStore(worker, "async")
            given = worker.set_optimizer(store.number, spec_of(Elastic(0.5 - 0.25 * worker.rank)))
            assert OptimizerSpec.from_dict(given).params == {"alpha": 0.5}
            other = BlockingStore(worker, "async")
            if worker.rank == 0:
                worker.set_optimizer(other.number, spec_of(Elastic()))
            else:
                with pytest.raises(MismatchError, match="the other parameters"):
                    worker.set_optimizer(other.number, {"name": "sgd", "hyper": {"lr": 1.0}})

        job.on_all(run)
    assert "is not rank 0's elastic {'alpha': 0.5}" in caplog.text
