"""Keys of which only rows travel, over fake workers: the contract, what is asked of whom, and training."""

from __future__ import annotations

import itertools
from functools import partial
from threading import Barrier

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import FetchedRows  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.testing.mxnet_contract import run_together  # noqa: E402
from kvstore_mpi.testing.mxnet_rows import ROW_CHECKS, async_checks  # noqa: E402
from kvstore_mpi.testing.mxnet_sparse_training import FEW_STEPS, SPARSE_CHECKS  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet


def names(group, rank=0):
    """Return the names of a worker's calls in order."""
    return [call.name for call in group.calls if call.rank == rank]


@pytest.mark.parametrize(("num_workers", "num_servers"), [(1, 0), (1, 2), (2, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("check", ROW_CHECKS, ids=lambda check: check.__name__)
def test_contract(make_group, check, num_workers, num_servers):
    """Every check holds; with several workers and no servers, which wait for each other, in real jobs."""
    group = make_group(num_workers, num_servers=num_servers)
    run_together(check, [partial(KVStoreMPI, "sync", worker) for worker in group.workers])
    assert any(name.endswith("_rows") for name in names(group))


@pytest.mark.parametrize(
    ("num_workers", "check"),
    [(number, check) for number in (1, 2) for check in async_checks(number)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_contract_of_async_stores(make_group, num_workers, check):
    """Every push is an update; a worker sees its own at once, and those of others behind a barrier."""
    group = make_group(num_workers, num_servers=2)
    group.barrier = Barrier(1)  # nobody can wait for the others, who are in the same thread
    workers = [check(partial(KVStoreMPI, "async", worker)) for worker in group.workers]
    for turns in itertools.zip_longest(*workers):
        mx.nd.waitall()
        for kv in filter(None, turns):
            kv.barrier()
    assert any(name.endswith("_rows") for name in names(group))


@pytest.fixture
def worker():
    """Return the worker of a job of real servers, in this process; end the job afterwards."""
    cluster = Cluster(MemoryNetwork().transport, servers=2)
    yield cluster.workers[0]
    assert engine.wait_until_idle(60)
    cluster.close()


@pytest.mark.parametrize(
    ("mode", "check"),
    [
        (mode, check)
        for mode, checks in (("sync", ROW_CHECKS), ("async", async_checks(1)))
        for check in checks
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_contract_over_servers(worker, mode, check):
    """The fake workers are no better than real ones with servers; more of these are in real jobs."""
    run_together(check, [partial(KVStoreMPI, mode, worker)])


@pytest.mark.parametrize(
    ("mode", "num_workers", "num_servers"),
    [("sync", 1, 0), ("sync", 1, 2), ("sync", 2, 2), ("async", 1, 2)],
    ids=str,
)
@pytest.mark.parametrize("name", SPARSE_CHECKS)
def test_training(make_group, name, mode, num_workers, num_servers):
    """Training equals one process; two workers without servers, which wait for each other, in real jobs."""
    group = make_group(num_workers, num_servers=num_servers)
    check = partial(SPARSE_CHECKS[name], steps=FEW_STEPS)
    run_together(check, [partial(KVStoreMPI, mode, worker) for worker in group.workers])
    assert "pull_rows" in names(group) or "pushpull_rows" in names(group)


LAZY = {
    "the_first_push_makes_a_table",
    "mistakes_with_rows_are_refused",
    "multipliers_of_tables",
    "states_of_tables_are_saved",
}
"""Checks of what holds for tables only."""


@pytest.mark.parametrize("num_servers", [0, 2])
@pytest.mark.parametrize(
    "check",
    [check for check in ROW_CHECKS if check.__name__ not in LAZY],
    ids=lambda check: check.__name__,
)
def test_the_same_without_rows(make_group, check, num_servers):
    """A worker that does not know tables is asked for none, and gradients travel densely."""
    group = make_group(1, num_servers=num_servers, has_rows=False)
    run_together(check, [partial(KVStoreMPI, "sync", group.workers[0])])
    assert not any(name.endswith("_rows") for name in names(group))


@pytest.mark.parametrize(
    ("optimizer", "options", "is_table"),
    [
        ("sgd", {}, True),
        ("sgd", {"momentum": 0.9, "lazy_update": False}, True),
        ("nag", {"momentum": 0.9}, True),
        ("adam", {}, True),
        ("adam", {"lazy_update": False}, False),
        ("rmsprop", {}, False),
        ("groupadagrad", {}, True),
        ("ftrl", {}, True),
        ("lamb", {}, False),
    ],
)
def test_keys_are_tables_where_the_servers_can_do_what_mxnet_does(make_group, optimizer, options, is_table):
    """With the others gradients travel densely: what MXNet does to all rows cannot be done to some."""
    group = make_group(1, num_servers=1)
    kv = KVStoreMPI("sync", group.workers[0])
    kv.set_optimizer(mx.optimizer.create(optimizer, **options))
    kv.init("e", mx.nd.ones((4, 2)).tostype("row_sparse"))
    assert ("init_rows" in names(group)) is is_table


@pytest.mark.parametrize(("optimizer", "is_table"), [("sgd", True), ("ftrl", False)])
def test_rows_of_dense_weights(make_group, optimizer, is_table):
    """FTRL, which is lazy with row-sparse weights only, sets the rows without a gradient to zero."""
    group = make_group(1, num_servers=1)
    kv = KVStoreMPI("sync", group.workers[0])
    kv.set_optimizer(mx.optimizer.create(optimizer))
    kv.init("e", mx.nd.ones((4, 2)))
    kv.push("e", mx.nd.sparse.row_sparse_array((np.ones((1, 2), "float32"), [2]), shape=(4, 2)))
    weight = mx.nd.empty((4, 2))
    kv.pull("e", out=weight)
    assert (weight.asnumpy()[[0, 1, 3]] == is_table).all()
    assert ("init_rows" in names(group)) is is_table


def test_ids_of_fetched_rows_stay_their_owner_s():
    """MXNet makes an array that it is given read-only; the ids may be of a table that goes on."""
    ids = np.array([1, 3])
    fetched = FetchedRows(ids, (5, 2), "float32")
    ids[0] = 2
    assert fetched.array.indices.asnumpy().tolist() == [1, 3]
