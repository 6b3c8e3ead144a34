"""Stores that all workers close: what they had is gone everywhere, and whatever else there is goes on."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from support.outcomes import check, outcomes

from kvstore_mpi.errors import DeadlineError, MismatchError, UsageError
from kvstore_mpi.records import KeySpec, Rows
from kvstore_mpi.server.peer_buffers import PeerBuffers
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.transport.shared_memory import Place
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wire import messages as m

SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0), params={"momentum": 0.5}).to_dict()
LAYOUTS = [(1, 1, 1), (1, 2, 0), (2, 1, 2), (2, 2, 2)]
SIZE = 300


def start(layout, **config):
    clients, workers, servers = layout
    config = {"slice_elements": 64, "transport": "tcp", **config}
    transport = SocketTransport if config["transport"] == "auto" else MemoryNetwork().transport
    make = (lambda: SocketTransport(schemes="auto")) if transport is SocketTransport else transport
    return Cluster(make, clients=clients, workers_per_client=workers, servers=servers, **config)


def filled_store(worker, mode="sync", value=1.0):
    """Open a store with a key, and push it once."""
    store = BlockingStore(worker, mode)
    if worker.num_servers and mode != "client":
        worker.set_optimizer(store.number, SGD)
    store.init("w", np.zeros(SIZE))
    store.pushpull("w", np.full(SIZE, value))
    return store


@pytest.fixture
def servers_have_closed(monkeypatch):
    """What waits until a number of servers have heard that a store is over."""
    heard = threading.Semaphore(0)
    close = PeerBuffers.close

    def closing(self, keys):
        close(self, keys)  # the last that a server does
        heard.release()

    monkeypatch.setattr(PeerBuffers, "close", closing)

    def wait(number):
        assert all(heard.acquire(timeout=60) for _ in range(number))

    return wait


def has_nothing(server):
    """Tell whether a server has neither keys nor rules nor buffers."""
    store, keys = server._store, server._state.keys
    known = store.layouts, store._shards, store.tables, store._rules, keys.by_id, keys._stores
    return not any(map(len, (*known, server._buffers.views, server._state.rounds.under_way)))


# --- what is gone, and what stays ---


@pytest.mark.parametrize("mode", ["sync", "async", "client"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_what_a_closed_store_had_is_gone_on_all_sides(servers_have_closed, layout, mode, transport):
    """Keys, rules and buffers; the next store begins anew, with keys of the same names."""
    if mode == "async" and not layout[2]:
        pytest.skip("an async store needs servers")
    with start(layout, transport=transport) as job:

        def run(worker):
            store = filled_store(worker, mode)
            gone = threading.Event()
            weakref.finalize(store._buffers["w"], gone.set)
            store.close()
            worker.barrier()
            gc.collect()
            assert gone.wait(60)  # MPI's thread lets go of it in its turn
            assert not worker._keys
            assert not [*worker._state.keys]
            assert worker._buffers._arena is None or not worker._buffers._arena._places
            if worker.rank == 0:
                servers_have_closed(layout[2])
                assert all(map(has_nothing, job.servers))
            worker.barrier()
            again = filled_store(worker, mode, value=2.0)
            assert again.number == store.number + 1
            return again.pull("w")

        values = job.on_all(run)
        summed = {"sync": 2.0 * len(values), "client": 2.0 * layout[1], "async": None}[mode]
        if summed is not None:
            sign = -1.0 if layout[2] and mode == "sync" else 1.0
            for value in values:
                np.testing.assert_array_equal(value, np.full(SIZE, sign * summed))
    assert job.errors == {}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_other_stores_go_on_and_nothing_more_of_a_closed_one_is_taken(layout):
    """Whatever is called says that it is closed; to close it again is nothing."""
    with start(layout) as job:

        def run(worker):
            kept, store = filled_store(worker), filled_store(worker)
            store.close()
            store.close()
            states, numbers = {"w": ()}, store.number
            for call in (
                lambda: store.begin_push("w", np.ones(SIZE)),
                lambda: store.begin_pull("w"),
                lambda: store.begin_init("v", np.ones(SIZE)),
                lambda: worker.init_rows(numbers, "t", (4, 2), "float32", None, print),
                lambda: worker.set_optimizer(numbers, SGD),
                lambda: worker.set_hyper(numbers, {}),
                lambda: worker.optimizer_states(numbers),
                lambda: worker.load_optimizer_states(numbers, states),
            ):
                with pytest.raises(UsageError, match=rf"store 1 of worker {worker.rank} is closed"):
                    call()
            kept.pushpull("w", np.full(SIZE, 1.0))
            return worker.stats()

        told = job.on_all(run)
        assert {stats["steps"] for stats in told} == {2}
        # What is told of a worker never falls: also with what the closed store had sent.
        if layout[2]:
            assert told[0]["values_sent_bytes"] == 3 * 8 * SIZE
    assert job.errors == {}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_is_under_way_is_completed_first(layout):
    """Nobody has to wait for a push before the store is closed."""
    with start(layout) as job:

        def run(worker):
            store = filled_store(worker)
            ended = [store.begin_pushpull("w", np.full(SIZE, 1.0)) for _ in range(5)]
            store.close()
            assert all(future.done() and future.exception() is None for future in ended)

        job.on_all(run)


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 2, 2), (1, 2, 0)], ids=str)
def test_tables_go_with_their_store(servers_have_closed, layout):
    """Also one that has been cut anew; and one of the same name is another one afterwards."""
    shape = (12, 2)

    def create(worker, store, pieces, *, anew):
        value, ready = np.zeros(shape, np.float32), threading.Event()
        how = {"partitions": pieces, "anew": anew}
        worker.init_rows(store, "t", shape, "float32", value, lambda _: ready.set(), **how)
        assert ready.wait(60)

    def pushed(worker, store):
        out, ended = [], threading.Event()
        rows = Rows(np.array([3, 7]), np.ones((2, 2), np.float32))
        worker.pushpull_rows(store, "t", rows, 0, lambda _: ended.set(), out)
        assert ended.wait(60)
        return {int(row): values.tolist() for each in out for row, values in zip(*each)}

    with start(layout) as job:

        def run(worker):
            for _ in range(2):
                store = worker.open_store("sync")
                if worker.num_servers:
                    worker.set_optimizer(store, SGD)
                rows = []
                # At the close the first pieces have been given up, and those after them have not; where
                # there are no servers nothing is cut anew.
                for pieces in (2, 4, 6) if worker.num_servers else (2,):
                    create(worker, store, pieces, anew=pieces > 2)
                    rows = pushed(worker, store)
                    if pieces == 4:
                        worker.release_rows(store, "t")
                worker.close_store(store)
                if worker.rank == 0:
                    servers_have_closed(layout[2])
                    assert all(map(has_nothing, job.servers))
                worker.barrier()
                assert not worker._tables._former
            return rows

        workers = layout[0] * layout[1]
        sign = -1.0 if layout[2] else 1.0
        for rows in job.on_all(run):
            assert rows == {row: [sign * workers] * 2 for row in (3, 7)}
    assert job.errors == {}


def test_servers_take_as_much_of_the_next_store_as_of_the_first():
    """What was closed counts no more where keys are placed, nor for what may be under way."""
    with start((1, 1, 2)) as job:

        def run(worker):
            places = []
            for _ in range(4):
                store = BlockingStore(worker)
                store.init("small", np.zeros(10))
                store.init("large", np.zeros(40 * 64))
                keys = worker._state.keys
                shares = sorted(each.index for each in keys.by_name[store.number, "small"].servers)
                sizes = {
                    n: len(slices) for n, slices in keys.by_name[store.number, "large"].by_server().items()
                }
                lanes = worker._state.servers._queue._lanes
                places.append(
                    (shares, sizes, {n: lane.window._iteration_bytes for n, lane in lanes.items()})
                )
                store.close()
            return places

        (places,) = job.on_all(run)
        assert places[1:] == places[:1] * 3


def test_what_is_over_does_not_come_back(servers_have_closed):
    """A worker that saw a server come back may speak of it before it hears that the store is over."""
    with start((2, 1, 1)) as job:
        job.on_all(lambda worker: filled_store(worker).close())
        servers_have_closed(1)
        job.on_all(lambda worker: filled_store(worker, "async"))
        (server,), leader = job.servers, job.workers[1].node
        spec = KeySpec(0, "w", (SIZE,), "float64")
        seed = m.Create(spec, "sync", 0, (0, SIZE), [(0, SIZE)], seed=True)
        place = Place("elsewhere", "", b"", 0, 0, 0)
        for message, payloads in (
            (seed, [bytes(8 * SIZE)]),
            (m.Share(0, place), []),
            (m.Resume([(m.Create(spec, "sync", 0, (0, SIZE), [(0, SIZE)]), 1)]), []),
        ):
            assert [*server._decide(leader, message, payloads, 0.0)] == []
        assert sorted(server._state.keys.by_id) == [1]
    assert job.errors == {}


@pytest.mark.parametrize("config", [{"keep_values": True}, {"start_with": 1}], ids=str)
def test_where_clients_come_later_no_store_is_closed(config):
    """It is said on all of them, and nothing is given up: the store goes on."""
    with start((2, 1, 1), **config) as job:

        def run(worker):
            store = filled_store(worker, "async")
            with pytest.raises(UsageError, match="store 0 cannot be closed in a job with --max-restarts"):
                store.close()
            store.pushpull("w", np.ones(SIZE))
            worker.barrier()

        job.on_all(run)
    assert job.errors == {}


# --- not all of them ---


def closes(*others):
    """Return a program in which the last worker does something else than to close its store."""

    def run(worker):
        store = filled_store(worker)
        if worker.rank < worker.num_workers - 1:
            store.close()
        for other in others if worker.rank == worker.num_workers - 1 else ():
            other(worker, store)

    return run


MISSING = [(2, 1, 1), (1, 2, 1), (2, 2, 2)]


@pytest.mark.parametrize("layout", MISSING, ids=str)
def test_who_closes_a_store_where_another_waits_at_a_barrier_is_told(layout):
    """All of them are, in the words of the script."""
    ended = outcomes(layout, closes(lambda worker, _: worker.barrier()), step_timeout=60.0)
    for each in ended:
        check(each, MismatchError, "closes store 0", "calls barrier", "in the same order")


@pytest.mark.parametrize("layout", MISSING, ids=str)
def test_stores_are_closed_in_one_order(layout):
    """Otherwise one would wait for who has gone on with it."""

    def run(worker):
        stores = [filled_store(worker) for _ in range(2)]
        stores[worker.rank == worker.num_workers - 1].close()

    for each in outcomes(layout, run, step_timeout=60.0):
        check(each, MismatchError, "closes store 0", "closes store 1")


@pytest.mark.parametrize("layout", MISSING, ids=str)
def test_who_closes_a_store_that_another_does_not_is_told_at_its_end(layout):
    """As at a barrier."""
    ended = outcomes(layout, closes(), step_timeout=60.0)
    check(ended[0], MismatchError, "has finished while", "to close store 0", "close the same stores")


@pytest.mark.parametrize("layout", MISSING, ids=str)
def test_who_pushes_to_a_store_that_others_close_is_told(layout):
    """Before any deadline: nobody takes part in its round."""

    def push(worker, store):
        store.pushpull("w", np.ones(SIZE))

    def run(worker):
        store = filled_store(worker)
        if worker.rank < worker.num_workers - 1:
            worker.close_store(store.number, settled=True)
        else:
            push(worker, store)

    ended = outcomes(layout, run, step_timeout=60.0)
    check(ended[-1], MismatchError, "which closes store 0, waits at barrier 1", "push 2")


def test_a_close_has_a_deadline():
    """Who neither closes the store nor ends, nor pushes, is waited for no longer than for a push."""
    over = threading.Event()

    def wait(_worker, _store):
        over.wait(60)

    def run(worker):
        try:
            closes(wait)(worker)
        finally:
            over.set()

    ended = outcomes((2, 1, 1), run, step_timeout=20.0)
    check(ended[0], DeadlineError, "waited 20 s for the end of store 0", "barrier 1 of all workers")
