"""Workers whose pushes are applied in one pass of a server are told so once, whatever their number."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest

from kvstore_mpi.records import NodeId, Role, Rows
from kvstore_mpi.testing.cluster import DEADLINE_S, Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.io_loop import IoLoop

TABLES, STEPS, ROWS, WIDTH = 26, 3, 40, 4
SHORT = {"step_timeout": 2.0, "finish_timeout": 2.0, "heartbeat": 0.5, "peer_timeout": 2.0}


@pytest.fixture
def told(monkeypatch):
    """Count who is told that pushes are applied, and of how many pieces."""
    counts, pieces = Counter(), Counter()
    send = IoLoop.send

    def counting(loop, peer, message, *rest):
        if type(message) is m.Applied and message.entries[0][3]:  # of pushes, and not of initial values
            counts[peer.index] += 1
            pieces[peer.index] += len(message.entries)
        return send(loop, peer, message, *rest)

    monkeypatch.setattr(IoLoop, "send", counting)
    return counts, pieces


def call(begin):
    """Begin a call that is given what to call at its end; return its future."""
    ended = Future()
    begin(ended.set_result)
    return ended


def wait_for(futures):
    for future in futures:
        assert future.result(DEADLINE_S) is None


def settle(loop):
    """Wait until a loop has sent what was posted to it."""
    for _ in range(2):  # what was posted in a pass leaves at its end
        came = threading.Event()
        loop.post(lambda _now, came=came: came.set())
        assert came.wait(DEADLINE_S)


def hold(loop):
    """Let a loop do nothing until what is returned is set."""
    held, go = threading.Event(), threading.Event()
    loop.post(lambda _now: (held.set(), go.wait(DEADLINE_S)))
    assert held.wait(DEADLINE_S)
    return go


def test_a_pass_tells_each_worker_once(told):
    """Three steps of 26 tables, for which the server has the rows of both workers when it begins."""
    counts, pieces = told
    rows = Rows(np.arange(0, ROWS, 3), np.ones((len(range(0, ROWS, 3)), WIDTH), np.float32))
    network = MemoryNetwork()
    with Cluster(network.transport, clients=2, servers=1) as job:
        stores = [worker.open_store("sync") for worker in job.workers]
        value = np.zeros((ROWS, WIDTH), np.float32)
        form = value.shape, "float32", value
        wait_for(
            [
                call(lambda done, w=worker, s=store, k=key: w.init_rows(s, k, *form, done))
                for worker, store in zip(job.workers, stores)
                for key in range(TABLES)
            ]
        )
        for _ in range(STEPS):
            go = hold(job.servers[0]._loop)
            pushed = [
                call(lambda done, w=worker, s=store, k=key: w.push_rows(s, k, rows, 0, done))
                for worker, store in zip(job.workers, stores)
                for key in range(TABLES)
            ]
            for worker in job.workers:
                settle(worker._loop)
            go.set()
            wait_for(pushed)
        out: list[Rows] = []
        wait_for([call(lambda done: job.workers[0].pull_rows(stores[0], 7, 0, done, out, rows.ids))])
    assert counts == {0: STEPS, 1: STEPS}
    assert pieces == {0: STEPS * TABLES, 1: STEPS * TABLES}
    # Without a rule the sum of the last step is the value.
    assert np.concatenate([part.values for part in out]).tolist() == [[2.0] * WIDTH] * rows.ids.size


def test_a_worker_whose_session_has_ended_is_not_told_and_the_others_are(told, short_linger):
    """As that of one that has sent what cannot be understood, between its push and the end of the pass."""
    counts, _ = told
    network = MemoryNetwork()
    with Cluster(network.transport, clients=2, servers=1, **SHORT) as job:
        stores = [worker.open_store("sync") for worker in job.workers]
        value = np.zeros((ROWS, WIDTH), np.float32)
        wait_for(
            [
                call(
                    lambda done, w=worker, s=store: w.init_rows(s, "t", value.shape, "float32", value, done)
                )
                for worker, store in zip(job.workers, stores)
            ]
        )
        server = job.servers[0]
        process = server._process_next

        def forget_after(now):
            size = process(now)
            server._loop.endpoint.forget(NodeId(Role.WORKER, 1))
            return size

        server._process_next = forget_after
        rows = Rows(np.arange(3), np.ones((3, WIDTH), np.float32))
        go = hold(server._loop)
        first, _ = (
            call(lambda done, w=worker, s=store: w.push_rows(s, "t", rows, 0, done))
            for worker, store in zip(job.workers, stores)
        )
        for worker in job.workers:
            settle(worker._loop)
        go.set()
        wait_for([first])
        assert counts == {0: 1}
        assert not job.errors
