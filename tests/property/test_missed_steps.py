"""Exact updates of tables: what rows have missed is made up for; dense training ends at the same place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.errors import UnsupportedError
from kvstore_mpi.server_optimizers import (
    Hyper,
    HyperParameters,
    MissedSteps,
    OptimizerSpec,
    build,
    build_for_rows,
    is_exact,
    state_widths,
    update_rows,
)

NUM_ROWS, WIDTH = 9, 3
RULES = st.sampled_from([("sgd", {}), ("sgd", {"momentum": 0.9}), ("nag", {}), ("nag", {"momentum": 0.8})])
HYPERS = st.builds(
    Hyper,
    lr=st.sampled_from([0.01, 0.1, 0.3]),
    wd=st.sampled_from([0.0, 0.1, 0.5]),
    rescale_grad=st.sampled_from([1.0, 0.5]),
    clip_gradient=st.sampled_from([None, 0.4]),
)
STEPS = st.lists(
    st.tuples(HYPERS, st.integers(1, 6), st.sets(st.integers(0, NUM_ROWS - 1), max_size=4)), max_size=8
)
"""Numbers of a step, how often it is repeated, and which rows have a gradient in each."""


class Table:
    """A weight and its states, updated densely or row by row."""

    def __init__(self, rule, dtype):
        name, params = rule
        self.optimizer = build_for_rows(
            OptimizerSpec(name=name, hyper=HyperParameters(lr=0.1), params=params)
        )
        self.weight = np.random.default_rng(1).normal(size=(NUM_ROWS, WIDTH)).astype(dtype)
        widths = state_widths(self.optimizer, WIDTH, self.weight.dtype)
        self.state = tuple(np.zeros((NUM_ROWS, width), dtype) for width in widths)
        self.all = np.arange(NUM_ROWS)
        self.missed = MissedSteps(self.optimizer, NUM_ROWS) if is_exact(self.optimizer) else None

    def dense(self, ids, rows, hyper, count):
        gradient = np.zeros_like(self.weight)
        gradient[ids] = rows
        self.optimizer.update(self.weight, gradient, self.state, hyper, count)

    def sparse(self, ids, rows, hyper, count):
        self.missed.catch_up(self.weight, self.state, ids)
        update_rows(self.optimizer, self.weight, ids, rows, self.state, hyper=hyper, count=count)
        self.missed.note(ids, hyper)

    def lazy(self, ids, rows, hyper, count):
        update_rows(self.optimizer, self.weight, ids, rows, self.state, hyper=hyper, count=count)

    def read(self, ids):
        self.missed.catch_up(self.weight, self.state, ids)
        return self.weight[ids]


@settings(deadline=None)
@given(rule=RULES, steps=STEPS, dtype=st.sampled_from(["float32", "float64"]), seed=st.integers(0, 99))
def test_rows_that_are_caught_up_with_equal_dense_training(rule, steps, dtype, seed):
    """Whatever rows have gradients when, and whatever numbers change; also when rows are read between."""
    rng = np.random.default_rng(seed)
    one, other = Table(rule, dtype), Table(rule, dtype)
    tolerance = 1e-11 if dtype == "float64" else 3e-5
    count = 0
    for hyper, repetitions, touched in steps:
        ids = np.array(sorted(touched), np.int64)
        for _ in range(repetitions):
            count += 1
            rows = rng.normal(size=(len(ids), WIDTH)).astype(dtype)
            one.dense(ids, rows, hyper, count)
            other.sparse(ids, rows, hyper, count)
        some = rng.permutation(NUM_ROWS)[: rng.integers(0, 3)]
        np.testing.assert_allclose(other.read(some), one.weight[some], tolerance, tolerance)
    np.testing.assert_allclose(other.read(other.all), one.weight, tolerance, tolerance)
    for mine, dense in zip(other.state, one.state):
        np.testing.assert_allclose(mine, dense, tolerance, tolerance)


@pytest.mark.parametrize("name", ["sgd", "nag"])
def test_very_many_steps_of_a_schedule(name):
    """A row that is touched at the ends of a long training is where dense training has brought it."""
    rule = (name, {"momentum": 0.9})
    one, other = Table(rule, "float64"), Table(rule, "float64")
    ids = np.array([2])
    rows = np.ones((1, WIDTH))
    for count in range(1, 3001):
        hyper = Hyper(0.1 / (1 + count // 7), 0.01, 1.0, None)
        some = ids if count in {1, 3000} else ids[:0]
        one.dense(some, rows[: len(some)], hyper, count)
        other.sparse(some, rows[: len(some)], hyper, count)
    assert other.missed.num_runs == 429
    np.testing.assert_allclose(other.read(other.all), one.weight, rtol=1e-9)


def test_equal_steps_cost_nothing_to_remember():
    """With constant numbers there is one run, however long."""
    table = Table(("sgd", {"momentum": 0.9}), "float32")
    for count in range(1, 100):
        table.sparse(np.array([1]), np.ones((1, WIDTH), "f"), Hyper(0.1, 0.1, 1.0, None), count)
    assert table.missed.num_runs == 1


def test_rows_that_come_into_being_have_missed_nothing():
    """New rows, and others in the slots of old ones, begin at the present."""
    table = Table(("sgd", {}), "float64")
    hyper = Hyper(0.5, 0.5, 1.0, None)
    nobody = np.empty(0, np.int64)
    for count in (1, 2):
        table.sparse(nobody, np.empty((0, WIDTH)), hyper, count)
    table.missed.grow(NUM_ROWS + 2)
    table.missed.renew(np.array([3]))
    table.weight = np.ones((NUM_ROWS + 2, WIDTH))
    caught_up = table.read(np.arange(NUM_ROWS + 2))[:, 0]
    expected = np.full(NUM_ROWS + 2, 0.75**2)
    expected[[3, NUM_ROWS, NUM_ROWS + 1]] = 1
    np.testing.assert_allclose(caught_up, expected)


def test_half_precision_is_rounded_once():
    """Dense training in float16 would round a hundred times, and not move at all here."""
    table = Table(("sgd", {}), "float16")
    table.weight[...] = 1
    nobody = np.empty(0, np.int64)
    for count in range(100):
        table.sparse(nobody, np.empty((0, WIDTH), "f"), Hyper(0.001, 0.1, 1.0, None), count + 1)
    np.testing.assert_allclose(table.read(table.all), (1 - 1e-4) ** 100, rtol=2**-11)


@pytest.mark.parametrize(
    ("rule", "wd", "begin", "equal"),
    [
        (("sgd", {}), 0.0, 1.0, True),
        (("sgd", {}), 0.1, 1.0, False),
        (("sgd", {"momentum": 0.9}), 0.0, 1.0, False),
        (("adam", {"lazy_update": True}), 0.0, 1.0, False),
        (("adagrad", {}), 0.0, 1.0, True),
        (("adagrad", {}), 0.1, 1.0, False),
        (("groupadagrad", {}), 0.0, 1.0, True),
        (("ftrl", {}), 0.0, 1.0, False),
        (("ftrl", {}), 0.1, 0.0, True),  # dense training sets all rows to zero in the first step
    ],
    ids=str,
)
def test_where_lazy_updates_are_those_of_dense_training(rule, wd, begin, equal):
    """As docs/sparse.md says it of each optimizer."""
    hyper = Hyper(0.1, wd, 1.0, None)
    rng = np.random.default_rng(0)
    one, other = Table(rule, "float64"), Table(rule, "float64")
    for table in (one, other):
        table.weight *= begin
    for count in range(1, 6):
        ids = np.array([count % 3, 4])
        rows = rng.normal(size=(2, WIDTH))
        one.dense(ids, rows, hyper, count)
        other.lazy(ids, rows, hyper, count)
    assert np.allclose(one.weight, other.weight, 1e-12, 1e-12) == equal


@pytest.mark.parametrize("name", ["adam", "adagrad", "ftrl", "rmsprop"])
def test_optimizers_that_cannot_be_exact_say_so(name):
    """Their steps without a gradient are not linear, or there is nothing to make up for."""
    optimizer = build(OptimizerSpec(name=name, hyper=HyperParameters(lr=0.1)))
    assert not is_exact(optimizer)
    with pytest.raises(UnsupportedError, match=rf"(?i){name} without a gradient.*sparse_grad=False"):
        MissedSteps(optimizer, 4)
