"""Which pushes bring a value, and which pulls may take it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.adapters.pushed_values import PushedValues


def ended(pushed):
    """Let a push end as the worker does, with the value if it was wanted."""
    if pushed.wanted:
        pushed.arrived(None)
    pushed.ending(lambda _error: None)(None)


def sync():
    return PushedValues(others_push=False, predicts=True)


def asynchronous():
    return PushedValues(others_push=True, predicts=True)


@pytest.mark.parametrize("make", [sync, asynchronous])
def test_a_loop_of_push_and_pull_asks_once(make):
    """The first pull asks; all later ones find the value of their push."""
    values = make()
    asked = []
    for _ in range(4):
        pushed = values.begin()
        asked.append(values.pull() is None)
        ended(pushed)
    assert asked == [True, False, False, False]


def test_a_push_that_nobody_pulls_brings_nothing():
    """But for the one after a pull, which is a wrong guess and is made once."""
    values = sync()
    values.begin()
    values.pull()
    assert [values.begin().wanted for _ in range(3)] == [True, False, False]


def test_in_a_synchronous_store_the_value_stays_until_the_next_push():
    """Late pulls, and several, are of the same round."""
    values = sync()
    ended(values.begin())
    values.pull()
    pushed = values.begin()
    ended(pushed)
    assert values.pull() is pushed
    assert values.pull() is pushed
    assert values.begin().wanted


def test_where_others_push_a_late_pull_asks():
    """Their pushes may have come in between; and such pulls are no reason to send the value."""
    values = asynchronous()
    values.begin()
    values.pull()
    pushed = values.begin()
    assert values.pull() is pushed
    ended(pushed)
    assert values.pull() is None
    later = values.begin()
    ended(later)
    assert values.pull() is None
    assert not values.begin().wanted


def test_a_pull_after_another_call_asks():
    """What comes by ``pushpull`` is not this push's value."""
    values = sync()
    values.begin()
    values.pull()
    values.begin()
    values.forget()
    assert values.pull() is None
    assert not values.begin().wanted


def test_who_does_not_decide_looks_whether_the_value_has_come():
    """It costs nothing to be told, so it always wants to be; and what it wants is not sure."""
    values = PushedValues(others_push=False, predicts=False)
    pushed = values.begin()
    assert pushed.wanted
    assert not pushed.is_sure
    assert values.pull() is pushed
    pushed.ending(lambda _error: None)(None)
    assert not pushed.has_come
    assert not values.begin().has_come


def test_that_a_push_is_over_is_known_before_anybody_is_told():
    """Or a pull right after would take a value that is older than it may be."""
    pushed = asynchronous().begin()
    seen = []
    pushed.ending(lambda error: seen.append((pushed.has_ended, error)))("an error")
    assert seen == [(True, "an error")]


@given(st.lists(st.sampled_from(["push", "pull", "end", "forget"]), max_size=40), st.booleans())
def test_no_pull_takes_an_older_value(calls, others_push):
    """Whatever a program does: what is taken is the last push's, which wanted it, and is not outdated."""
    values = PushedValues(others_push=others_push, predicts=True)
    last = None
    over = False
    for call in calls:
        if call == "push":
            last, over = values.begin(), False
        elif call == "end" and last is not None:
            ended(last)
            over = True
        elif call == "forget":
            values.forget()
            last = None
        elif call == "pull":
            taken = values.pull()
            good = last is not None and last.wanted and not (over and others_push)
            assert taken is (last if good else None)
