"""A server dies while a table is cut anew: all workers are told, and a resumed job has every row once."""

from __future__ import annotations

import itertools
import threading
from functools import partial

import numpy as np
import pytest
from support.often import ONE_OF_MANY
from support.trained_table import SGD, SHAPE, expected, init, initial, rows_of, scatter, wait

from kvstore_mpi.errors import KVStoreError
from kvstore_mpi.records import Growth
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.wire import messages as m

pytestmark = pytest.mark.usefixtures("short_linger")

CUT, STEPS = 3, 6
SHAPES = {"clients": 2, "servers": 2}
OF_A_CUT = (m.GetStates, m.Create, m.PutStates, m.Push, m.Drop)
"""What a server is sent from the moment on at which a table is cut anew."""


class Dies(BaseException):
    """The end of a server's process."""


def cut_anew(worker, store, table):
    """Give the table five pieces instead of three."""
    states = worker.row_states(store, "t") if worker.rank == 0 else None
    init(worker, store, table, partitions=5, anew=True)
    if states is not None:
        worker.load_row_states(store, "t", states)


def train(worker, steps, before=lambda worker, step: None):
    """Train the table in some steps; return it, and as the servers have it."""
    store = worker.open_store("sync")
    worker.set_optimizer(store, SGD)
    table = init(worker, store, partitions=3)
    for step in steps:
        before(worker, step)
        if step == CUT:
            cut_anew(worker, store, table)
        out = []
        wait(worker.pushpull_rows, store, "t", rows_of(worker, step), priority=0, out=out)
        scatter(table, out)
        if step == CUT:
            worker.release_rows(store, "t")
    rows = []
    wait(worker.pull_rows, store, "t", priority=0, out=rows, ids=np.arange(SHAPE[0]))
    whole = np.full(SHAPE, np.nan, np.float32)
    scatter(whole, rows)
    return table, whole


def train_growing(worker, steps, before=lambda worker, step: None):
    """Train a table whose rows are on the servers alone, and begin as zeros; return it twice."""
    store = worker.open_store("sync")
    worker.set_optimizer(store, SGD)

    def make(pieces, *, anew=False):
        cut = {"partitions": pieces, "growth": Growth(), "anew": anew}
        wait(worker.init_rows, store, "t", SHAPE, "float32", value=None, **cut)

    make(2)
    for step in steps:
        before(worker, step)
        if step == CUT:
            make(6, anew=True)
        wait(worker.push_rows, store, "t", rows_of(worker, step), priority=0)
        if step == CUT:
            worker.release_rows(store, "t")
    rows = []
    wait(worker.pull_rows, store, "t", priority=0, out=rows, ids=np.arange(SHAPE[0]))
    whole = np.full(SHAPE, np.nan, np.float32)
    scatter(whole, rows)
    return whole, whole


def save(server):
    """Have a server save what it has, and wait for it."""
    saved = threading.Event()

    def now(_now):
        server._snapshots.save(server._state, server._store)
        saved.set()

    server._loop.post(now)
    assert saved.wait(20)


def die_at(server, number, last=lambda: None):
    """Let a server die at a message, after a ``last`` call; return what of a cut it has had until then."""
    handle, had = server._handle, []

    def handled(event, now):
        if isinstance(event.message, OF_A_CUT):
            had.append(type(event.message).__name__)
            if len(had) == number:
                last()
                raise Dies
        handle(event, now)

    server._handle = handled
    return had


def interrupted(folder, number, train, *, other_saves):
    """Run a job of which server 1 dies at a message of the cut; all have saved just before it."""
    job = Cluster(
        MemoryNetwork().transport,
        **SHAPES,
        snapshot_dir=str(folder),
        heartbeat=0.2,
        peer_timeout=2.0,
        finish_timeout=5.0,
    )
    together = threading.Barrier(2)
    had = []

    def before(worker, step):
        if step == CUT:
            together.wait(20)  # nothing is under way
            if worker.rank == 0:
                for server in job.servers:
                    save(server)
                # The other one lives on, and may have new pieces.
                last = partial(save, job.servers[0]) if other_saves else lambda: None
                had.append(die_at(job.servers[1], number, last))
            together.wait(20)

    def guarded(worker):
        try:
            train(worker, range(STEPS), before)
        except KVStoreError as error:
            return error
        return None

    ended = job.on_all(guarded)
    job.close()
    assert set(job.errors) <= {"server0", "server1", "scheduler"}
    assert isinstance(job.errors["server1"], Dies)
    return ended, had[0]


OTHERS = [(number, later) for number in range(1, 10) for later in (False, True) if number not in {4, 8}]


GROWING = [
    each for each in itertools.product(range(1, 7), (False, True)) if each not in {(2, True), (4, True)}
]
"""Three pieces are created, two clients push them, and the former ones are dropped."""


@pytest.mark.parametrize(
    ("train", "number", "other_saves"),
    [
        (train, 4, False),
        (train, 8, True),
        *(pytest.param(train, *each, marks=ONE_OF_MANY) for each in OTHERS),
        (train_growing, 2, True),
        (train_growing, 4, True),
        *(pytest.param(train_growing, *each, marks=ONE_OF_MANY) for each in GROWING),
    ],
)
def test_a_server_dies_while_a_table_is_cut_anew(tmp_path, train, number, other_saves):
    """At each message of it: no worker waits for ever, and a job that goes on has every row, once.

    With ``other_saves`` the server that lives on has a snapshot of that moment, perhaps with new pieces.
    """
    ended, had = interrupted(tmp_path, number, train, other_saves=other_saves)
    assert len(had) == number
    assert all(ended), ended
    with Cluster(MemoryNetwork().transport, **SHAPES, snapshot_dir=str(tmp_path), resume=True) as job:
        trained = job.on_all(lambda worker: train(worker, range(CUT, STEPS)))
        assert not job.errors
        after = expected(job.workers, STEPS) - (initial() if train is train_growing else 0)
    for table, whole in trained:
        np.testing.assert_array_equal(whole, after)
        np.testing.assert_array_equal(table, after)
