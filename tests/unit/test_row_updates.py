"""Update rules on some rows of a table: the same as on those rows alone, and nothing to the others."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers import (
    RULES,
    Hyper,
    HyperParameters,
    OptimizerSpec,
    Origin,
    build,
    build_for_rows,
    is_elementwise,
    rows,
    state_widths,
    update_rows,
    updates_exactly,
)
from kvstore_mpi.values import row_kernels

PLAIN = Hyper(lr=0.1, wd=0.0, rescale_grad=1.0, clip_gradient=None)
FULL = Hyper(lr=0.1, wd=0.01, rescale_grad=0.5, clip_gradient=0.3)
HYPERS = {
    "plain": PLAIN,
    "full": FULL,
    "decayed": PLAIN._replace(wd=0.01),
    "rescaled": PLAIN._replace(rescale_grad=0.5),
    "clipped": PLAIN._replace(clip_gradient=0.3),
}
CASES = [
    *((name, {}) for name in RULES if name != "rmsprop"),
    ("sgd", {"momentum": 0.9}),
    ("nag", {"momentum": 0.9}),
    ("groupadagrad", {}),
]


def spec(name, params=None, **options):
    return OptimizerSpec(name=name, hyper=HyperParameters(lr=0.1), params=params or {}, **options)


def tables(optimizer, num_rows, width, dtype="float32", seed=0):
    """Return a weight, and states that are not zero any more."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(num_rows, width)).astype(dtype)
    widths = state_widths(optimizer, width, weight.dtype)
    return weight, tuple(rng.uniform(0.1, 1, (num_rows, cols)).astype(dtype) for cols in widths)


@pytest.mark.parametrize("hyper", HYPERS.values(), ids=HYPERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("name", "params"), CASES)
def test_rows_are_updated_as_if_they_were_the_table(name, params, dtype, hyper):
    """Bit for bit what the rule does to a table of these rows; the other rows keep weight and states."""
    optimizer = build_for_rows(spec(name, params))
    weight, state = tables(optimizer, 4000, 24, dtype)
    slots = np.random.default_rng(1).permutation(4000)[:3000]
    gradient = np.random.default_rng(2).normal(size=(3000, 24)).astype(dtype)
    expected = [table.copy() for table in (weight, *state)]
    alone = [np.ascontiguousarray(table[slots]) for table in expected]
    single = np.float32 if dtype == "float16" else dtype
    optimizer.update(alone[0], gradient.astype(single), tuple(alone[1:]), hyper, 5)
    for table, some in zip(expected, alone):
        table[slots] = some
    gradient.setflags(write=False)
    update_rows(optimizer, weight, slots, gradient, state, hyper=hyper, count=5)
    for got, table in zip((weight, *state), expected):
        np.testing.assert_array_equal(got, table)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_without_scipy_the_bits_are_the_same(name, monkeypatch):
    """Servers of one job may differ in what is installed."""
    optimizer = build_for_rows(spec(name))
    results = []
    for _ in range(2):
        weight, state = tables(optimizer, 50, 7)
        gradient = np.random.default_rng(1).normal(size=(20, 7)).astype(np.float32)
        update_rows(optimizer, weight, np.arange(20) * 2, gradient, state, hyper=PLAIN, count=1)
        results.append(weight)
        monkeypatch.setattr(row_kernels, "compiled_kernel", lambda: None)
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_gradients_of_another_type(name):
    """Rows travel in half precision to a table in single precision."""
    optimizer = build_for_rows(spec(name))
    weight, state = tables(optimizer, 5, 3)
    same, same_state = weight.copy(), tuple(table.copy() for table in state)
    half = np.full((2, 3), 0.3, np.float16)
    update_rows(optimizer, weight, np.array([4, 0]), half, state, hyper=PLAIN, count=1)
    single = half.astype(np.float32)
    update_rows(optimizer, same, np.array([4, 0]), single, same_state, hyper=PLAIN, count=1)
    np.testing.assert_array_equal(weight, same)


def test_no_rows_and_no_columns():
    """A worker without rows, and a table without columns, are no trouble."""
    for name in ("sgd", "adam", "groupadagrad"):
        optimizer = build_for_rows(spec(name))
        for slots, width in ((0, 3), (2, 0)):
            weight, state = tables(optimizer, 4, width)
            before = weight.copy()
            nothing = np.zeros((slots, width), np.float32)
            update_rows(optimizer, weight, np.arange(slots), nothing, state, hyper=FULL, count=1)
            np.testing.assert_array_equal(weight, before)


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_outside_the_table_does_no_harm(slot):
    """Compiled loops would write there."""
    weight = np.zeros((4, 2), np.float32)
    with pytest.raises(AssertionError, match="a slot outside the table"):
        update_rows(
            build(spec("sgd")), weight, np.array([slot]), np.ones((1, 2), "f"), (), hyper=PLAIN, count=1
        )


def test_row_wise_adagrad_in_figures():
    """One number to a row: the mean of the squares, of clipped gradients; no decay, as in MXNet."""
    optimizer = build_for_rows(spec("groupadagrad", {"eps": 0.0}, through_mxnet=True))
    weight = np.zeros((3, 2))
    (history,) = optimizer.init(weight)
    assert history.shape == (3, 1)
    hyper = Hyper(lr=1.0, wd=0.5, rescale_grad=2.0, clip_gradient=4.0)
    update_rows(optimizer, weight, np.array([1]), np.array([[9.0, 1.0]]), (history,), hyper=hyper, count=1)
    mean = (4**2 + 2**2) / 2
    np.testing.assert_allclose(history[:, 0], [0, mean, 0])
    np.testing.assert_allclose(weight, [[0, 0], [-4 / mean**0.5, -2 / mean**0.5], [0, 0]])


def test_the_widths_of_states():
    """What a server has to make room for."""
    float32 = np.dtype(np.float32)
    assert state_widths(build(spec("sgd")), 5, float32) == []
    assert state_widths(build(spec("adam")), 5, float32) == [5, 5]
    assert state_widths(build_for_rows(spec("groupadagrad")), 5, float32) == [1]
    with pytest.raises(UsageError, match="cannot update int32"):
        state_widths(build(spec("adam")), 5, np.dtype(np.int32))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        *((spec(name), name != "rmsprop") for name in RULES),
        (spec("sgd", {"lazy_update": False}), True),
        (spec("adam", {"lazy_update": True}), True),
        (spec("adam", {"lazy_update": False}), False),
        (spec("staleness-aware", {"inner": {"name": "nag"}}), False),
        (spec("staleness-aware", {"inner": {"name": "adam", "params": {"lazy_update": False}}}), False),
        (spec("groupadagrad", through_mxnet=True), True),
        (spec("staleness-aware", {"inner": {"name": "adam"}}), False),
        (spec("staleness-aware", {"inner": {"name": "lamb", "through_mxnet": True}}), False),
        (spec("lamb", through_mxnet=True), False),
        (spec("adam", through_mxnet=True), False),
        (spec("elastic"), False),
        (spec("delayed-nesterov"), False),
        (spec("outer", {"inner": {"name": "sgd"}}), False),
        (spec("dc-asgd", {"inner": {"name": "sgd"}}), False),
    ],
    ids=lambda value: value.name if isinstance(value, OptimizerSpec) else None,
)
def test_which_optimizers_can_update_some_rows(given, expected):
    """Those that look at elements or rows one by one, and at nothing that a client was sent."""
    assert is_elementwise(given) is expected
    if not expected:
        with pytest.raises(UsageError, match=r"cannot update some rows.*sgd.*adam with lazy"):
            build_for_rows(given)


def test_ftrl_updates_dense_weights_densely():
    """As in MXNet, which has a lazy kernel for row-sparse weights only."""
    assert not is_elementwise(spec("ftrl"), sparse_weight=False)
    assert is_elementwise(spec("adam"), sparse_weight=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (spec("sgd"), False),
        (spec("sgd", {"lazy_update": True}), False),
        (spec("sgd", {"lazy_update": False}), True),
        (spec("nag"), True),
        (spec("adam"), False),
        (spec("groupadagrad", through_mxnet=True), False),
    ],
)
def test_which_updates_are_exact(given, expected):
    """Those of which MXNet has no lazy kernels, and those that are told not to be lazy."""
    assert updates_exactly(given) is expected


@pytest.mark.parametrize(("name", "dtype"), [("sgd", "float16"), ("sgd", "float32"), ("adam", "float16")])
def test_updates_of_float32_copies_are_exact_where_mxnet_has_one_kernel_for_both(name, dtype):
    """That of SGD converts and updates; Adam updates the copy as any weight, and lazily."""
    exact = (name, dtype) == ("sgd", "float16")
    given = spec(name, multi_precision=True)
    assert updates_exactly(given, dtype) is exact
    averaged = spec("averaged", {"inner": {"name": name}, "decay": 0.9}, multi_precision=True)
    assert is_elementwise(given, dtype=dtype)
    assert is_elementwise(averaged, dtype=dtype) is not exact


def test_a_rule_that_looks_at_staleness_is_told():
    """Wrappers of element-wise rules work on rows like on slices."""
    optimizer = build(spec("staleness-aware", {"inner": {"name": "sgd"}}))
    weight = np.zeros((3, 2), np.float32)
    ones = np.ones((1, 2), np.float32)
    origin = Origin(staleness=4)
    update_rows(optimizer, weight, np.array([1]), ones, (), hyper=PLAIN, count=1, origin=origin)
    np.testing.assert_allclose(weight, np.float32([[0, 0], [-0.025, -0.025], [0, 0]]))


def test_wrong_numbers_of_a_rule_for_rows():
    """The error names the rule and its numbers."""
    with pytest.raises(UsageError, match=r"'groupadagrad' cannot be built.*are eps"):
        build_for_rows(spec("groupadagrad", {"epsilon": 1}))


def test_blocks_are_smaller_than_the_tables_of_these_tests():
    """Otherwise the seams between blocks would not be tested."""
    assert rows._BLOCK_BYTES < 3000 * 24 * 4
