"""Averages of rows that are updated now and then are those of all rows after every step, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers import (
    HyperParameters,
    OptimizerSpec,
    build,
    build_for_rows,
    hyper_for,
    is_elementwise,
    state_widths,
    terms_of,
    update_rows,
)
from kvstore_mpi.server_optimizers.averages import Averaged, brought_up

ROWS, WIDTH = 6, 3

steps = st.lists(st.sets(st.integers(0, ROWS - 1)), max_size=12)
decays = st.floats(0.01, 0.999)
rules = st.sampled_from(["sgd", "adam", "adagrad", "groupadagrad"])


def spec_of(rule, decay, **params):
    """Describe a rule with averages."""
    inner = OptimizerSpec(
        name=rule,
        hyper=HyperParameters(lr=0.25),
        params=params,
        through_mxnet=rule == "groupadagrad",
    )
    return Averaged("sgd", learning_rate=0.0, decay=decay).around(inner)


@given(steps, decays, rules)
def test_rows_have_the_averages_that_all_rows_would_have(steps, decay, rule):
    """Whenever they are updated, and whenever they are read; the weights are those of the inner rule."""
    spec = spec_of(rule, decay)
    optimizer, inner = build_for_rows(spec), build_for_rows(spec).rule
    random = np.random.default_rng(1)
    weight = random.normal(size=(ROWS, WIDTH))
    alone = weight.copy()
    state = tuple(np.zeros((ROWS, width)) for width in state_widths(optimizer, WIDTH, weight.dtype))
    states_alone = tuple(np.zeros((ROWS, width)) for width in state_widths(inner, WIDTH, weight.dtype))
    expected = weight.copy()
    for count, rows in enumerate(steps, 1):
        slots = np.array(sorted(rows), np.int64)
        gradient = random.normal(size=(len(rows), WIDTH))
        hyper = hyper_for(spec.hyper, 0, count)
        update_rows(optimizer, weight, slots, gradient, state, hyper=hyper, count=count)
        update_rows(inner, alone, slots, gradient, states_alone, hyper=hyper, count=count)
        expected = decay * expected + (1 - decay) * weight
        np.testing.assert_array_equal(weight, alone)
        read = brought_up(weight, state[-2], state[-1], count, decay)
        np.testing.assert_allclose(read, expected, rtol=1e-12, atol=1e-14)


@given(st.integers(0, 12), decays, st.sampled_from(["sgd", "adam", "adagrad"]))
def test_dense_weights_have_averages(count, decay, rule):
    """From the first weight on; a key that is updated slice by slice has them as well."""
    optimizer = build(spec_of(rule, decay))
    random = np.random.default_rng(2)
    weight = random.normal(size=ROWS)
    state, expected = optimizer.init(weight), weight.copy()
    for number in range(1, count + 1):
        hyper = hyper_for(HyperParameters(lr=0.25), 0, number)
        optimizer.update(weight, random.normal(size=ROWS), state, hyper, number)
        expected = decay * expected + (1 - decay) * weight
    np.testing.assert_allclose(state[-1], expected, rtol=1e-12, atol=1e-14)


def test_rows_that_move_without_a_gradient_cannot_be_averaged_later():
    """Such a key travels densely, or is refused where it cannot."""
    assert is_elementwise(spec_of("sgd", 0.9, momentum=0.5))
    assert not is_elementwise(spec_of("sgd", 0.9, lazy_update=False))
    assert not is_elementwise(spec_of("nag", 0.9))
    assert terms_of(spec_of("adam", 0.9)) == terms_of(
        OptimizerSpec(name="adam", hyper=HyperParameters(lr=1))
    )


def test_half_precision_and_impossible_decays_are_refused():
    """In words."""
    with pytest.raises(UsageError, match="multi_precision=True"):
        build(spec_of("sgd", 0.9)).init(np.zeros(3, np.float16))
    for decay in (0.0, 1.0, float("nan"), "much"):
        with pytest.raises(UsageError, match="decay must be a number"):
            spec_of("sgd", decay)
