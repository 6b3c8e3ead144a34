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


def test_round_robin_deals_slices_however_little_servers_hold():
    """P3 knows nothing smaller."""
    shards = Placement(4, slice_elements=50_000, round_robin=True).place(65_536, 4)
    assert shards == [Shard(0, 0, 50_000), Shard(1, 50_000, 65_536)]


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


def test_a_small_model_is_spread_in_less_than_slices():
    """The keys of a small language model on eight servers: by slices one of them would have 200 KB."""
    placement = Placement(8, slice_elements=50_000)
    for size in (65_536, 65_536, 1_024, 16_384):
        placement.place(size, 4)
    assert max(placement.loads) <= 1.4 * sum(placement.loads) / 8
    assert cut(0, Placement(8, 50_000).place(65_536, 4), 50_000) == [
        (server, Slice(0, 8_192 * server, 8_192 * (server + 1))) for server in range(8)
    ]


def test_a_large_model_is_dealt_in_slices():
    """A part of a slice would be one more message, and takes nothing off a server that holds many."""
    placement = Placement(4, slice_elements=50_000)
    placement.place(25_000_000, 4)
    assert [hi - lo for _, lo, hi in placement.place(49_000, 4)] == [49_000]
    assert sum(1 for _ in cut(1, placement.place(200_000, 4), 50_000)) == 4


def test_what_is_dealt_at_once_grows_with_what_servers_hold():
    """A quarter of it, from 32 KB to a slice: 112 KB here, and more afterwards."""
    placement = Placement(2, slice_elements=50_000)
    placement.place(14 * 16_384, 4)
    assert placement.loads == (7 << 16, 7 << 16)
    assert [placement.place(28_000, 4) for _ in range(2)] == [[Shard(0, 0, 28_000)], [Shard(1, 0, 28_000)]]
    assert placement.place(40_000, 4) == [Shard(0, 0, 20_000), Shard(1, 20_000, 40_000)]


def test_tables_take_nothing_from_the_dense_keys_of_a_server():
    """A step touches some rows of a table, and every byte of a dense key."""
    placement = Placement(2, slice_elements=50_000)
    placement.place_pieces(1, 1_000_000)
    assert [shard.server for shard in placement.place(100_000, 4)] == [0, 1]


def test_slices_do_not_cross_shards():
    """A slice is what travels in one message to one server."""
    slices = cut(3, [Shard(1, 0, 25), Shard(0, 25, 30)], 10)
    assert slices == [
        (1, Slice(3, 0, 10)),
        (1, Slice(3, 10, 20)),
        (1, Slice(3, 20, 25)),
        (0, Slice(3, 25, 30)),
    ]
