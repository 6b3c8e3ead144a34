"""The send queue against an obvious twin, and the rules of P3 section 5.6."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.p3.priority_queue import PriorityQueue
from kvstore_mpi.p3.send_queue import BUNDLES_IN_WINDOW, SendQueue

ITEMS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3), st.integers(0, 120)), max_size=60)
BOUND = 100
LARGEST = 40
WINDOW = BUNDLES_IN_WINDOW * BOUND

REPEATABLE = settings(deadline=None, derandomize=True)


class Network:
    """Takes what may leave, and acknowledges when it is told to."""

    def __init__(self, items):
        self.queue = SendQueue(window_bytes=WINDOW)
        self.in_flight = defaultdict(list)
        self.last_asked = {}  # of each destination, whether its last message wants room
        self.number = 0
        for item in items:
            self.put(*item)

    def put(self, destination, priority, num_bytes):
        self.queue.put(destination, priority, num_bytes, (self.number, priority, num_bytes))
        self.number += 1

    def bytes_in_flight(self, destination):
        return sum(self.in_flight[destination])

    def leaving(self):
        for destination, bundle in self.queue.bundles(0.0, self.bytes_in_flight):
            self.in_flight[destination].append(sum(num_bytes for _, _, num_bytes in bundle))
            self.last_asked[destination] = self.queue.wants_room(destination)
            yield destination, bundle

    def all(self):
        """Acknowledge everything whenever nothing can leave."""
        while self.queue:
            yield from self.leaving()
            self.in_flight.clear()


@REPEATABLE
@given(items=ITEMS)
def test_each_destination_is_served_in_the_order_of_an_obvious_twin(items):
    """Sorting all items by priority, stably, gives the same order: nothing lost, FIFO among equals."""
    served = defaultdict(list)
    for destination, bundle in Network(items).all():
        served[destination] += [number for number, _, _ in bundle]
    twin = defaultdict(list)
    for number, (destination, _, _) in sorted(enumerate(items), key=lambda item: -item[1][1]):
        twin[destination].append(number)
    assert served == twin


@REPEATABLE
@given(items=ITEMS)
def test_a_bundle_exceeds_the_bound_only_with_a_single_item(items):
    """Bundles are never empty."""
    for _, bundle in Network(items).all():
        assert len(bundle) == 1 or sum(num_bytes for _, _, num_bytes in bundle) <= BOUND
        assert bundle


@REPEATABLE
@given(items=ITEMS, steps=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=80))
def test_the_window_holds_and_the_order_within_it_is_monotone(items, steps):
    """Whatever is acknowledged when: never more under way than the window; the most urgent is next."""
    network, late = Network([]), list(items)
    waiting = defaultdict(list)
    for destination, put in steps:
        if put and late:
            item = late.pop()
            waiting[item[0]].append((-item[1], network.number))
            network.put(*item)
        elif network.in_flight[destination]:
            network.in_flight[destination].pop(0)
        for where, bundle in network.leaving():
            for number, priority, _ in bundle:
                assert (-priority, number) == min(waiting[where])
                waiting[where].remove((-priority, number))
            assert network.bytes_in_flight(where) <= max(WINDOW, network.in_flight[where][-1])
    for destination, held in waiting.items():
        assert not held or network.in_flight[destination], "something waits though nothing is under way"


@REPEATABLE
@given(
    items=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(-3, 3), st.integers(0, BOUND)), max_size=60
    ),
    steps=st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=80),
)
def test_who_waits_for_room_has_asked_for_it(items, steps):
    """The receiver need not guess: what it does not acknowledge at once stops nobody."""
    network, late, waiting = Network([]), list(items), defaultdict(int)
    for destination, put in steps:
        if put and late:
            item = late.pop()
            waiting[item[0]] += 1
            network.put(*item)
        else:
            network.in_flight[destination][:1] = []
        for where, bundle in network.leaving():
            waiting[where] -= len(bundle)
        assert all(network.last_asked[where] for where, count in waiting.items() if count)


@REPEATABLE
@given(
    items=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, LARGEST), st.booleans()), max_size=80),
    epoch_bytes=st.integers(1, 200),
)
def test_nothing_waits_longer_than_the_bound(items, epoch_bytes):
    """No starvation: less than an epoch's bytes overtake anything."""
    queue = PriorityQueue(epoch_bytes=epoch_bytes)
    overtaken = {}
    for number, (priority, num_bytes, pop) in enumerate(items):
        queue.put(priority, num_bytes, number)
        overtaken[number] = 0
        if pop:
            size, gone = queue.peek()
            assert queue.pop() == gone
            assert overtaken.pop(gone) < epoch_bytes
            for other in overtaken:
                overtaken[other] += size * (other < gone)
