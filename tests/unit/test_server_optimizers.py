"""The servers' own update rules against their formulas, element by element, and the specs behind them."""

from __future__ import annotations

import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers import RULES, Hyper, HyperParameters, OptimizerSpec, build, hyper_for
from kvstore_mpi.server_optimizers.schedules import (
    CosineSchedule,
    FactorSchedule,
    MultiFactorSchedule,
    PolySchedule,
)

PLAIN = Hyper(lr=0.1, wd=0.0, rescale_grad=1.0, clip_gradient=None)
FULL = Hyper(lr=0.05, wd=0.02, rescale_grad=0.5, clip_gradient=0.4)
RULE_PARAMS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "lazy_update": False}),
    ("nag", {}),
    ("nag", {"momentum": 0.9}),
    ("adam", {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6}),
    ("adagrad", {"eps": 1e-6}),
    ("rmsprop", {"gamma1": 0.8}),
    ("rmsprop", {"gamma1": 0.8, "gamma2": 0.7, "centered": True, "epsilon": 1e-3}),
    ("rmsprop", {"clip_weights": 0.6}),
]


def make(name, params=(), **hyper):
    return build(
        OptimizerSpec(name=name, hyper=HyperParameters(**{"lr": 0.1, **hyper}), params=dict(params))
    )


def clip(value, bound):
    return value if bound is None else max(-bound, min(bound, value))


def sgd(params, element, hyper, clipped, t):
    (w, *state), mu, (inner, _) = element, params.get("momentum", 0.0), clipped
    descent = hyper.lr * (inner + hyper.wd * w)
    if not state:
        return [w - descent]
    m = mu * state[0] - descent
    return [w + m, m]


def nag(params, element, hyper, clipped, t):
    if len(element) == 1:
        return sgd(params, element, hyper, clipped, t)
    (w, m), mu, (inner, _) = element, params["momentum"], clipped
    descent = hyper.lr * (inner + hyper.wd * w)
    new = w + mu * (mu * m - descent) - descent
    return [new, mu * m - hyper.lr * (inner + hyper.wd * new)]


def adam(params, element, hyper, clipped, t):
    (w, m, v), b1, b2, (_, outer) = element, params["beta1"], params["beta2"], clipped
    m, v = b1 * m + (1 - b1) * outer, b2 * v + (1 - b2) * outer**2
    lr_t = hyper.lr * math.sqrt(1 - b2**t) / (1 - b1**t)
    return [w - lr_t * m / (math.sqrt(v) + params["epsilon"]), m, v]


def adagrad(params, element, hyper, clipped, t):
    inner, _ = clipped
    w, h = element[0], element[1] + inner**2
    return [w - hyper.lr * (inner / math.sqrt(h + params["eps"]) + hyper.wd * w), h]


def rmsprop(params, element, hyper, clipped, t):
    g1, eps, (_, outer) = params.get("gamma1", 0.9), params.get("epsilon", 1e-8), clipped
    w, n = element[0], g1 * element[1] + (1 - g1) * outer**2
    if not params.get("centered"):
        return [clip(w - hyper.lr * outer / math.sqrt(n + eps), params.get("clip_weights")), n]
    m = g1 * element[2] + (1 - g1) * outer
    delta = params["gamma2"] * element[3] - hyper.lr * outer / math.sqrt(n - m**2 + eps)
    return [w + delta, n, m, delta]


FORMULAS = {"sgd": sgd, "nag": nag, "adam": adam, "adagrad": adagrad, "rmsprop": rmsprop}
"""Weight and states of one element, [w, *states], after an update; in Python floats."""


def follow(name, params, element, gradient, *, hyper, count):
    """Apply a formula to one element; ``inner`` is the gradient clipped without decay, ``outer`` with."""
    scaled = hyper.rescale_grad * gradient
    inner = clip(scaled, hyper.clip_gradient)
    outer = clip(scaled + hyper.wd * element[0], hyper.clip_gradient)
    return FORMULAS[name](params, element, hyper, (inner, outer), count)


@pytest.mark.parametrize("hyper", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize(("name", "params"), RULE_PARAMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rule_follows_its_formula(name, params, hyper, dtype):
    """Weight and every state array follow the documented formula over ten steps."""
    rng = np.random.default_rng(7)
    optimizer = make(name, params)
    weight = rng.normal(size=9).astype(dtype)
    state = optimizer.init(weight)
    elements = [[float(w)] + [0.0] * len(state) for w in weight]
    for count in range(1, 11):
        gradient = rng.normal(size=9).astype(dtype)
        elements = [
            follow(name, params, element, float(g), hyper=hyper, count=count)
            for element, g in zip(elements, gradient)
        ]
        optimizer.update(weight, gradient, state, hyper, count)
    for array, expected in zip((weight, *state), zip(*elements)):
        np.testing.assert_allclose(array, expected, rtol=2e-5, atol=2e-6)
        assert array.dtype == dtype


@pytest.mark.parametrize(("name", "params"), RULE_PARAMS)
def test_float16_without_master_is_near_the_exact_result(name, params):
    """Float16 weights and states stay float16 and lose no more than their own precision per step."""
    rng = np.random.default_rng(3)
    optimizer = make(name, params)
    half = rng.normal(size=50).astype("float16")
    exact = half.astype("float64")
    half_state, exact_state = optimizer.init(half), optimizer.init(exact)
    for count in (1, 2, 3):
        gradient = rng.normal(size=50).astype("float16")
        optimizer.update(exact, gradient.astype("float64"), exact_state, FULL, count)
        optimizer.update(half, gradient, half_state, FULL, count)
    assert half.dtype == np.float16
    assert {array.dtype for array in half_state} <= {np.dtype("float16")}
    np.testing.assert_allclose(half, exact, atol=5e-3)


@pytest.mark.parametrize(("name", "params"), RULE_PARAMS)
def test_float16_is_computed_in_float32_and_rounded_once(name, params):
    """The weight is what the float32 rule makes of the same numbers, to the last bit."""
    random = np.random.RandomState(7)
    half, gradient = (random.normal(size=50).astype(np.float16) for _ in range(2))
    rule, single = make(name, params), half.astype(np.float32)
    rule.update(half, gradient.copy(), rule.init(half), FULL, 1)
    rule.update(single, gradient.astype(np.float32), rule.init(single), FULL, 1)
    np.testing.assert_array_equal(half, single.astype(np.float16))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.filterwarnings("error")
def test_nan_and_infinity_pass_through_in_silence(name):
    """A NaN or infinite gradient spoils its own element only, without a warning."""
    optimizer = make(name)
    weight = np.ones(3, "float32")
    gradient = np.array([np.nan, np.inf, 0.5], "float32")
    optimizer.update(weight, gradient, optimizer.init(weight), PLAIN, 1)
    assert np.isnan(weight[0])
    assert not np.isfinite(weight[1])
    assert np.isfinite(weight[2])


@pytest.mark.parametrize("name", RULES)
def test_empty_weights_are_fine(name):
    """A slice without elements can be updated."""
    optimizer = make(name)
    weight = np.zeros(0, "float32")
    optimizer.update(weight, weight.copy(), optimizer.init(weight), FULL, 1)
    assert weight.size == 0


@pytest.mark.parametrize("bound", [0.0, -1.0, None])
def test_a_bound_that_is_not_positive_clips_nothing(bound):
    """Like MXNet, clip_gradient=0 means no clipping."""
    weight = np.zeros(1, "float32")
    make("sgd").update(weight, np.array([100.0], "float32"), (), PLAIN._replace(clip_gradient=bound), 1)
    assert weight[0] == -10.0


@pytest.mark.parametrize("name", RULES)
def test_integer_weights_are_refused(name):
    """An optimizer cannot be put on an integer key, and the error says which dtype."""
    with pytest.raises(UsageError, match="int32"):
        make(name).init(np.zeros(3, "int32"))


def test_adam_counts_the_updates_before_the_first():
    """begin_num_update shifts Adam's bias correction."""
    gradient = np.full(2, 0.3, "float64")
    shifted, late = np.zeros(2), np.zeros(2)
    begun, fresh = make("adam", begin_num_update=10), make("adam")
    begun.update(shifted, gradient.copy(), begun.init(shifted), PLAIN, 1)
    fresh.update(late, gradient.copy(), fresh.init(late), PLAIN, 11)
    np.testing.assert_array_equal(shifted, late)


def test_unknown_names_and_parameters_are_usage_errors():
    """The error lists what exists."""
    with pytest.raises(UsageError, match=r"'sgdd'.*adagrad, adam, ftrl, nag, rmsprop, sgd"):
        make("sgdd")
    with pytest.raises(UsageError, match=r"momentun.*momentum, lazy_update"):
        make("sgd", {"momentun": 0.9})
    with pytest.raises(UsageError, match=r"Expected `float`"):
        make("sgd", {"momentum": "0.9"})


def test_hyper_applies_multipliers_to_the_keys_that_have_them():
    """lr and wd are multiplied per key; int and str keys are different keys."""
    hyper = HyperParameters(
        lr=0.5, wd=0.1, rescale_grad=0.25, clip_gradient=2.0, lr_mult=[(1, 3.0)], wd_mult=[("1", 0.0)]
    )
    assert hyper_for(hyper, 1, 1) == Hyper(1.5, 0.1, 0.25, 2.0)
    assert hyper_for(hyper, "1", 1) == Hyper(0.5, 0.0, 0.25, 2.0)
    assert hyper_for(hyper, 1, 2) is hyper_for(hyper, 1, 3)


def test_hyper_asks_the_schedule_at_the_keys_own_count():
    """The schedule sees begin_num_update plus the key's count, also when counts go back."""
    schedule = FactorSchedule(base_lr=1.0, step=2, factor=0.5)
    hyper = HyperParameters(lr=99.0, scheduler=schedule, begin_num_update=1, lr_mult=[("b", 10.0)])
    assert [hyper_for(hyper, "a", count).lr for count in (1, 2, 3, 4, 1)] == [1.0, 0.5, 0.5, 0.25, 1.0]
    assert hyper_for(hyper, "b", 2).lr == 5.0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            FactorSchedule(base_lr=1.0, step=2, factor=0.1, stop_factor_lr=0.05),
            [1, 1, 1, 0.1, 0.1, 0.05, 0.05],
        ),
        (FactorSchedule(base_lr=0.5, step=2, factor=0.5, count=2), [0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]),
        (MultiFactorSchedule(base_lr=1.0, step=[1, 4], factor=0.5), [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
        (
            MultiFactorSchedule(base_lr=0.5, step=[1, 4], factor=0.5, cur_step_ind=1),
            [0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25],
        ),
        (
            PolySchedule(base_lr=9.0, base_lr_orig=1.0, max_update=4, power=1.0),
            [1, 0.75, 0.5, 0.25, 0, 0, 0],
        ),
        (
            CosineSchedule(base_lr=9.0, base_lr_orig=1.0, max_update=2, final_lr=0.5),
            [1, 0.75, 0.5] + [0.5] * 4,
        ),
        (
            PolySchedule(base_lr=9.0, base_lr_orig=1.0, max_update=3, warmup_steps=3, warmup_final_lr=1.0),
            [0, 1 / 3, 2 / 3, 9, 9, 9, 9],
        ),
        (
            FactorSchedule(
                base_lr=1.0, step=9, warmup_steps=2, warmup_begin_lr=0.25, warmup_mode="constant"
            ),
            [0.25, 0.25, 1, 1, 1, 1, 1],
        ),
    ],
)
def test_schedules(schedule, expected):
    """Each schedule gives the rates that its description promises for updates 0 to 6."""
    assert [schedule.lr_at(n) for n in range(7)] == pytest.approx(expected)


def test_spec_survives_a_message():
    """A spec that went through msgpack as a dict equals the original."""
    spec = OptimizerSpec(
        name="sgd",
        hyper=HyperParameters(
            lr=1,
            lr_mult=[(0, 2.0), ("w", 0.0)],
            scheduler=CosineSchedule(base_lr=1.0, base_lr_orig=1.0, max_update=5),
        ),
        params={"momentum": 0.9, "lazy_update": True},
        multi_precision=True,
    )
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(spec.to_dict()))
    assert OptimizerSpec.from_dict(wire) == spec


def test_data_that_are_no_spec_are_refused():
    """A dict of another form is an error that names the record and the field."""
    with pytest.raises(UsageError, match=r"OptimizerSpec.*hyper"):
        OptimizerSpec.from_dict({"name": "sgd"})
    with pytest.raises(UsageError, match=r"HyperParameters.*lr"):
        HyperParameters.from_dict({"lr": "fast"})


def in_fresh_python(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False
    )


def test_native_rules_do_not_import_mxnet():
    """Serving with the servers' own rules never imports mxnet."""
    result = in_fresh_python(
        "import sys, numpy as np\n"
        "from kvstore_mpi.server_optimizers import *\n"
        "hyper = HyperParameters(lr=0.1)\n"
        "for name in RULES:\n"
        "    rule = build(OptimizerSpec(name=name, hyper=hyper)).bind('k', (2, 2))\n"
        "    weight = np.ones(4, 'f')\n"
        "    rule.update(weight, weight * 1, rule.init(weight), hyper_for(hyper, 'k', 1), 1)\n"
        "assert 'mxnet' not in sys.modules\n"
    )
    assert result.returncode == 0, result.stderr


def test_optimizers_of_mxnet_without_mxnet_say_what_to_install():
    """A server without mxnet names the optimizer and the remedy."""
    result = in_fresh_python(
        "import sys\n"
        "sys.modules['mxnet'] = None\n"
        "from kvstore_mpi.errors import UsageError\n"
        "from kvstore_mpi.server_optimizers import *\n"
        "try:\n"
        "    build(OptimizerSpec(name='lamb', hyper=HyperParameters(lr=0.1), through_mxnet=True))\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )
    assert "'lamb'" in result.stdout
    assert "kvstore_mpi[mxnet]" in result.stdout
