"""Properties of the servers' update rules: cuts do not matter, messages lose nothing, caches hide."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.server_optimizers import RULES, Hyper, HyperParameters, OptimizerSpec, build, hyper_for
from kvstore_mpi.server_optimizers.schedules import (
    CosineSchedule,
    FactorSchedule,
    MultiFactorSchedule,
    PolySchedule,
)

NUMBERS = st.floats(-10, 10)
RATES = st.floats(0, 1)
KEYS = st.one_of(st.integers(0, 5), st.sampled_from(["a", "b", "1"]))
HYPERS = st.builds(
    Hyper,
    lr=RATES,
    wd=st.sampled_from([0.0, 1e-4, 0.1]),
    rescale_grad=st.sampled_from([1.0, 1 / 128, 3.0]),
    clip_gradient=st.sampled_from([None, 0.5]),
)
PARAMS = {
    "sgd": st.fixed_dictionaries({"momentum": st.sampled_from([0.0, 0.9])}),
    "nag": st.fixed_dictionaries({"momentum": st.sampled_from([0.0, 0.9])}),
    "rmsprop": st.fixed_dictionaries(
        {"centered": st.booleans(), "clip_weights": st.sampled_from([None, 0.5])}
    ),
    "adam": st.just({}),
    "adagrad": st.just({}),
    "ftrl": st.just({}),
}
SCHEDULES = st.one_of(
    st.none(),
    st.builds(FactorSchedule, base_lr=RATES, step=st.integers(1, 5), factor=RATES),
    st.builds(
        MultiFactorSchedule,
        base_lr=RATES,
        step=st.lists(st.integers(1, 20), min_size=1, unique=True).map(sorted),
        factor=RATES,
    ),
    st.builds(PolySchedule, base_lr=RATES, base_lr_orig=RATES, max_update=st.integers(1, 20)),
    st.builds(CosineSchedule, base_lr=RATES, base_lr_orig=RATES, max_update=st.integers(1, 20)),
)
MULTIPLIERS = st.dictionaries(KEYS, RATES, max_size=4).map(lambda table: list(table.items()))
HYPER_PARAMETERS = st.builds(
    HyperParameters,
    lr=RATES,
    wd=RATES,
    rescale_grad=NUMBERS,
    clip_gradient=st.one_of(st.none(), RATES),
    lr_mult=MULTIPLIERS,
    wd_mult=MULTIPLIERS,
    scheduler=SCHEDULES,
    begin_num_update=st.integers(0, 10),
)


def run(optimizer, weights, gradients, hyper, pieces):
    """Update pieces of an array as if each were a slice; return weight and states joined."""
    parts = []
    for lo, hi in pieces:
        weight = weights[lo:hi].copy()
        state = optimizer.init(weight)
        for count, gradient in enumerate(gradients, start=1):
            optimizer.update(weight, gradient[lo:hi].copy(), state, hyper, count)
        parts.append((weight, *state))
    return [np.concatenate(arrays) for arrays in zip(*parts)]


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    hyper=HYPERS,
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    size=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_results_do_not_depend_on_slices(*, name, data, hyper, dtype, size, seed):
    """However a key is cut, weights and states are the same bit for bit."""
    optimizer = build(
        OptimizerSpec(name=name, hyper=HyperParameters(lr=0.1), params=data.draw(PARAMS[name]))
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, size), max_size=6)) | {0, size})
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=size).astype(dtype)
    gradients = rng.normal(size=(3, size)).astype(dtype)
    whole = run(optimizer, weights, gradients, hyper, [(0, size)])
    sliced = run(optimizer, weights, gradients, hyper, list(itertools.pairwise(cuts)))
    assert len(whole) == len(sliced)
    for one, other in zip(whole, sliced):
        assert one.tobytes() == other.tobytes()


@settings(deadline=None)
@given(hyper=HYPER_PARAMETERS)
def test_hyper_parameters_survive_a_message(hyper):
    """Every number and every kind of key comes back as it was sent."""
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(hyper.to_dict()))
    assert HyperParameters.from_dict(wire) == hyper


@settings(deadline=None)
@given(hyper=HYPER_PARAMETERS, calls=st.lists(st.tuples(KEYS, st.integers(1, 30)), max_size=20))
def test_hyper_does_not_depend_on_earlier_calls(hyper, calls):
    """The numbers of an update are a function of hyper-parameters, key and count alone."""
    for key, count in calls:
        fresh = HyperParameters.from_dict(hyper.to_dict())
        assert hyper_for(hyper, key, count) == hyper_for(fresh, key, count)


@settings(deadline=None)
@given(schedule=SCHEDULES.filter(bool), num_update=st.integers(1, 1000))
def test_rates_never_rise_after_the_warm_up(schedule, num_update):
    """Whatever the parameters, no schedule ends above where it begins, nor below zero."""
    start = max(schedule.lr_at(1), getattr(schedule, "stop_factor_lr", 0.0))
    assert -1e-12 <= schedule.lr_at(num_update) <= start + 1e-12
