"""The order in which slices leave, on examples; the general rules are in ``tests/property``."""

from __future__ import annotations

from kvstore_mpi.p3.send_queue import SendQueue


def _queue(*items: tuple[str, int, int, str]) -> SendQueue[str, str]:
    queue: SendQueue[str, str] = SendQueue()
    for destination, priority, num_bytes, name in items:
        queue.put(destination, priority, num_bytes, name)
    return queue


def test_what_is_urgent_overtakes_what_came_before():
    """P3 section 4.2: the gradient of the first layer is ready last and leaves first."""
    queue = _queue(("s", -2, 10, "fc2"), ("s", -1, 10, "fc1"), ("s", 0, 10, "conv"))
    assert list(queue.bundles(10)) == [("s", ["conv"]), ("s", ["fc1"]), ("s", ["fc2"])]


def test_equals_leave_in_the_order_of_arrival():
    """Slices of one key keep their order."""
    queue = _queue(*(("s", 5, 10, str(i)) for i in range(9)))
    assert list(queue.bundles(1000)) == [("s", [str(i) for i in range(9)])]


def test_destinations_take_turns():
    """A long queue for one server does not delay the first message to another."""
    queue = _queue(*(("a", 0, 10, f"a{i}") for i in range(3)), ("b", -9, 10, "b0"))
    assert [destination for destination, _ in queue.bundles(10)] == ["a", "b", "a", "a"]


def test_small_items_share_a_message_up_to_the_bound():
    """The bundle ends before the item that would exceed it."""
    queue = _queue(("s", 0, 40, "a"), ("s", 0, 60, "b"), ("s", 0, 1, "c"))
    assert list(queue.bundles(100)) == [("s", ["a", "b"]), ("s", ["c"])]


def test_a_large_item_travels_alone():
    """Even an empty item does not join one that exceeds the bound."""
    queue = _queue(("s", 0, 101, "a"), ("s", 0, 0, "b"))
    assert list(queue.bundles(100)) == [("s", ["a"]), ("s", ["b"])]


def test_the_queue_is_empty_afterwards_and_can_be_used_again():
    """What was put is handed out once."""
    queue = _queue(("s", 0, 1, "a"))
    assert len(queue) == 1
    assert list(queue.bundles(10)) == [("s", ["a"])]
    assert len(queue) == 0
    assert list(queue.bundles(10)) == []
    queue.put("s", 0, 1, "b")
    assert list(queue.bundles(10)) == [("s", ["b"])]
