"""The servers compute what MXNet's own optimizers compute, with all the numbers that a script may set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

mx = pytest.importorskip("mxnet")

from support.optimizer_parties import (  # noqa: E402
    FOREIGN,
    NATIVE,
    Local,
    Servers,
    assert_same,
    optimizer_pair,
    random_weights,
    train,
)

from kvstore_mpi.adapters.hyper_watch import HyperWatch  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.hyper_parameters import MXNetHyper, hyper_from_optimizer  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.optimizer_spec import spec_from_optimizer  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.optimizer_states import states_from_mxnet  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402  after the check for mxnet
from kvstore_mpi.server_optimizers import RULES, OptimizerSpec, build, hyper_for, terms_of  # noqa: E402

pytestmark = pytest.mark.mxnet

SHAPES = {0: (5, 4), 1: (7,)}
ONE_KEY = {0: (5, 4)}
OPTIONS = {
    "plain": {},
    "full": {"wd": 0.01, "rescale_grad": 0.25, "clip_gradient": 0.2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("name", "params"), NATIVE)
def test_native_rule_in_float32(name, params, options):
    """Twenty steps of a native rule end where MXNet's end, and so do the states."""
    ours, theirs = optimizer_pair(name, {**params, **options, "learning_rate": 0.05})
    weights = random_weights("float32", SHAPES)
    servers, local = Servers(ours, weights), Local(theirs, weights)
    assert not servers.spec.through_mxnet
    train([servers, local], weights, steps=20)
    assert_same(servers, local, weights)
    loaded = states_from_mxnet(theirs, local.updater.states, {k: (s, "float32") for k, s in SHAPES.items()})
    for key, state in loaded.items():
        assert state.count == 20
        assert len(state.arrays) == len(servers.states[key])
        for ours_array, their_array in zip(servers.states[key], state.arrays):
            np.testing.assert_allclose(ours_array, their_array, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("name", "params"), [case for case in NATIVE if case[0] in ("sgd", "nag", "adam")])
def test_native_rule_in_float64(name, params, options):
    """In float64 as well, up to the single precision in which MXNet holds its hyper-parameters."""
    ours, theirs = optimizer_pair(name, {**params, **options, "learning_rate": 0.05})
    weights = random_weights("float64", SHAPES)
    servers, local = Servers(ours, weights), Local(theirs, weights)
    train([servers, local], weights, steps=20)
    assert_same(servers, local, weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("name", "params"), NATIVE)
def test_native_rule_with_a_float32_master_of_float16_weights(name, params, options):
    """Under multi-precision the float16 weights agree to the last bit but one."""
    ours, theirs = optimizer_pair(
        name, {**params, **options, "learning_rate": 0.05, "multi_precision": True}
    )
    weights = random_weights("float16", SHAPES)
    servers, local = Servers(ours, weights), Local(theirs, weights)
    train([servers, local], weights, steps=20)
    assert_same(servers, local, weights, rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("name", "params"), FOREIGN)
@pytest.mark.parametrize("key", [0, 1])
def test_any_other_optimizer_runs_through_mxnet(name, params, options, key):
    """A key that servers update through MXNet ends exactly where MXNet's own Updater ends."""
    ours, theirs = optimizer_pair(name, {**params, **options})
    weights = random_weights("float32", {key: SHAPES[key]})
    servers, local = Servers(ours, weights), Local(theirs, weights)
    assert servers.spec.through_mxnet
    train([servers, local], weights, steps=20)
    assert_same(servers, local, weights, rtol=1e-6, atol=1e-7)


def test_group_adagrad_sees_the_shape_of_its_key():
    """An optimizer that works row by row gets rows, and its state may be smaller than the weight."""
    ours, theirs = optimizer_pair("groupadagrad", {"learning_rate": 0.1})
    weights = random_weights("float32", ONE_KEY)
    servers, local = Servers(ours, weights), Local(theirs, weights)
    train([servers, local], weights, steps=5)
    assert_same(servers, local, weights)
    assert [array.shape for array in servers.states[0]] == [(5,)]


def test_sgld_runs():
    """The sampler, whose noise cannot be compared, moves the weight and keeps it finite."""
    weights = random_weights("float32", ONE_KEY)
    servers = Servers(mx.optimizer.create("sgld", learning_rate=0.01), weights)
    servers.push(0, np.ones((5, 4), "float32"))
    assert np.isfinite(servers.value(0)).all()
    assert (servers.value(0) != weights[0]).all()


def test_lamb_with_a_float32_master():
    """Whole-tensor optimizers work on the master copy like element-wise ones."""
    ours, theirs = optimizer_pair("lamb", {"learning_rate": 0.02, "multi_precision": True})
    weights = random_weights("float16", ONE_KEY)
    servers, local = Servers(ours, weights), Local(theirs, weights)
    train([servers, local], weights, steps=20)
    assert_same(servers, local, weights, rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_through_mxnet_takes_scalars_and_empty_arrays(shape):
    """Shapes that MXNet reads as unknown are no trouble."""
    servers = Servers(mx.optimizer.create("adamax"), {"k": np.ones(shape, "float32")})
    servers.push("k", np.ones(shape, "float32"))
    assert servers.value("k").shape == shape
    assert (servers.value("k") < 1).all()


@pytest.mark.parametrize("name", ["sgd", "lamb"])
def test_gradient_of_the_caller_may_be_reused(name):
    """The update has ended when the call returns: overwriting the gradient changes nothing."""
    servers = Servers(mx.optimizer.create(name), {"k": np.ones(50_000, "float32")})
    gradient = np.ones(50_000, "float32")
    servers.rules["k"].update(
        servers.weights["k"], gradient, servers.states["k"], hyper_for(servers.hyper, "k", 1), 1
    )
    before = servers.value("k").copy()
    gradient[:] = np.nan
    np.testing.assert_array_equal(servers.value("k"), before)


def test_what_mxnet_asserts_is_a_usage_error():
    """Its GroupAdaGrad takes weights of two dimensions, which a bias has not."""
    with pytest.raises(
        UsageError, match=r"'groupadagrad' cannot update key 'bias', \(3,\) float32: Assert"
    ):
        Servers(mx.optimizer.create("groupadagrad"), {"bias": np.ones(3, "float32")})


def test_what_mxnet_refuses_is_a_usage_error():
    """An error from MXNet's kernels names optimizer, key and remedy."""
    servers = Servers(mx.optimizer.create("adadelta"), {"embed": np.ones(3, "float64")})
    with pytest.raises(
        UsageError, match=r"'adadelta' cannot update key 'embed'.*float64.*update_on_kvstore=False"
    ):
        servers.push("embed", np.ones(3, "float64"))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [("nonesuch", {}, "no optimizer 'nonesuch'.*lamb"), ("lamb", {"beta9": 1}, "cannot be made.*beta9")],
)
def test_through_mxnet_refuses_what_mxnet_does_not_know(name, params, message):
    """An unknown name or hyper-parameter is an error when the optimizer is built."""
    spec = OptimizerSpec(
        name=name,
        hyper=hyper_from_optimizer(mx.optimizer.create("sgd"), []),
        params=params,
        through_mxnet=True,
    )
    with pytest.raises(UsageError, match=message):
        build(spec)


# --- multipliers and schedules -----------------------------------------------------------------------


class Parameter:
    """As much of a gluon.Parameter as an optimizer reads."""

    def __init__(self, lr_mult=1.0, wd_mult=1.0):
        self.lr_mult, self.wd_mult = lr_mult, wd_mult


def with_parameters(optimizer):
    optimizer.param_dict = {0: Parameter(lr_mult=0.5), 1: Parameter(wd_mult=3.0)}


def with_names(optimizer):
    optimizer.idx2name = {0: "fc_weight", 1: "fc_bias"}
    optimizer.set_wd_mult({"fc_weight": 2.0})
    optimizer.set_lr_mult({1: 0.25})


@pytest.mark.parametrize("configure", [with_parameters, with_names])
@pytest.mark.parametrize("name", ["sgd", "adam", "lamb"])
def test_multipliers_of_every_kind_count(configure, name):
    """lr_mult and wd_mult of parameters, names and indices act on the servers as in MXNet."""
    ours, theirs = optimizer_pair(name, {"wd": 0.1})
    configure(ours)
    configure(theirs)
    weights = random_weights("float32", SHAPES)
    servers, local = Servers(ours, weights), Local(theirs, weights)
    train([servers, local], weights, steps=10)
    assert_same(servers, local, weights)


def test_names_as_keys_have_the_default_decay_of_their_names():
    """Under Module, whose keys are names, biases are not decayed."""
    optimizer = mx.optimizer.create("sgd", wd=0.1, param_idx2name={0: "fc_weight", 1: "fc_bias"})
    hyper = hyper_from_optimizer(optimizer, ["fc_weight", "fc_bias"])
    assert hyper_for(hyper, "fc_weight", 1).wd == 0.1
    assert hyper_for(hyper, "fc_bias", 1).wd == 0.0
    assert hyper.wd_mult == [("fc_bias", 0.0), (1, 0.0)]


WARM_UPS = st.fixed_dictionaries(
    {
        "warmup_steps": st.integers(0, 8),
        "warmup_begin_lr": st.sampled_from([0.0, 0.001]),
        "warmup_mode": st.sampled_from(["linear", "constant"]),
        "base_lr": st.sampled_from([0.01, 0.3]),
    }
)
FACTORS = st.sampled_from([1.0, 0.9, 0.1, 0.0])
SCHEDULERS = st.one_of(
    st.tuples(
        st.just("FactorScheduler"),
        st.fixed_dictionaries(
            {
                "step": st.one_of(st.integers(1, 6), st.sampled_from([1.5, 2.25])),
                "factor": FACTORS,
                "stop_factor_lr": st.sampled_from([1e-8, 0.05]),
            }
        ),
    ),
    st.tuples(
        st.just("MultiFactorScheduler"),
        st.fixed_dictionaries(
            {
                "step": st.lists(st.integers(1, 30), min_size=1, max_size=5, unique=True).map(sorted),
                "factor": FACTORS,
            }
        ),
    ),
    st.tuples(
        st.just("PolyScheduler"),
        st.fixed_dictionaries(
            {
                "max_update": st.integers(9, 40),
                "pwr": st.sampled_from([1, 2, 0.5]),
                "final_lr": st.sampled_from([0, 0.001]),
            }
        ),
    ),
    st.tuples(
        st.just("CosineScheduler"),
        st.fixed_dictionaries({"max_update": st.integers(9, 40), "final_lr": st.sampled_from([0, 0.001])}),
    ),
)


@settings(deadline=None, max_examples=200)
@given(
    scheduler=SCHEDULERS,
    warm_up=WARM_UPS,
    learning_rate=st.sampled_from([None, 0.01, 0.2]),
    begin=st.integers(0, 8),
    described_after=st.integers(0, 30),
)
def test_schedules_equal_mxnets_schedulers(*, scheduler, warm_up, learning_rate, begin, described_after):
    """Described at any moment, a scheduler gives MXNet's rates from then on; learning_rate overrides it."""
    kind, params = scheduler
    optimizer = mx.optimizer.create(
        "sgd",
        learning_rate=learning_rate,
        begin_num_update=begin,
        lr_scheduler=getattr(mx.lr_scheduler, kind)(**params, **warm_up),
    )
    rates = [optimizer.lr_scheduler(begin + count) for count in range(1, described_after + 1)]
    hyper = hyper_from_optimizer(optimizer, [0])
    for count in range(described_after + 1, 60):
        rate = optimizer.lr_scheduler(begin + count)
        assert hyper_for(hyper, 0, count).lr == pytest.approx(rate, rel=1e-12, abs=1e-15)
        rates.append(rate)
    assert len(rates) == 59


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb"])
def test_training_with_a_schedule(name):
    """Rates of a schedule, warm-up and begin_num_update act on the servers as in MXNet."""

    def create():
        schedule = mx.lr_scheduler.CosineScheduler(max_update=18, base_lr=0.1, warmup_steps=6)
        return mx.optimizer.create(name, lr_scheduler=schedule, learning_rate=0.1, begin_num_update=3)

    weights = random_weights("float32", SHAPES)
    servers, local = Servers(create(), weights), Local(create(), weights)
    train([servers, local], weights, steps=20)
    assert_same(servers, local, weights)


# --- changes while training --------------------------------------------------------------------------


def test_watch_returns_numbers_once_per_change():
    """Each kind of change is noticed by the next push that it matters for, and only once."""
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1)
    optimizer.param_dict = {0: Parameter(), 1: Parameter()}
    keys = [0]
    watch = HyperWatch(MXNetHyper(optimizer), keys)
    assert watch.changed(0) == hyper_from_optimizer(optimizer, keys)
    assert watch.changed(0) is None
    keys.append(1)
    assert watch.changed(1) is None
    for name, value in [("lr", 0.2), ("wd", 0.01), ("rescale_grad", 0.5), ("clip_gradient", 1.0)]:
        setattr(optimizer, name, value)
        assert getattr(watch.changed(0), name) == value
        assert watch.changed(1) is None
    optimizer.param_dict[1].lr_mult = 7.0
    assert watch.changed(0) is None
    assert watch.changed(1).lr_mult == [(1, 7.0)]
    assert watch.changed(1) is None
    optimizer.lr_scheduler = mx.lr_scheduler.FactorScheduler(5, base_lr=0.4)
    assert watch.changed(0).scheduler.base_lr == 0.4
    optimizer.lr_scheduler.base_lr = 0.3
    assert watch.changed(1).scheduler.base_lr == 0.3


@pytest.mark.parametrize("name", ["adam", "lamb"])
def test_a_new_learning_rate_takes_effect(name):
    """Numbers changed between steps act from the next update on, natively and through MXNet."""
    ours, theirs = optimizer_pair(name, {"learning_rate": 0.1})
    weights = random_weights("float32", SHAPES)
    servers, local = Servers(ours, weights), Local(theirs, weights)
    watch = HyperWatch(MXNetHyper(ours), SHAPES)
    for step, lr in enumerate([0.1, 0.01, 0.0]):
        for optimizer in (ours, theirs):
            optimizer.set_learning_rate(lr)
            optimizer.rescale_grad = 1.0 / (step + 1)
        servers.hyper = watch.changed(0)
        train([servers, local], weights, steps=2, seed=step)
    assert_same(servers, local, weights)


# --- what can be described, and what cannot --------------------------------------------------


def test_optimizers_that_servers_cannot_know_are_refused():
    """Classes, schedulers and values that cannot be described are errors with a remedy."""

    class Mine(mx.optimizer.SGD):
        pass

    class Schedule(mx.lr_scheduler.LRScheduler):
        pass

    for optimizer, message in [
        (Mine(), r"Mine cannot run on the servers, which know only the classes"),
        (mx.optimizer.create("sgd", lr_scheduler=Schedule()), r"Schedule; they know FactorScheduler"),
        (mx.optimizer.create("sgd", momentum=mx.nd.zeros(1)), r"(?s)momentum=.*'sgd' cannot be sent"),
    ]:
        with pytest.raises(UsageError, match=message):
            spec_from_optimizer(optimizer)


def test_a_users_class_under_a_registered_name_is_refused(monkeypatch):
    """A class that a script registers, even as 'sgd', is not mistaken for MXNet's."""
    mine = type("SGD", (mx.optimizer.SGD,), {"__module__": "train"})
    monkeypatch.setitem(mx.optimizer.Optimizer.opt_registry, "sgd", mine)
    with pytest.raises(UsageError, match=r"train\.SGD cannot run"):
        spec_from_optimizer(mine())


@pytest.mark.parametrize("name", sorted(mx.optimizer.Optimizer.opt_registry))
def test_every_registered_optimizer_can_be_described(name):
    """Each of MXNet's optimizers becomes a plain spec from which the servers can build it."""
    spec = spec_from_optimizer(mx.optimizer.create(name))
    assert spec.through_mxnet == (name not in RULES)
    assert terms_of(OptimizerSpec.from_dict(spec.to_dict())).whole == spec.through_mxnet


def test_numpy_numbers_are_numbers():
    """Hyper-parameters that are NumPy scalars can be sent."""
    optimizer = mx.optimizer.create("sgd", momentum=np.float64(0.5), learning_rate=np.float32(0.25))
    spec = spec_from_optimizer(optimizer)
    assert (type(spec.params["momentum"]), spec.hyper.lr) == (float, 0.25)
