"""What processes count and tell: real threads of every role over a network in memory, and the lines."""

from __future__ import annotations

import os
import re
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.one_server import Server

from kvstore_mpi.adapters.place import Place
from kvstore_mpi.metrics.counters import COUNTERS
from kvstore_mpi.metrics.status import LINE_BYTES, Status, Wait, decode, encode
from kvstore_mpi.metrics.telling import STATUS_PIPE, Seen, Teller
from kvstore_mpi.records import StoreTerms, Topology
from kvstore_mpi.server import status as server_status
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

ELEMENTS, STEPS = 1000, 5
SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5)).to_dict()


@pytest.fixture(scope="module")
def trained():
    """Return the numbers of all processes, by name, after some steps of one key and a few of another."""
    with Cluster(MemoryNetwork().transport, clients=2, workers_per_client=2, servers=1) as job:
        stores = [BlockingStore(worker) for worker in job.workers]
        value = np.ones(ELEMENTS, np.float32)
        for key in ("w", "seldom"):
            job.together([partial(store.init, key, value) for store in stores])
        for _ in range(STEPS):
            job.together([partial(store.pushpull, "w", value) for store in stores])
        job.together([partial(store.pushpull, "seldom", value) for store in stores])
        seen = {f"worker{worker.rank}": worker.stats() for worker in job.workers}
        server = job.servers[0].look(time.monotonic())
        assert job.workers[0].look(time.monotonic()).waits == []
        return {**seen, "server0": server.counters}


def test_a_worker_counts_its_steps_and_operations(trained):
    """Steps are those of the key that was pushed most often; operations are those of all keys."""
    for rank in range(4):
        assert trained[f"worker{rank}"]["steps"] == STEPS
        assert trained[f"worker{rank}"]["operations"] == 2 + STEPS + 1


def test_who_has_finished_waits_for_the_rest_of_its_client():
    """It says so, or it would be blamed for what the others do, or leave undone, meanwhile."""
    seen = []

    class MayEnd(threading.Event):
        def wait(self, timeout=None):
            seen.extend(finished.look(time.monotonic()).waits)
            return super().wait(timeout)

    with Cluster(MemoryNetwork().transport, clients=2, workers_per_client=3, servers=1) as job:
        finished = job.workers[4]
        finished.io.may_end = MayEnd()
    [wait] = seen
    assert (wait.what, wait.awaited, wait.limit) == ("call", ["client1.0", "client1.2"], 20.0)
    assert wait.text == "the end of its client's other programs"
    assert finished.look(time.monotonic()).waits == []


def test_time_under_way_is_at_most_that_of_all_operations(trained):
    """Here they come one after the other, so that both are the same; no time is counted twice."""
    counted = trained["worker0"]
    assert 0 < counted["pending_seconds"] <= counted["operation_seconds"] + 1e-6
    assert counted["pending_seconds"] == pytest.approx(counted["operation_seconds"], rel=0.05)


def test_bytes_of_values_are_those_that_the_plan_measures(trained):
    """The leader pushes for its client; each step is one gradient out and one value in."""
    each = 4 * ELEMENTS
    assert trained["worker0"]["values_sent_bytes"] == (STEPS + 1) * each
    assert trained["worker0"]["values_received_bytes"] == (STEPS + 1) * each
    assert trained["worker1"]["values_sent_bytes"] == 0
    assert 0 < trained["worker0"]["bytes_sent"] < (STEPS + 1) * each  # servers read them in shared memory


def test_collectives_are_counted_by_the_mpi_thread(trained):
    """One reduce and one share of each step, besides those of the beginning."""
    for rank in range(4):
        assert trained[f"worker{rank}"]["collectives"] >= 2 * (STEPS + 1)
        assert trained[f"worker{rank}"]["collective_seconds"] > 0


def test_a_server_counts_rounds(trained):
    """Each round closes with the pushes of both clients."""
    assert trained["server0"]["rounds"] == STEPS + 1
    assert trained["server0"]["keys"] == 2
    assert trained["server0"]["open_rounds"] == trained["server0"]["waiting_messages"] == 0


def test_every_number_is_explained(trained):
    """What a process tells is in the table."""
    named = {name for counters in trained.values() for name in counters}
    assert named <= set(COUNTERS)
    assert {"memory_bytes", "cpu_seconds", "repeats", "refused_frames", "queue_bytes"} <= named


def test_others_updates_between_two_pushes_of_a_client_are_counted_as_stale():
    """Client 1 pushes three times between two pushes of client 0."""
    with Cluster(MemoryNetwork().transport, clients=2, servers=1) as job:
        stores = [BlockingStore(worker, "async") for worker in job.workers]
        value = np.ones(4, np.float32)
        job.together([partial(store.init, "w", value) for store in stores])
        job.together([lambda worker=w: worker.set_optimizer(0, SGD) for w in job.workers])
        for store in (0, 1, 1, 1, 0):
            stores[store].pushpull("w", value)
        counted = job.servers[0].look(time.monotonic()).counters
        # The second client's first push has missed one update, client 0's second one three.
        assert counted["rounds"] == 5
        assert counted["stale_updates"] == 1 + 3


def test_a_push_that_is_missing_is_waited_for_by_name():
    """The server names who has not pushed which round; the worker whom it waits for."""
    with Cluster(MemoryNetwork().transport, clients=2, servers=1) as job:
        stores = [BlockingStore(worker) for worker in job.workers]
        value = np.ones(4, np.float32)
        job.together([partial(store.init, "w", value) for store in stores])
        job.together([partial(store.pushpull, "w", value) for store in stores])
        pending = stores[0].begin_pushpull("w", value)
        while not job.servers[0].look(0.0).waits:
            os.sched_yield()
        [wait] = job.servers[0].look(time.monotonic()).waits
        assert (wait.what, wait.key, wait.step, wait.awaited) == ("round", "w", 2, ["client1.0"])
        [wait] = job.workers[0].look(time.monotonic()).waits
        assert (wait.what, wait.key, wait.step, wait.awaited) == ("pushpull", "w", 2, ["server0"])
        assert 0 <= wait.seconds < wait.limit
        stores[1].pushpull("w", value)
        pending.result(20)


def waits(server):
    """Return whom each round of a simulated server waits for."""
    topology = Topology(2, 2, 1)
    return [wait.awaited for wait in server_status.waits_of(server.state, topology, 600.0, 1.0)]


def test_who_has_pushed_a_part_of_a_tensor_is_waited_for_as_well():
    """The round closes when the rest has come."""
    server = Server(optimizer="lr", whole=True)
    server.push(0, 1, slices=((0, 5), (5, 8)))
    server.push(1, 1, slices=((0, 5),))
    assert waits(server) == [["client1.0"]]


def test_a_step_that_is_held_waits_for_who_has_not_pushed_all_of_it_and_then_for_nobody():
    """Once it is whole here only other servers are missing, and they say for what they wait."""
    server = Server()
    hyper = SimpleNamespace(rescale_grad=1.0)
    server.state.set_optimizer(0, {"name": "sgd"}, hyper, StoreTerms(clip_norm=1.0))
    for client, sides in ((0, ((0, 5), (5, 8))), (1, ((0, 5),))):
        server.push(client, 1, slices=sides)
    server.state.rounds.held.put(server.unit(0), "sum", 1.0)
    assert waits(server) == [["client1.0"]]
    server.push(1, 1, slices=((5, 8),))
    server.state.rounds.held.put(server.unit(5), "sum", 1.0)
    assert waits(server) == []


def test_a_line_that_would_be_too_long_leaves_something_out():
    """Longer lines would mix with those of other processes."""
    waits = [Wait("round", "x" * 5000, float(n), 9.0, ["client0.0"] * 99, "k" * 999, n) for n in range(9)]
    line = encode(Status("server0", 0, "host", 1, {"rounds": 7}, waits, "e" * 5000, {"ff": "t" * 4000}))
    assert len(line) <= LINE_BYTES
    told = decode(line)
    assert told.counters == {"rounds": 7}
    assert told.waits[0].seconds == 8.0
    assert decode(b"nonsense") is None


def test_nobody_is_waited_for_when_the_launcher_does_not_read(tmp_path: Path):
    """A full pipe costs lines; a launcher that is gone costs nothing any more."""
    os.mkfifo(tmp_path / STATUS_PIPE)
    reader = os.open(tmp_path / STATUS_PIPE, os.O_RDONLY | os.O_NONBLOCK)
    tell = Teller(str(tmp_path), "server0", 0, lambda now: Seen({"rounds": now}, []))
    for now in range(2000):
        tell(float(now))
    assert decode(os.read(reader, LINE_BYTES).splitlines()[0]).counters["rounds"] == 0.0
    os.close(reader)
    for now in range(3):
        tell(float(now))
    Teller(str(tmp_path / "nowhere"), "server0", 0, lambda now: 1 / 0)(0.0)


def test_the_document_explains_every_number():
    """In the words of the table in the code, and no other."""
    text = (Path(__file__).parents[2] / "docs/seeing.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| [\w, ]+ \| (.+) \|$", text, re.MULTILINE))
    assert told == {name: counter.text for name, counter in COUNTERS.items()}


def test_a_store_has_the_numbers_of_its_process():
    """``kv.stats()``, of any adapter."""
    store = Place()
    store._worker = SimpleNamespace(stats=lambda: {"steps": 3})
    assert store.stats() == {"steps": 3}
