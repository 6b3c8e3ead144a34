"""Rows whose gradients sum up to zero are updated as those of any other gradient, as MXNet updates them."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.hybrid_jobs import hybrid_jobs  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402

pytestmark = pytest.mark.mxnet

SHAPE, STEPS = (8, 2), 5


class OwnSGD(mx.optimizer.SGD):
    """One that servers do not know, so that workers update."""


@pytest.fixture
def job():
    """Make jobs, and end them."""
    with hybrid_jobs() as make:
        yield make


def pushed(rank, step):
    """Return row 0, with a gradient in the first step only, one whose sum is zero, and one by turns."""
    values = np.ones((3, SHAPE[1]), np.float32)
    values[0] *= step == 0
    values[1] *= (-1) ** rank
    return mx.nd.sparse.row_sparse_array((values, [0, 3, 4 + step % 2]), shape=SHAPE)


def weights(stores, stype, optimizer):
    """Give what each store has after each step of two workers, both by one store if it is alone."""
    for store in stores:
        store.set_optimizer(optimizer(learning_rate=0.5, momentum=0.5, wd=0.25))
        store.init("w", mx.nd.ones(SHAPE).tostype(stype))
    for step in range(STEPS):
        for rank, store in enumerate(stores):
            store.push("w", pushed(rank, step) if len(stores) > 1 else [pushed(0, step), pushed(1, step)])
        outs = [mx.nd.zeros(SHAPE) for _ in stores]
        for store, out in zip(stores, outs):
            store.pull("w", out=out, ignore_sparse=False)
        yield [out.asnumpy() for out in outs]


@pytest.mark.parametrize("optimizer", [mx.optimizer.SGD, OwnSGD], ids=["servers", "workers"])
@pytest.mark.parametrize("stype", ["default", "row_sparse"])
@pytest.mark.parametrize(
    "how",
    [{"clients": 2}, {"workers_per_client": 2}, {"workers_per_client": 2, "servers": 0}],
    ids=["clients", "hybrid", "pure MPI"],
)
def test_they_decay_and_move_on(job, how, stype, optimizer):
    """And rows of the step before, which nobody has pushed in this one, do not."""
    stores = [KVStoreMPI("sync", each) for each in job(**how).workers]
    local = [mx.kv.create("local")]
    for ours, [theirs] in zip(weights(stores, stype, optimizer), weights(local, stype, mx.optimizer.SGD)):
        for each in ours:
            np.testing.assert_allclose(each, theirs, rtol=1e-6)
    assert (theirs[[0, 3]] < 1).all()
    np.testing.assert_array_equal(theirs[6:], 1)


@pytest.mark.parametrize("how", [{"clients": 2}, {"workers_per_client": 2, "servers": 0}], ids=str)
def test_sums_have_them(job, how):
    """Without an optimizer; and no other rows."""
    stores = [KVStoreMPI("sync", each) for each in job(**how).workers]
    for store in stores:
        store.init("w", mx.nd.ones(SHAPE).tostype("row_sparse"))
    for step in range(3):
        for rank, store in enumerate(stores):
            store.push("w", pushed(rank, step))
        for store in stores:
            out = mx.nd.sparse.zeros("row_sparse", SHAPE)
            store.pull("w", out=out, ignore_sparse=False)
            assert out.indices.asnumpy().tolist() == [0, 3, 4 + step % 2]
