"""The order in which slices leave, on examples; the general rules are in ``tests/property``."""

from __future__ import annotations

from kvstore_mpi.p3.priority_queue import PriorityQueue
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.p3.send_queue import BUNDLE_BYTES, BUNDLES_IN_WINDOW, SendQueue


def queue_of(*items, schedule=Schedule.P3, bundle=10):
    """A queue whose messages have at most ``bundle`` bytes, of which two may be under way."""
    queue = SendQueue(schedule, window_bytes=BUNDLES_IN_WINDOW * bundle)
    for destination, priority, num_bytes, name in items:
        queue.put(destination, priority, num_bytes, name)
    return queue


def leaving(queue, in_flight=0):
    """What leaves now."""
    return list(queue.bundles(0.0, lambda _destination: in_flight))


def all_leaving(queue):
    """What leaves when everything is acknowledged at once."""
    return [bundle for bundles in iter(lambda: leaving(queue), []) for bundle in bundles]


URGENT_LAST = (("s", -2, 10, "fc2"), ("s", -1, 10, "fc1"), ("s", 0, 10, "conv"))


def test_what_is_urgent_overtakes_what_came_before():
    """P3 section 4.2: the gradient of the first layer is ready last and leaves first."""
    assert all_leaving(queue_of(*URGENT_LAST)) == [("s", ["conv"]), ("s", ["fc1"]), ("s", ["fc2"])]


def test_without_priorities_it_is_first_come_first_served():
    """The two schedules that P3 is compared with know no priority."""
    for schedule in (Schedule.SLICING, Schedule.FIFO):
        queue = queue_of(*URGENT_LAST, schedule=schedule)
        assert all_leaving(queue) == [("s", ["fc2"]), ("s", ["fc1"]), ("s", ["conv"])]


def test_equals_leave_in_the_order_of_arrival():
    """Slices of one key keep their order."""
    queue = queue_of(*(("s", 5, 10, str(i)) for i in range(9)), bundle=1000)
    assert leaving(queue) == [("s", [str(i) for i in range(9)])]


def test_destinations_take_turns():
    """A long queue for one server does not delay the first message to another."""
    queue = queue_of(*(("a", 0, 10, f"a{i}") for i in range(3)), ("b", -9, 10, "b0"))
    assert [destination for destination, _ in all_leaving(queue)] == ["a", "b", "a", "a"]


def test_room_is_wanted_when_what_waits_does_not_fit():
    """Of 20 bytes that may be under way; a message has at most 10."""
    queue = queue_of(("s", 0, 10, "alone"))
    asked = [queue.wants_room("s") for _ in queue.bundles(0.0, lambda _: 0)]
    assert asked == [False], "another message has room beside it"
    queue = queue_of(*(("s", 0, 10, str(i)) for i in range(2)))
    asked = [queue.wants_room("s") for _ in queue.bundles(0.0, lambda _: 0)]
    assert asked == [False, True], "the second leaves no room"
    queue = queue_of(*(("s", 0, 10, str(i)) for i in range(3)))
    asked = [queue.wants_room("s") for _ in queue.bundles(0.0, lambda _: 0)]
    assert asked == [True, True], "the first is followed by more than there is room for"


def test_small_items_share_a_message_up_to_the_bound():
    """The bundle ends before the item that would exceed it."""
    queue = queue_of(("s", 0, 40, "a"), ("s", 0, 60, "b"), ("s", 0, 1, "c"), bundle=100)
    assert leaving(queue) == [("s", ["a", "b"]), ("s", ["c"])]


def test_a_large_item_travels_alone():
    """Even an empty item does not join one that exceeds the bound."""
    queue = queue_of(("s", 0, 101, "a"), ("s", 0, 1, "b"), bundle=100)
    assert leaving(queue) == [("s", ["a"]), ("s", ["b"])]


def test_the_queue_is_empty_afterwards_and_can_be_used_again():
    """What was put is handed out once."""
    queue = queue_of(("s", 0, 1, "a"))
    assert len(queue) == 1
    assert leaving(queue) == [("s", ["a"])]
    assert len(queue) == 0
    assert leaving(queue) == []
    queue.put("s", 0, 1, "b")
    assert leaving(queue) == [("s", ["b"])]


def test_what_is_beyond_the_window_waits_and_can_be_overtaken():
    """With the window full nothing leaves; when there is room, the most urgent goes, whenever it came."""
    queue = queue_of(*(("s", -5, 10, f"late{i}") for i in range(4)))
    assert [items for _, items in leaving(queue)] == [["late0"], ["late1"]]
    assert leaving(queue, in_flight=20) == []
    queue.put("s", 0, 10, "urgent")
    assert leaving(queue, in_flight=10) == [("s", ["urgent"])]
    assert leaving(queue, in_flight=0) == [("s", ["late2"]), ("s", ["late3"])]


def test_answers_may_have_twice_as_much_under_way():
    """On a link that pushes and answers share, answers come first so. Of three slices that a small model's
    window holds one remains free while more waits: messages are of half a window."""
    one, two = SendQueue(), SendQueue(window_times=2)
    for queue in (one, two):
        queue.expect("s", 0, 100_000)
        for number in range(20):
            queue.put("s", 0, 100_000, number)
    assert [sum(len(items) for _, items in leaving(queue)) for queue in (one, two)] == [2, 6]


def test_a_window_is_not_made_smaller_by_waiting_for_work():
    """Slices that come one by one during compute arrive soon, but that is seen when the next one comes."""
    queue = SendQueue()
    queue.expect("s", 0, 100_000)
    now = 0.0
    for number in range(20):
        queue.put("s", 0, 100_000, number)
    while queue:  # a link of 100 MB/s
        now += 0.001 * sum(len(items) for _, items in queue.bundles(now, lambda _: 0))
    window = queue._lanes["s"].window
    busy = window.limit
    for number in range(20):
        queue.put("s", 0, 100_000, number)
        now += 0.1
        list(queue.bundles(now, lambda _: 0))
    assert window.limit == busy
    assert busy > 1_000_000


def test_room_is_saved_for_a_whole_message():
    """What is acknowledged in small portions leaves in small messages only if no more waits."""
    queue = queue_of(*(("s", 0, 5, f"{i}") for i in range(3)))
    assert leaving(queue, in_flight=15) == []
    assert leaving(queue, in_flight=10) == [("s", ["0", "1"])]
    assert leaving(queue, in_flight=15) == [("s", ["2"])]


def test_a_full_window_holds_up_no_other_destination():
    """Each has its own."""
    queue = queue_of(("a", 9, 10, "a"), ("b", 0, 10, "b"))
    assert list(queue.bundles(0.0, lambda peer: 20 if peer == "a" else 0)) == [("b", ["b"])]


def test_an_item_larger_than_the_window_leaves_when_nothing_is_under_way():
    """Otherwise it would wait for ever."""
    queue = queue_of(("s", 0, 1_000, "large"))
    assert leaving(queue, in_flight=1) == []
    assert leaving(queue, in_flight=0) == [("s", ["large"])]


def test_what_does_not_travel_needs_no_window():
    """Items in shared memory leave however full it is."""
    queue = queue_of()
    queue.put("s", 0, 1_000, "shared", travels=False)
    assert leaving(queue, in_flight=20) == [("s", ["shared"])]


def test_what_travels_does_not_hold_up_what_does_not():
    """A destination may have keys of both kinds."""
    queue = queue_of(("s", -1, 10, "waits"), ("s", -2, 10, "waits, too"))
    queue.put("s", 0, 1_000, "shared", travels=False)
    assert leaving(queue, in_flight=20) == [("s", ["shared"])]
    assert leaving(queue, in_flight=10) == [("s", ["waits"])]


def test_nothing_is_overtaken_by_what_comes_in_a_later_epoch():
    """An item of the lowest priority goes as soon as a bounded number of bytes has arrived behind it."""
    queue = PriorityQueue(epoch_bytes=100)
    queue.put(-9, 10, "low")
    gone = 0
    while True:
        queue.put(0, 30, "high")
        num_bytes, item = queue.peek()
        assert queue.pop() == item
        if item == "low":
            break
        gone += num_bytes
    assert gone == 60


def test_shared_items_share_a_message_up_to_the_bound_too():
    """No window counts them, but to write them all at once would hold up what is more urgent."""
    queue = queue_of()
    for name in "abc":
        queue.put("s", 0, BUNDLE_BYTES // 2, name, travels=False)
    assert leaving(queue) == [("s", ["a", "b"]), ("s", ["c"])]


def test_what_travels_stays_behind_the_window_when_shared_items_leave():
    """It may not leave with them."""
    queue = queue_of(("s", 0, 10, "travels"))
    queue.put("s", 1, 10, "shared", travels=False)
    assert leaving(queue, in_flight=20) == [("s", ["shared"])]
    assert leaving(queue, in_flight=10) == [("s", ["travels"])]


def test_what_is_dropped_does_not_leave_later():
    """A destination that was lost begins anew, and the others keep what waits for them."""
    queue = queue_of(("s", 0, 10, "old"), ("t", 0, 10, "stays"))
    queue.drop("s")
    queue.put("s", 0, 10, "new")
    assert all_leaving(queue) == [("t", ["stays"]), ("s", ["new"])]


def test_what_is_discarded_leaves_the_rest_in_its_order():
    """Among many, so that the heap has to be put in order again."""
    queue = PriorityQueue()
    for number in range(40):
        queue.put(number * 7 % 40, 1, number)
    queue.discard(lambda number: number * 7 % 40 >= 20)
    left = [queue.pop() for _ in range(len(queue))]
    assert [number * 7 % 40 for number in left] == list(range(19, -1, -1))
