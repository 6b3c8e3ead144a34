"""Operations begin step by step, in whatever order the engine comes to them."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.adapters.step_order import StepOrder


@given(st.lists(st.integers(0, 3), max_size=30), st.randoms(use_true_random=False))
def test_all_of_a_step_begin_before_any_of_the_next(keys, random):
    """Each once, those of a step in the order of the engine, and none waits when all before have begun."""
    order, begun, called, steps, seen = StepOrder(), [], [], [], set()
    for number, key in enumerate(keys):
        if key in seen or not steps:
            seen = set()
        steps.append((steps[-1] if steps else 0) + (not seen))
        seen.add(key)
        begun.append(order.queued(key, lambda done, number=number: (called.append(number), done(None))))
    ended = []
    ready = [*enumerate(begun)]
    random.shuffle(ready)
    come = set()
    for number, begin in ready:
        come.add(number)
        begin(ended.append)
        may = {
            each for each in come if all(n in come for n, step in enumerate(steps) if step < steps[each])
        }
        assert {*called} == may
    assert [steps[number] for number in called] == sorted(steps)
    assert sorted(called) == [*range(len(keys))]
    assert ended == [None] * len(keys)


def test_what_waits_for_an_operation_that_cannot_begin_goes_on():
    """Its error is its own; the operation that has waited begins, and has another end."""
    order, ends = StepOrder(), []

    def refuse(_done):
        raise ValueError("no such row")

    first, second = order.queued("w", refuse), order.queued("w", lambda done: done(None))
    second(lambda error: ends.append(("second", error)))
    assert ends == []
    first(lambda error: ends.append(("first", error)))
    assert [(name, str(error)) for name, error in ends] == [("first", "no such row"), ("second", "None")]


@pytest.mark.timeout(60)
def test_engines_have_several_threads():
    """They come to operations at once; a later step's are called behind all of the earlier ones."""
    order, called = StepOrder(), []
    begun = [
        order.queued(key, lambda done, step=step: (called.append(step), done(None)))
        for step in range(200)
        for key in range(4)
    ]
    threads = [
        threading.Thread(target=lambda part=begun[first::4]: [begin(id) for begin in reversed(part)])
        for first in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert called == sorted(called)
    assert len(called) == len(begun)
