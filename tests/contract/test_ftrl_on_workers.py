"""FTRL of row-sparse weights where workers update: as MXNet updates such weights, lazily."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.hybrid_jobs import hybrid_jobs  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.exchange.row_weights import SparseStaging  # noqa: E402

pytestmark = pytest.mark.mxnet

SHAPE, STEPS = (7, 3), 6
PURE = {"workers_per_client": 2, "servers": 0}
ROWS = {"workers_per_client": 2, "routes": "w=rows"}
DENSELY = {"workers_per_client": 2, "routes": "w=allreduce"}
SERVERS = {"workers_per_client": 2}


@pytest.fixture
def job():
    """Make jobs, and end them."""
    with hybrid_jobs() as make:
        yield make


def begin(store, value):
    store.set_optimizer(mx.optimizer.Ftrl(learning_rate=0.1, wd=0.01))
    store.init("w", mx.nd.array(value).tostype("row_sparse"))
    return store


def gradient(rank, step):
    random = np.random.default_rng([rank, step])
    ids = np.sort(random.choice(SHAPE[0] - 2, 2, replace=False))  # two rows have none in any step
    values = random.normal(size=(2, SHAPE[1])).astype(np.float32)
    return mx.nd.sparse.row_sparse_array((values, ids), shape=SHAPE)


def train(stores, steps, *, alone=False):
    """Push the gradients of two workers, or one both; return what each store has after each step."""
    found = []
    for step in steps:
        for rank, store in enumerate(stores):
            store.push("w", [gradient(0, step), gradient(1, step)] if alone else gradient(rank, step))
        outs = [mx.nd.sparse.zeros("row_sparse", SHAPE) for _ in stores]
        for store, out in zip(stores, outs):
            store.row_sparse_pull("w", out=out, row_ids=mx.nd.arange(SHAPE[0]))
        # None waits here: what the next step writes must not pass what this one reads.
        found.append(outs)
    return [[out.asnumpy() for out in outs] for outs in found]


def expected(value, steps):
    return train([begin(mx.kv.create("local"), value)], steps, alone=True)


def compare(found, wanted):
    for outs, [other] in zip(found, wanted):
        for out in outs:
            np.testing.assert_allclose(out, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", [PURE, ROWS, DENSELY], ids=["pure MPI", "a route of rows", "allreduce"])
def test_rows_without_a_gradient_stay(job, how):
    """And the others become what MXNet makes of them."""
    value = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    stores = [begin(KVStoreMPI("sync", each), value) for each in job(**how).workers]
    found = train(stores, range(STEPS))
    compare(found, expected(value, range(STEPS)))
    np.testing.assert_array_equal(found[-1][0][-2:], value[-2:])


@pytest.mark.parametrize(
    ("first", "second"),
    [(PURE, PURE), (PURE, SERVERS), (SERVERS, PURE), (SERVERS, ROWS), (DENSELY, DENSELY)],
    ids=["MPI", "to servers", "from servers", "from servers to rows", "allreduce"],
)
def test_states_go_on(job, tmp_path, first, second):
    """In jobs of any kind."""
    value = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    before = [begin(KVStoreMPI("sync", each), value) for each in job(**first).workers]
    [*_, middle] = train(before, range(2))
    for rank, store in enumerate(before):
        store.save_optimizer_states(str(tmp_path / f"states{rank}"))
    after = [begin(KVStoreMPI("sync", each), middle[0]) for each in job(**second).workers]
    for store in after:
        store.load_optimizer_states(str(tmp_path / "states0"))
    compare(train(after, range(2, 4)), expected(value, range(4))[2:])


def held_bytes():
    """Return the memory of this process that has been written."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_only_who_wants_rows_holds_their_ids(job):
    """They are 8 bytes for each row of a weight, and no other optimizer asks for them."""
    rows = 4_000_000
    (worker,) = job(servers=0).workers
    store = KVStoreMPI("sync", worker)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    value = mx.nd.sparse.row_sparse_array((np.ones((1, 1), np.float32), [3]), shape=(rows, 1))
    before = held_bytes()
    store.init("w", value)
    store.push("w", value)
    mx.nd.waitall()
    # The weight itself, and in the meantime its initial value, are 4 bytes for each row.
    assert held_bytes() - before < (4 + 4 + 4) * rows
    weight = SparseStaging((rows, 1), "float32")
    np.testing.assert_array_equal(weight.as_rows.indices.asnumpy(), np.arange(rows))
