"""The estimate of another host's clock, by hand and against simulated clocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.tracing.clock import DRIFT_PER_SECOND_NS, ClockOffset, Offset

SECOND = 1_000_000_000
EXCHANGES = st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=10)


def test_nothing_is_known_before_the_first_exchange():
    """No answer, no estimate."""
    assert ClockOffset().at(5) is None


def test_the_middle_of_an_exchange_is_compared_with_the_peers_time():
    """The error is half the round trip, rounded up."""
    clock = ClockOffset()
    clock.add(1000, 5010, 1021)
    assert clock.at(1021) == Offset(5010 - 1010, 11)


def test_the_shortest_exchange_counts():
    """A long one teaches nothing, a short one replaces it."""
    clock = ClockOffset()
    clock.add(0, 700, 100)
    clock.add(200, 900, 1200)
    assert clock.at(1200) == Offset(650, 50)
    clock.add(2000, 2655, 2010)
    assert clock.at(2010) == Offset(650, 5)


def test_an_old_estimate_loses_worth_until_a_newer_one_is_better():
    """Clocks drift: after ten seconds a longer exchange tells more than an old short one."""
    clock = ClockOffset()
    clock.add(0, 700, 0)
    later = 10 * SECOND
    assert clock.at(later) == Offset(700, 10 * DRIFT_PER_SECOND_NS)
    clock.add(later - 1_000_000, later + 300_000, later)
    assert clock.at(later) == Offset(800_000, 500_000)


def test_an_answer_before_its_probe_is_left_out():
    """A broken exchange does not spoil what is known."""
    clock = ClockOffset()
    clock.add(100, 0, 90)
    assert clock.at(100) is None


@given(st.integers(-(10**15), 10**15), EXCHANGES)
def test_the_truth_is_within_the_error(offset, exchanges):
    """However long both ways take, the true offset lies within the bound."""
    clock, now = ClockOffset(), 0
    for there, back in exchanges:
        clock.add(now, now + there + offset, now + there + back)
        now += there + back + 1000
    estimate = clock.at(now)
    assert abs(estimate.offset_ns - offset) <= estimate.error_ns


@given(st.integers(-(10**12), 10**12), st.floats(-1e-4, 1e-4), EXCHANGES)
def test_the_truth_is_within_the_error_with_clocks_that_drift(offset, drift, exchanges):
    """As long as the clocks drift no more than is allowed for, at any later time."""
    clock, now = ClockOffset(), 0
    for there, back in exchanges:
        arrived = now + there
        clock.add(now, arrived + offset + round(drift * arrived), arrived + back)
        now = arrived + back + SECOND
    estimate = clock.at(now)
    truth = offset + drift * now
    # within an exchange itself, at most 20 ms long, the clocks drift too
    assert abs(estimate.offset_ns - truth) <= estimate.error_ns + 0.02 * DRIFT_PER_SECOND_NS + 2
