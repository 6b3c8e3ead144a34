"""Which server owns which elements, on examples; the general rules are in ``tests/property``."""

from __future__ import annotations

from kvstore_mpi.p3.slicing import cut
from kvstore_mpi.records import Shard, Slice
from kvstore_mpi.scheduler.placement import Placement


def test_small_keys_go_to_the_least_loaded_server():
    """Each key goes where the fewest bytes are, the first of equals."""
    placement = Placement(3, slice_elements=100)
    owners = [placement.place(size, 4)[0].server for size in (50, 10, 20, 5, 5)]
    assert owners == [0, 1, 2, 1, 1]
    assert placement.loads == (200, 80, 80)


def test_a_large_key_is_spread_over_all_servers_in_contiguous_shards():
    """Each server gets one range of whole slices."""
    placement = Placement(3, slice_elements=10)
    assert placement.place(60, 4) == [Shard(0, 0, 20), Shard(1, 20, 40), Shard(2, 40, 60)]


def test_the_short_slice_belongs_to_the_server_that_it_was_dealt_to():
    """Otherwise servers with high numbers would hold less than their share."""
    placement = Placement(2, slice_elements=10)
    assert placement.place(45, 1) == [Shard(1, 0, 20), Shard(0, 20, 45)]
    assert placement.place(3, 1)[0].server == 1


def test_round_robin_deals_on_from_key_to_key():
    """As in P3 section 4.1: the servers take turns, whatever they hold."""
    placement = Placement(3, slice_elements=10, round_robin=True)
    owners = [placement.place(size, 4)[0].server for size in (10, 1, 10, 5)]
    assert owners == [0, 1, 2, 0]
    assert placement.place(40, 4) == [Shard(2, 0, 10), Shard(0, 10, 20), Shard(1, 20, 40)]


def test_a_whole_key_stays_on_one_server():
    """An optimizer that needs the whole tensor finds it in one place."""
    placement = Placement(4, slice_elements=10)
    assert placement.place(1000, 4, whole=True) == [Shard(0, 0, 1000)]
    assert placement.place(5, 4)[0].server == 1


def test_an_empty_key_has_one_empty_shard_and_one_empty_slice():
    """It is pushed and answered like any other."""
    placement = Placement(2, slice_elements=10)
    shards = placement.place(0, 4)
    assert shards == [Shard(0, 0, 0)]
    assert cut(7, shards, 10) == [(0, Slice(7, 0, 0))]
    assert placement.loads == (0, 0)


def test_slices_do_not_cross_shards():
    """A slice is what travels in one message to one server."""
    slices = cut(3, [Shard(1, 0, 25), Shard(0, 25, 30)], 10)
    assert slices == [
        (1, Slice(3, 0, 10)),
        (1, Slice(3, 10, 20)),
        (1, Slice(3, 20, 25)),
        (0, Slice(3, 25, 30)),
    ]
