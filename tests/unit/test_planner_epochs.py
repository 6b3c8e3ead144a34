"""E(B): through the measured points, never falling, and silent about what nobody has measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.epochs import Epochs, EpochsCurve, Measured, read_curve, write_curve

POINTS = st.dictionaries(st.integers(1, 10_000), st.floats(0.5, 100), min_size=1, max_size=6)


def test_between_two_points_the_curve_is_linear_in_the_logarithm():
    """Half way from 64 to 256 is 128."""
    curve = EpochsCurve.of({64: 4.0, 256: 10.0})
    assert curve.at(64) == Epochs(4.0)
    assert curve.at(256) == Epochs(10.0)
    assert curve.at(128).epochs == pytest.approx(7.0)


def test_below_all_points_the_first_is_marked_and_above_nothing_is_said():
    """A smaller batch needs no more epochs; a larger one may need any number."""
    curve = EpochsCurve.of({64: 4.0, 256: 10.0})
    assert curve.at(8) == Epochs(4.0, extrapolated=True)
    assert curve.at(257) is None


def test_a_dip_becomes_the_mean_of_its_neighbours():
    """As of GNMT, which needs fewer epochs with four devices than with two."""
    curve = EpochsCurve.of({1: 2.0, 2: 5.0, 4: 3.0, 8: 6.0})
    assert curve.monotone() == [(1, 2.0), (2, 4.0), (4, 4.0), (8, 6.0)]


def test_what_does_not_reach_the_target_has_no_epochs_nor_has_anything_larger():
    """Between the last that does and the first that does not, nothing is known."""
    curve = EpochsCurve.of({32: 4.0, 64: None, 128: 5.0})
    assert curve.at(32) == Epochs(4.0)
    assert curve.at(48) is None
    assert [curve.at(batch).epochs for batch in (64, 100, 128, 512)] == [math.inf] * 4


def test_of_several_runs_the_median_counts():
    """One that fails counts as the longest."""
    assert Measured(32, (4.0, None, 6.0)).middle == 6.0
    assert Measured(32, (4.0, None, None)).middle == math.inf


@given(points=POINTS)
def test_more_samples_in_a_step_never_help(points):
    """The curve never falls, and at its points it lies between the least and the most measured."""
    curve = EpochsCurve.of(points)
    values = [curve.at(batch).epochs for batch in sorted(points)]
    assert values == sorted(values)
    assert min(points.values()) - 1e-9 <= values[0]
    assert values[-1] <= max(points.values()) + 1e-9


@given(points=POINTS)
def test_a_curve_is_read_as_it_was_written(points):
    """Also where a batch has failed."""
    curve = EpochsCurve.of({**points, 20_000: None}, "accuracy 0.97", "somebody")
    assert read_curve(write_curve(curve)) == curve


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"{}", "missing"),
        (b'{"points": []}', "batches of 1 or more"),
        (b'{"points": [{"batch": 64, "epochs": [1]}, {"batch": 32, "epochs": [1]}]}', "ascending"),
        (b'{"points": [{"batch": 64, "epochs": []}]}', "one run or more"),
        (b'{"points": [{"batch": 64, "epochs": [0]}]}', "above 0"),
        (
            b'{"points": [{"batch": 64, "epochs": [2, 1e308]}]}',
            r"null, or epochs above 0 and at most 1e\+09",
        ),
    ],
)
def test_what_is_no_curve_is_refused(text, what):
    """The error says where it is and how to make one."""
    with pytest.raises(UsageError, match=what) as caught:
        read_curve(text, "curve.json")
    assert "curve.json" in str(caught.value)
    assert "measure-epochs" in str(caught.value)
