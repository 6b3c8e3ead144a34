"""A key of which one worker pushes rows and another dense gradients: they would push to different keys."""

from __future__ import annotations

import threading
from itertools import product

import numpy as np
import pytest
from support.outcomes import check, outcomes

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.records import KeySpec, NodeId, Role, Rows, Topology, name_of_table
from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import DEADLINE_S
from kvstore_mpi.wire import messages as m

pytestmark = pytest.mark.usefixtures("short_linger")

SHAPE = (6, 2)
SGD = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={}).to_dict()


def worker(rank):
    """Return a worker."""
    return NodeId(Role.WORKER, rank)


def wait(call, *args):
    """Make an asynchronous call and wait for its end."""
    ended, errors = threading.Event(), []
    call(*args, lambda error: (errors.append(error), ended.set()))
    assert ended.wait(DEADLINE_S)
    if errors[0] is not None:
        raise errors[0]


@pytest.mark.parametrize(
    ("layout", "mode"),
    [*product([(2, 1, 1), (1, 2, 2)], ["sync", "async"]), ((1, 2, 0), "sync"), ((1, 2, 1), "client")],
)
@pytest.mark.parametrize("with_rows", [0, 1])
def test_rows_of_one_and_dense_gradients_of_another(mode, layout, with_rows):
    """Whoever is later is told of both, at once; in an async store nothing else would tell."""

    def run(worker):
        store, buffer = worker.open_store(mode), worker.exchange_buffer(12, "float32")
        wait(worker.init, store, "w", SHAPE, buffer)
        if layout[2] and mode != "client":
            worker.set_optimizer(store, SGD)
        if worker.rank == with_rows:
            wait(worker.init_rows, store, "w", SHAPE, "float32", np.zeros(SHAPE, np.float32))
            rows = Rows(np.arange(1), np.ones((1, 2), np.float32))
            wait(lambda *call: worker.pushpull_rows(*call, []), store, "w", rows, 0)
        else:
            wait(worker.pushpull, store, "w", 0)

    # In pure MPI the others see the end of a process by MPI, which is not here.
    step_timeout = 60.0 if layout[2] else 2.0
    ended = outcomes(layout, run, step_timeout=step_timeout, connect_timeout=60.0)
    # In pure MPI the leader, too, sees that the ranks have called different keys, when it gives up.
    (told,) = (error for error in ended if "dense gradients" in str(error))
    dense, rows = (
        f"client{rank}.0 " if layout[0] > 1 else f"client0.{rank} " for rank in (1 - with_rows, with_rows)
    )
    check(told, MismatchError, "key 'w'", f"{dense}", "pushes dense gradients of it, and", f"{rows}")


def test_whoever_is_later_is_told():
    """Also before rank 0 has said that it has the table; another key is nothing to these."""
    dense, rows = m.PushesDensely(0, 5), m.Declare(_table(name_of_table(5)), "async", whole=False)
    for first, second in ((dense, rows), (rows, dense)):
        scheduler = SchedulerState(Topology(3, 3, 1), slice_elements=4, connect_timeout=9.0, now=0.0)
        assert scheduler.handle(worker(1), m.PushesDensely(0, 6), 0.0) == []
        assert scheduler.handle(worker(1), m.PushesDensely(1, 5), 0.0) == []
        assert scheduler.handle(worker(1), first, 0.0) == []
        (send,) = scheduler.handle(worker(2), second, 0.0)
        failure = send.message
        assert send.peer == worker(2)
        assert (failure.error, failure.store) == (MismatchError.__name__, 0)
        assert "key 5: " in failure.text


def _table(name):
    return KeySpec(0, name, SHAPE, "float32", layout="rows", partitions=1)
