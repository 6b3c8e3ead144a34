"""The send queue against an obvious twin, and the rules of P3 section 5.6."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.p3.send_queue import SendQueue

ITEMS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3), st.integers(0, 120)), max_size=60)
BOUND = 100

REPEATABLE = settings(deadline=None, derandomize=True)


def _filled(items):
    queue = SendQueue()
    for number, (destination, priority, num_bytes) in enumerate(items):
        queue.put(destination, priority, num_bytes, (number, priority, num_bytes))
    return queue


@REPEATABLE
@given(items=ITEMS)
def test_each_destination_is_served_in_the_order_of_an_obvious_twin(items):
    """Sorting all items by priority, stably, gives the same order: nothing lost, FIFO among equals."""
    served = defaultdict(list)
    for destination, bundle in _filled(items).bundles(BOUND):
        served[destination] += [number for number, _, _ in bundle]
    twin = defaultdict(list)
    for number, (destination, _, _) in sorted(enumerate(items), key=lambda item: -item[1][1]):
        twin[destination].append(number)
    assert served == twin


@REPEATABLE
@given(items=ITEMS)
def test_a_bundle_exceeds_the_bound_only_with_a_single_item(items):
    """Bundles are never empty."""
    for _, bundle in _filled(items).bundles(BOUND):
        assert len(bundle) == 1 or sum(num_bytes for _, _, num_bytes in bundle) <= BOUND
        assert bundle


@REPEATABLE
@given(items=ITEMS)
def test_bundles_are_as_full_as_the_order_allows(items):
    """A bundle ends only where the next item for its destination would exceed the bound."""
    bundles = defaultdict(list)
    for destination, bundle in _filled(items).bundles(BOUND):
        bundles[destination].append([num_bytes for _, _, num_bytes in bundle])
    for of_one in bundles.values():
        for bundle, following in zip(of_one, of_one[1:]):
            assert sum(bundle) + following[0] > BOUND


@REPEATABLE
@given(first=ITEMS, second=ITEMS)
def test_what_is_put_while_bundles_are_taken_is_not_lost(first, second):
    """A send may lead to the next one before the queue is empty."""
    queue = _filled(first)
    late = list(second)
    numbers = []
    for _, bundle in queue.bundles(BOUND):
        numbers += [number for number, _, _ in bundle]
        if late:
            destination, priority, num_bytes = late.pop()
            queue.put(destination, priority, num_bytes, (len(first) + len(late), priority, num_bytes))
    expected = len(first) + len(second) - len(late)
    assert len(numbers) == len(set(numbers)) == expected - len(queue)
    assert len(queue) == 0
