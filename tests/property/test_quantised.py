"""Laws of quantised differences: how far what is decoded is from what was encoded."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.values.coding import CODINGS
from kvstore_mpi.values.quantised import LEVELS

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=100)
SEEDS = st.integers(0, 2**32 - 1)


def some(seed, *shape, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@REPEATABLE
@given(seed=SEEDS, bits=st.sampled_from([8, 4]), size=st.integers(0, 70), scale=st.floats(1e-30, 1e30))
def test_the_error_is_at_most_half_a_level(seed, bits, size, scale):
    """Of the slice's largest difference; the payload has the stated length; zero is exact."""
    base, difference = (scale * some(seed, 2, size)).astype("float32")
    difference[::3] = 0.0
    seen, out = np.empty(size, np.float32), np.empty(size, np.float32)
    payload = CODINGS[bits].encode(base + difference, base, seen)
    assert len(payload) == CODINGS[bits].num_bytes(size) == 4 + -(-size * bits // 8)
    CODINGS[bits].decode(bytes(payload), base, out)
    assert seen.tobytes() == out.tobytes()
    exact = (base + difference) - base
    largest = np.abs(exact).max(initial=0.0)
    rounding = 1e-6 * (np.abs(base).max(initial=0.0) + largest)
    assert np.abs(out - (base + exact)).max(initial=0.0) <= largest / LEVELS[bits] / 2 + rounding
    assert out[exact == 0.0].tobytes() == base[exact == 0.0].tobytes()


@REPEATABLE
@given(seed=SEEDS, bits=st.sampled_from([8, 4]), dtype=st.sampled_from(["float16", "float32", "float64"]))
def test_what_was_not_sent_is_part_of_the_next_difference(seed, bits, dtype):
    """Repeating with the decoded value as base reaches the parameters, without error feedback.

    The base is moved in place, and alike on both sides.
    """
    params, base = some(seed, 2, 40, dtype=dtype)
    there = base.copy()
    for _ in range(20):
        CODINGS[bits].decode(CODINGS[bits].encode(params, base, base), there, there)
        assert base.tobytes() == there.tobytes()
    np.testing.assert_allclose(base, params, rtol=0, atol=2e-3 if dtype == "float16" else 1e-6)
