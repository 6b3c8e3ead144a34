"""Laws of half precision: each element is the nearest there is, whatever it is."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.values.coding import CODINGS
from kvstore_mpi.values.halves import BFloat16, Float16

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=300)
WORDS = st.integers(0, 2**32 - 1)
LARGEST = 65504.0
LARGEST_BFLOAT16 = 0x7F7F


def sent(coding, *values, dtype="float32"):
    """Return what elements are on the other side."""
    given = np.array(values, dtype)
    elements = np.zeros(given.size, coding.wire_type)
    coding.narrow(given, elements)
    assert given.tobytes() == np.array(values, dtype).tobytes()
    wide = coding.widen(elements)
    assert wide.dtype == np.float32
    return wide.tolist()


def of_word(word):
    """Return the float32 of some bits."""
    return struct.unpack("<f", struct.pack("<I", word))[0]


def nearest_bfloat16(word):
    """Return the bits of the nearest bfloat16 of a finite float32's, by exact arithmetic."""
    sign, magnitude = word & 0x80000000, word & 0x7FFFFFFF
    below = min(magnitude >> 16, LARGEST_BFLOAT16)
    # Numbers grow with their bits, so that the nearest is one of two, or the largest.
    candidates = {below, min(below + 1, LARGEST_BFLOAT16)}
    exact = Fraction(of_word(magnitude))
    best = min(candidates, key=lambda half: (abs(Fraction(of_word(half << 16)) - exact), half & 1))
    return sign | best << 16


@REPEATABLE
@given(words=st.lists(WORDS, max_size=40), dtype=st.sampled_from(["float32", "float64"]))
@example(words=[0x477FEFFF, 0x477FF000, 0xC77FF000, 0x7F800000, 0xFF800000, 0x7FC00000], dtype="float32")
def test_float16_is_numpys(words, dtype):
    """But for what is finite and would be infinite, which is the largest."""
    values = np.array([of_word(word) for word in words], np.float32).astype(dtype)
    values /= 2.0**40 if dtype == "float64" else 1.0
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    over = np.isinf(expected) & np.isfinite(values)
    expected[over] = np.copysign(LARGEST, values[over])
    np.testing.assert_array_equal(sent(Float16(), *values, dtype=dtype), expected)


@REPEATABLE
@given(word=WORDS)
@example(word=0x7F7FFFFF)  # the largest
@example(word=0xFF7F8000)
@example(word=0x3F808000)  # ties: down and up to the even one
@example(word=0x3F818000)
@example(word=0x3FFF8000)  # a carry into the exponent
@example(word=0x00018000)  # below normal numbers
@example(word=0x80000001)
@example(word=0x7F800000)
@example(word=0xFF800000)
@example(word=0x7F800001)  # no numbers, of which a carry would make infinity, or zero
@example(word=0x7FFFFFFF)
@example(word=0xFFFFFFFF)
def test_bfloat16_is_the_nearest(word):
    """Of two equally near ones that of which the last bit is zero."""
    value = of_word(word)
    (found,) = sent(BFloat16(), value)
    if np.isfinite(value):
        assert struct.pack("<f", found) == struct.pack("<I", nearest_bfloat16(word))
    else:
        np.testing.assert_equal(found, value)


@pytest.mark.parametrize("value", [1e300, -1e300, np.inf, -np.inf, 1.5])
def test_bfloat16_of_larger_types(value):
    """What is finite stays so."""
    (found,) = sent(BFloat16(), value, dtype="float64")
    assert np.isfinite(found) == np.isfinite(value)
    assert np.sign(found) == np.sign(value)


@pytest.mark.parametrize("number", [16, 17])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_sides_of_a_gradient_have_the_same(number, dtype):
    """To the bit, with a payload of two bytes an element and nothing else."""
    coding = CODINGS[number]
    values, base = np.random.default_rng(number).normal(size=(2, 33)).astype(dtype)
    seen, out = np.empty_like(values), np.empty_like(values)
    payload = coding.encode(values, base, seen)
    assert len(bytes(payload)) == coding.num_bytes(33) == 66
    coding.decode(bytes(payload), base, out)
    assert seen.tobytes() == out.tobytes()
    np.testing.assert_allclose(out, values, rtol=0, atol=np.abs(values - base).max() / 256)
    with pytest.raises(
        MismatchError, match=f"33 elements, compressed to {coding.name}, came with 65 bytes"
    ):
        coding.decode(bytes(payload)[:-1], base, out)
