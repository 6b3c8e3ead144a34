"""What codings of gradients leave unsaid: it goes with the next gradient, and what was cut off does not."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.values.base import ClientResidual
from kvstore_mpi.values.coding import CODINGS, coding_of

HALVES = ["float16", "bfloat16"]


def pushed(coding, gradients):
    """Return what servers understand of gradients that are pushed one after another."""
    number, buffer = coding_of(coding), np.empty_like(gradients[0])
    residual, found = ClientResidual(buffer, number), []
    for gradient in gradients:
        buffer[...] = gradient
        out = np.zeros_like(buffer)
        CODINGS[number].decode(residual.encode(0, buffer.size), out, out)
        found.append(out)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("coding", HALVES)
def test_nothing_is_lost_of_what_is_rounded(coding, dtype):
    """Over all pushes what was understood is what was pushed, but for the last rounding."""
    draw = np.random.RandomState(3)
    gradients = [
        (draw.normal(size=300) * 10 ** draw.uniform(-2, 4, size=300)).astype(dtype) for _ in range(20)
    ]
    gradients[3][:4] = [65504, -65504, 65519, -65519]  # of a float16 the largest, and what is rounded to it
    found = pushed(coding, gradients)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[coding]
    left = np.abs(np.sum(gradients, axis=0, dtype=np.float64) - np.sum(found, axis=0, dtype=np.float64))
    assert (left <= 2 * unit * np.abs(gradients[-1]) + 2 * unit**2 * 65504 + 2e-2).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_cut_off_does_not_come_later(dtype, sign):
    """A large gradient is a short one, and not as many pushes as it takes to come to it."""
    first, *later = pushed("float16", [sign * np.array([1e7, 1.0], dtype), *np.zeros((3, 2), dtype)])
    np.testing.assert_array_equal(first, [sign * 65504, sign * 1])
    np.testing.assert_array_equal(later, np.zeros((3, 2)))


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("coding", HALVES)
def test_what_is_no_finite_number_is_pushed_once(coding, wrong):
    """Servers that clip it are sent finite gradients from then on, as without a coding; nothing warns."""
    gradients = np.array([[1 / 3, wrong], [0, 2], [0, 0]], np.float32)
    first, *later = pushed(coding, gradients)
    np.testing.assert_array_equal(first[1], wrong)
    assert np.isfinite(later).all()
    assert [each[1] for each in later] == [2, 0]
    assert later[0][0] == pytest.approx(1 / 3 - float(first[0]), rel=0.01)  # what was rounded comes
