"""Two bits an element: MXNet's rule, element by element, and what a payload says of it."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.values.base import ClientResidual
from kvstore_mpi.values.coding import CODINGS, coding_of, name_of, numbered
from kvstore_mpi.values.two_bits import TwoBits

THRESHOLDS = st.sampled_from([0.5, 0.1, 2.0, 1e-3])
DTYPES = st.sampled_from(["float32", "float64", "float16"])


def gradients(size):
    """Draw some gradients of a key, one after another."""
    numbers = st.floats(-8, 8, width=16) | st.sampled_from([-2.0, -0.5, 0.5, 2.0])
    return st.lists(npst.arrays(np.float32, size, elements=numbers), min_size=1, max_size=4)


def bits_of(payload, size):
    """Return the two bits of each element, read one by one."""
    half = len(payload) // 2
    planes = [payload[:half], payload[half:]]
    return [tuple(plane[i // 8] >> (7 - i % 8) & 1 for plane in planes) for i in range(size)]


class Twin:
    """What MXNet's servers are sent of one element, by its documentation."""

    def __init__(self, threshold, dtype):
        self._threshold, self._dtype = np.float32(threshold), np.dtype(dtype).type
        self._residual = self._dtype(0)

    def push(self, gradient):
        """Return how many thresholds are sent."""
        self._residual = self._dtype(self._residual + self._dtype(gradient))
        seen = np.float32(self._residual)
        sign = int(seen >= self._threshold) - int(seen <= -self._threshold)
        self._residual = self._dtype(self._residual - self._dtype(sign * self._threshold))
        return sign


@given(st.data(), st.integers(0, 21), THRESHOLDS, DTYPES)
def test_every_element_is_sent_as_mxnet_would(data, size, threshold, dtype):
    """What is below the threshold waits, what is above comes in parts; both sides have the same bits."""
    coding, buffer = TwoBits(threshold), np.zeros(size, dtype)
    residual = ClientResidual(buffer, coding.number)
    twins = [Twin(threshold, dtype) for _ in range(size)]
    for gradient in data.draw(gradients(size)):
        buffer[...] = gradient
        payload = bytes(residual.encode(0, size))
        signs = [twin.push(each) for twin, each in zip(twins, gradient)]
        assert len(payload) == coding.num_bytes(size) == 2 * math.ceil(size / 8)
        assert bits_of(payload, size) == [(sign > 0, sign < 0) for sign in signs]
        out = np.zeros(size, dtype)
        coding.decode(payload, out, out)
        expected = np.array(signs, np.float32) * np.float32(threshold)
        np.testing.assert_array_equal(out, expected.astype(dtype))
        np.testing.assert_array_equal(buffer, gradient)


@given(st.data(), st.integers(1, 40))
def test_both_sides_decode_the_same(data, size):
    """To the bit, whatever the base."""
    coding = TwoBits(0.25)
    values, base = (
        data.draw(npst.arrays(np.float32, size, elements=st.floats(-4, 4, width=32))) for _ in "ab"
    )
    seen, out = np.empty_like(values), np.empty_like(values)
    coding.decode(bytes(coding.encode(values, base, seen)), base, out)
    assert seen.tobytes() == out.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_what_is_no_finite_number_arrives_as_no_number_once(wrong, dtype):
    """A model that diverges is seen to do so, and what comes after it is as it would be."""
    buffer = np.array([0.3, wrong, -0.7], dtype)
    residual, out = ClientResidual(buffer, TwoBits(0.5).number), np.zeros(3, dtype)
    found = []
    for _ in range(2):
        TwoBits(0.5).decode(residual.encode(0, 3), np.zeros(3, dtype), out)
        found.append(out.copy())
        buffer[...] = [0.3, 0, 0]
    np.testing.assert_array_equal(found, [[0, np.nan, -0.5], [0.5, 0, 0]])


@given(st.floats(2.0**-126, float(np.finfo(np.float32).max), width=32))
def test_a_number_in_messages_says_the_threshold(threshold):
    """And so does the name."""
    number = coding_of(f"2bit:{threshold!r}")
    assert numbered(number).threshold == np.float32(threshold)
    assert coding_of(name_of(number).strip("'")) == number


def test_names():
    """As in MXNet the threshold is a half where none is named."""
    assert coding_of("2bit") == coding_of("2bit:0.5") in CODINGS
    assert name_of(coding_of("2bit:0.5")) == "'2bit'"
    assert name_of(coding_of("2bit:0.1")) == "'2bit:0.1'"


@pytest.mark.parametrize("threshold", ["0", "-1", "nan", "inf", "1e99", "1e-99", "", "half"])
def test_thresholds_that_are_none_are_refused(threshold):
    """With the text that was given."""
    with pytest.raises(UsageError, match=f"must be a positive number, not '{threshold}'"):
        coding_of(f"2bit:{threshold}")


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan, math.inf])
def test_a_peer_that_names_such_a_threshold_is_told(threshold):
    """By its bits: no class of this project makes such a number."""
    (bits,) = struct.unpack("<I", struct.pack("<f", threshold))
    for number in ((1 << 32) + bits, -1, 1 << 33, 3):
        with pytest.raises(MismatchError, match="not known here"):
            numbered(number)
