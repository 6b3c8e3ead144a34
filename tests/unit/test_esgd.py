"""Server optimizers for loosely coupled clients, as users name them; what cannot be compressed."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from msgspec.structs import replace
from support.center import Center

import kvstore_mpi
from kvstore_mpi import (
    BMUF,
    DCASGD,
    DelayedNesterov,
    DiLoCo,
    Elastic,
    LocalSGD,
    Outer,
    SlowMo,
    StalenessAware,
)
from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.esgd.stagger import exchange_offset
from kvstore_mpi.records import StoreTerms
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec, Origin, build, hyper_for, terms_of
from kvstore_mpi.values.coding import CODINGS

ALL = [
    Elastic(0.25),
    Outer("adam", learning_rate=0.01, beta1=0.8),
    LocalSGD(),
    DiLoCo(),
    DelayedNesterov(3),
    SlowMo(),
    BMUF(4),
    StalenessAware("sgd", learning_rate=0.1, momentum=0.9, wd=1e-4),
    DCASGD("nag", learning_rate=0.1, momentum=0.9, lamda=0.1),
]


@pytest.mark.parametrize("optimizer", ALL, ids=lambda optimizer: type(optimizer).__name__)
def test_a_spec_survives_a_message_and_builds_a_rule(optimizer):
    """What arrives at a server updates a weight."""
    spec = OptimizerSpec.from_dict(optimizer.spec().to_dict())
    assert spec == optimizer.spec()
    center = Center(spec, np.ones(4, np.float32))
    center.give(0)
    center.exchange(0, np.zeros(4, np.float32) + 0.5)
    assert np.isfinite(center.weight).all()
    assert (center.weight < 1).all()


@pytest.mark.parametrize(
    ("optimizer", "terms"),
    [
        (Elastic(), StoreTerms(params=True, before=True, bases=True)),
        (DiLoCo(), StoreTerms(params=True)),
        (DelayedNesterov(2), StoreTerms(params=True, bases=True, pulls=True, staleness=True)),
        (StalenessAware("sgd", learning_rate=0.1), StoreTerms(staleness=True)),
        (DCASGD(learning_rate=0.1), StoreTerms(bases=True, pulls=True, staleness=True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_optimizer_says_on_which_terms_its_store_takes_pushes(optimizer, terms):
    """What is pushed, which weight is sent back, and what is remembered for each client."""
    assert terms_of(optimizer.spec()) == terms


def test_the_terms_are_also_those_of_how_it_was_given():
    """Quorum and compression come from the user; both sides refer compressed differences to a base."""
    spec = replace(DiLoCo().spec(), quorum=2, quorum_wait=1.5, compress=8)
    assert terms_of(spec) == StoreTerms(params=True, bases=True, quorum=2, quorum_wait=1.5, compress=8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Elastic(alpha=1.01),
        lambda: Elastic(alpha=-0.1),
        lambda: Elastic(alpha=math.nan),
        lambda: Elastic(alpha=math.inf),
        lambda: Elastic(alpha=True),
        lambda: Elastic(alpha="0.5"),
        lambda: DiLoCo(lr=-1),
        lambda: DiLoCo(momentum=1.0),
        lambda: SlowMo(momentum=math.nan),
        lambda: BMUF(0),
        lambda: BMUF(2.5),
        lambda: DelayedNesterov(True),
        lambda: Outer(object(), learning_rate=0.1),
        lambda: Outer("sgd", learning_rate=math.nan),
        lambda: DCASGD(learning_rate=0.1, lamda=-1),
        lambda: StalenessAware("sgd", learning_rate=0.1, wd=-1),
        lambda: build(OptimizerSpec(name="elastic", hyper=HyperParameters(lr=1.0), params={"alpha": 7.0})),
    ],
)
def test_a_number_out_of_bounds_is_an_error_that_names_it(make):
    """Booleans, NaN and infinities are no numbers; a spec from the network is checked like a user's."""
    with pytest.raises(UsageError, match=r"(must be|wants)"):
        make()


def test_an_unknown_hyper_parameter_names_the_known():
    """The servers say which hyper-parameters the inner optimizer has."""
    with pytest.raises(UsageError, match=r"'sgd' cannot be built.*hyper-parameters are momentum"):
        build(Outer("sgd", learning_rate=0.1, momentun=0.9).spec())


def test_an_unknown_number_of_a_wrapper_names_the_known():
    """It is not taken for one of the inner optimizer's, where nobody would look for it."""
    spec = DCASGD(learning_rate=0.1).spec()
    with pytest.raises(
        UsageError, match=r"'dc-asgd' cannot be built.*no lambda.*hyper-parameters are lamda"
    ):
        build(replace(spec, params={**spec.params, "lambda": 1.0}))


def test_a_description_updates_nothing():
    """A wrapper runs on a server, which builds the rule inside."""
    with pytest.raises(UsageError, match="describes an optimizer"):
        Outer("sgd", learning_rate=0.1).bind("a", (2,))


@pytest.mark.parametrize(
    "inner", [None, {"name": "elastic"}, {"name": "outer", "params": {}}, {"name": "dc-asgd"}]
)
def test_only_rules_on_gradients_can_be_put_inside(inner):
    """Averages of averages, and delays of delays, are refused."""
    with pytest.raises(UsageError, match=r"'outer' (wants|cannot)|'dc-asgd' wants"):
        build(OptimizerSpec(name="outer", hyper=HyperParameters(lr=1.0), params={"inner": inner}))


def test_the_center_is_not_decayed():
    """Weight decay belongs to the clients' optimizers; that of the hyper-parameters is left out."""
    start = np.full(3, 2.0)
    center = Center(Outer("sgd", learning_rate=1.0, wd=0.5).spec(), start)
    center.exchange(0, start.copy())
    assert center.weight.tolist() == [2.0, 2.0, 2.0]


def test_an_optimizer_that_is_described_already_keeps_its_hyper_parameters():
    """``around`` takes learning rate, multipliers and schedule of the inner spec over."""
    hyper = HyperParameters(lr=0.3, wd=0.01, lr_mult=[("a", 0.0)])
    inner = OptimizerSpec(name="sgd", hyper=hyper, params={"momentum": 0.9}, multi_precision=True)
    spec = DCASGD(learning_rate=9.0).around(inner)
    assert spec.hyper == hyper
    assert spec.multi_precision
    weight = np.ones(2)
    rule = build(spec).bind("a", (2,))
    rule.update(weight, np.ones(2), rule.init(weight), hyper_for(spec.hyper, "a", 1), 1)
    assert weight.tolist() == [1.0, 1.0]


def test_they_are_names_of_the_package_that_cost_nothing_before_they_are_used():
    """``import kvstore_mpi`` loads no NumPy; the records come when they are asked for."""
    program = (
        "import sys, kvstore_mpi as k\n"
        "assert 'numpy' not in sys.modules\n"
        "assert k.Elastic(0.1).alpha == 0.1 and 'mxnet' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=280, check=True)
    with pytest.raises(AttributeError, match="Elastik"):
        kvstore_mpi.Elastik  # noqa: B018


@pytest.mark.mxnet
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_optimizer_of_mxnet_can_be_the_outer_one(dtype):
    """Run through MXNet, SGD moves the center as the servers' own does; others work as well."""
    pytest.importorskip("mxnet")
    start = np.linspace(-1, 1, 6).astype(dtype)
    own = Outer("sgd", learning_rate=0.5, momentum=0.9).spec()
    inner = OptimizerSpec(
        name="sgd", hyper=HyperParameters(lr=0.5), params={"momentum": 0.9}, through_mxnet=True
    )
    foreign = Outer("sgd", learning_rate=0.5).around(inner)
    assert terms_of(foreign).whole
    assert not terms_of(own).whole
    centers = [Center(own, start), Center(foreign, start)]
    for _ in range(3):
        for center in centers:
            center.round({0: start / 2, 1: start / 4})
    np.testing.assert_allclose(
        centers[0].weight, centers[1].weight, rtol=1e-2 if dtype == "float16" else 1e-6
    )
    lamb = Center(Outer("lamb", learning_rate=0.1).spec(), start.astype("float32"))
    lamb.round({0: start.astype("float32") / 2})
    assert np.isfinite(lamb.weight).all()
    assert (lamb.weight != start).any()


@pytest.mark.parametrize("bits", [8, 4])
def test_a_difference_that_is_not_finite_is_seen_by_both_sides(bits):
    """A model that has diverged is not silently replaced by its base."""
    for bad in (math.nan, math.inf):
        out, seen = np.empty(3, np.float32), np.empty(3, np.float32)
        payload = CODINGS[bits].encode(np.array([1.0, bad, 2.0], np.float32), np.ones(3, "f"), seen)
        CODINGS[bits].decode(payload, np.ones(3, "f"), out)
        assert not np.isfinite(out).any()
        assert not np.isfinite(seen).any()


def test_the_halves_of_a_byte_keep_their_signs():
    """Levels from -7 to 7 at either place; an odd last element has a byte of its own."""
    params = np.array([7, -7, -1, 1, 0, -3, 5], np.float32)
    out = np.empty(7, np.float32)
    payload = CODINGS[4].encode(params, np.zeros(7, np.float32), out)
    assert payload[4:].hex() == "971fd005"
    assert out.tolist() == params.tolist()
    out.fill(0)
    CODINGS[4].decode(payload, np.zeros(7, np.float32), out)
    assert out.tolist() == params.tolist()


def test_a_payload_of_another_size_is_an_error():
    """For example when two processes differ in the number of bits."""
    payload = CODINGS[8].encode(np.ones(8, np.float32), np.zeros(8, np.float32), np.empty(8, np.float32))
    with pytest.raises(MismatchError, match="8 elements, compressed to 4 bits, came with 12 bytes"):
        CODINGS[4].decode(payload, np.zeros(8, np.float32), np.empty(8, np.float32))


def test_a_schedule_worked_by_hand():
    """Two clients, two keys, eight steps: all four exchanges two steps apart."""
    offsets = {(i, k): exchange_offset(i, 2, k, 2, 8) for i in range(2) for k in range(2)}
    assert offsets == {(0, 0): 0, (0, 1): 4, (1, 0): 6, (1, 1): 2}


def test_a_single_client_starts_at_a_whole_interval():
    """One key of one client: after steps 64, 128, and not at step 0."""
    assert exchange_offset(0, 1, 0, 1, 64) == 0


def test_the_origin_of_an_update_is_a_fresh_client_unless_said_otherwise():
    """A rule that wants a base treats a push without one as not delayed."""
    spec = DCASGD(learning_rate=0.1, lamda=1.0).spec()
    weight = np.ones(1)
    build(spec).update(weight, np.ones(1), (), hyper_for(spec.hyper, 0, 1), 1)
    assert weight[0] == pytest.approx(0.9)
    build(spec).update(
        weight, np.ones(1), (), hyper_for(spec.hyper, 0, 2), 2, origin=Origin(base=np.zeros(1))
    )
    assert weight[0] == pytest.approx(0.9 - 0.1 * (1 + 0.9))
