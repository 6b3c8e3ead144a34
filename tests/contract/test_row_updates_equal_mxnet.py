"""Rows are updated as MXNet's own lazy kernels update them from row-sparse gradients."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.hybrid_jobs import hybrid_jobs  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.optimizer_spec import spec_from_optimizer  # noqa: E402
from kvstore_mpi.server_optimizers import (  # noqa: E402  after the check for mxnet
    build_for_rows,
    hyper_for,
    state_widths,
    update_rows,
)
from kvstore_mpi.server_optimizers.through_mxnet import leaves  # noqa: E402

pytestmark = pytest.mark.mxnet

SHAPE = (40, 6)
STEPS = 15
DECAY = {"wd": 0.01}
SCALE = {"rescale_grad": 0.25, "clip_gradient": 0.2}
CASES = [
    ("sgd", {}, "default"),
    ("sgd", {**DECAY, **SCALE}, "default"),
    ("sgd", {**DECAY, **SCALE}, "row_sparse"),
    ("sgd", {"momentum": 0.9}, "default"),
    ("sgd", {"momentum": 0.9, **DECAY, **SCALE}, "default"),
    ("sgd", {"momentum": 0.9, **DECAY, **SCALE}, "row_sparse"),
    ("adam", {}, "default"),
    ("adam", {**DECAY, **SCALE}, "default"),
    ("adam", {**DECAY, **SCALE}, "row_sparse"),
    ("ftrl", {}, "row_sparse"),
    ("ftrl", {**DECAY, **SCALE}, "row_sparse"),
    ("adagrad", {"wd": 0.0}, "row_sparse"),
    ("adagrad", {"wd": 0.0, **SCALE}, "row_sparse"),
    ("groupadagrad", {}, "default"),
    ("groupadagrad", SCALE, "default"),
]
"""What MXNet has kernels for: of the others it makes dense gradients."""


class Ours:
    """A table and its states, and the rule for its rows."""

    def __init__(self, optimizer, weight):
        self.spec = spec_from_optimizer(optimizer)
        self.rule = build_for_rows(self.spec)
        self.weight = weight.copy()
        widths = state_widths(self.rule, SHAPE[1], weight.dtype)
        self.state = tuple(np.zeros((SHAPE[0], width), weight.dtype) for width in widths)
        self.count = 0

    def push(self, ids, gradient):
        self.count += 1
        hyper = hyper_for(self.spec.hyper, 0, self.count)
        update_rows(self.rule, self.weight, ids, gradient, self.state, hyper=hyper, count=self.count)


class Theirs:
    """The same in one process without servers."""

    def __init__(self, optimizer, weight, stype):
        self.updater = mx.optimizer.get_updater(optimizer)
        self.weight = mx.nd.array(weight, dtype=weight.dtype).tostype(stype)

    def push(self, ids, gradient):
        self.updater(
            0,
            mx.nd.sparse.row_sparse_array((gradient, ids), shape=SHAPE, dtype=gradient.dtype),
            self.weight,
        )

    @property
    def state(self):
        return [leaf.asnumpy() for leaf in leaves(self.updater.states[0])]


@pytest.mark.parametrize(("name", "params", "stype"), CASES)
def test_lazy_updates_equal_mxnet(name, params, stype):
    """Weights and states end where MXNet's end; rows that had no gradient have not moved at all."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=SHAPE).astype(np.float32)
    ours = Ours(mx.optimizer.create(name, learning_rate=0.05, **params), weight)
    theirs = Theirs(mx.optimizer.create(name, learning_rate=0.05, **params), weight, stype)
    touched = set()
    for _ in range(STEPS):
        ids = np.sort(rng.choice(SHAPE[0] - 5, rng.integers(1, 9), replace=False))
        gradient = rng.normal(size=(len(ids), SHAPE[1])).astype(np.float32)
        ours.push(ids, gradient)
        theirs.push(ids, gradient)
        touched.update(ids.tolist())
    assert 10 < len(touched) < SHAPE[0]
    for mine, his in zip((ours.weight, *ours.state), (theirs.weight.asnumpy(), *theirs.state)):
        np.testing.assert_allclose(mine, his.reshape(mine.shape), rtol=2e-6, atol=1e-6)
    others = sorted(set(range(SHAPE[0])) - touched)
    np.testing.assert_array_equal(ours.weight[others], weight[others])
    assert not any(table[others].any() for table in ours.state)
    assert (np.abs(ours.weight - weight).max(axis=1) > 0).sum() == len(touched)


@pytest.fixture
def job():
    """Make jobs, and end them."""
    with hybrid_jobs() as make:
        yield make


def halves_after_steps(stores, name, stype):
    """Train a float16 weight with the stores of two workers, or one for both; give it after each step."""
    out = [mx.nd.zeros(SHAPE, dtype="float16") for _ in stores]
    for store in stores:
        rule = mx.optimizer.create(name, learning_rate=0.1, wd=0.1, multi_precision=True)
        if name == "sgd":
            rule.momentum = 0.9
        store.set_optimizer(rule)
        store.init("w", mx.nd.ones(SHAPE, dtype="float16").tostype(stype))
    for step in range(STEPS):
        ids = [1, 2 + step % 3, 20]
        for store in stores:
            values = np.full((3, SHAPE[1]), 0.25 * 2 / len(stores), np.float16)
            store.push("w", mx.nd.sparse.row_sparse_array((values, ids), shape=SHAPE, dtype="float16"))
        for store, each in zip(stores, out):
            store.pull("w", out=each, ignore_sparse=False)
        yield [each.asnumpy() for each in out]


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize(
    "how",
    [{"clients": 2}, {"workers_per_client": 2}, {"workers_per_client": 2, "servers": 0}],
    ids=["servers", "hybrid", "pure MPI"],
)
def test_float32_copies_of_halves(job, how, name, stype):
    """MXNet's SGD, which has no lazy kernel for them, moves all rows, and Adam those with a gradient."""
    stores = [KVStoreMPI("sync", each) for each in job(**how).workers]
    local = [mx.kv.create("local")]
    for ours, [theirs] in zip(
        halves_after_steps(stores, name, stype), halves_after_steps(local, name, "default")
    ):
        for each in ours:
            np.testing.assert_allclose(each, theirs, rtol=2e-3)
    assert (theirs[-1] == 1).all() == (name == "adam")
