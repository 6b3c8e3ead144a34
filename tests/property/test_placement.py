"""Rules of placement that hold for every model."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.p3.slicing import cut, deal_to_ranks, deal_to_ranks_near
from kvstore_mpi.scheduler.placement import Placement

KEYS = st.lists(
    st.tuples(st.integers(0, 700), st.sampled_from([1, 2, 4, 8]), st.booleans()), min_size=1, max_size=30
)

REPEATABLE = settings(deadline=None, derandomize=True)


@REPEATABLE
@given(keys=KEYS, servers=st.integers(1, 7), slice_elements=st.integers(1, 100))
def test_every_element_has_one_owner(keys, servers, slice_elements):
    """Shards cover a key in ascending order, each server has at most one, and slices cover the shards."""
    placement = Placement(servers, slice_elements)
    for key_id, (size, itemsize, whole) in enumerate(keys):
        shards = placement.place(size, itemsize, whole=whole)
        assert [lo for _, lo, _ in shards] == [0, *(hi for _, _, hi in shards[:-1])]
        assert shards[-1].hi == size
        assert len({server for server, _, _ in shards}) == len(shards)
        assert all(0 <= server < servers for server, _, _ in shards)
        slices = cut(key_id, shards, slice_elements)
        assert [piece.lo for _, piece in slices] == [0, *(piece.hi for _, piece in slices[:-1])]
        assert slices[-1][1].hi == size
        assert all(0 < piece.hi - piece.lo <= slice_elements or size == 0 for _, piece in slices)
        owner = {server: (lo, hi) for server, lo, hi in shards}
        assert all(owner[s][0] <= p.lo <= p.hi <= owner[s][1] for s, p in slices)


@REPEATABLE
@given(keys=KEYS, servers=st.integers(1, 7), slice_elements=st.integers(1, 100))
def test_every_prefix_of_the_model_is_balanced_to_within_a_slice(keys, servers, slice_elements):
    """No server holds more than the least loaded one by more than the largest slice so far (P3 5.6)."""
    placement = Placement(servers, slice_elements)
    largest = 0
    for size, itemsize, _ in keys:
        placement.place(size, itemsize)
        largest = max(largest, min(size, slice_elements) * itemsize)
        assert max(placement.loads) - min(placement.loads) <= largest


@REPEATABLE
@given(keys=KEYS, servers=st.integers(1, 7), slice_elements=st.integers(1, 100))
def test_whole_keys_have_one_server(keys, servers, slice_elements):
    """A whole key is one shard, and the books on the servers' bytes balance."""
    placement = Placement(servers, slice_elements)
    for size, itemsize, whole in keys:
        shards = placement.place(size, itemsize, whole=whole)
        assert len(shards) == 1 or not whole
    assert sum(placement.loads) == sum(size * itemsize for size, itemsize, _ in keys)


@REPEATABLE
@given(keys=KEYS, servers=st.integers(1, 7), slice_elements=st.integers(1, 100))
def test_placement_is_a_function_of_the_model(keys, servers, slice_elements):
    """The same keys in the same order have the same owners in every job."""
    one, other = (Placement(servers, slice_elements) for _ in range(2))
    for size, itemsize, whole in keys:
        assert one.place(size, itemsize, whole=whole) == other.place(size, itemsize, whole=whole)


@given(st.integers(0, 50), st.integers(1, 200), st.integers(1, 9))
def test_slices_are_dealt_to_ranks_in_runs_of_equal_length(key_id, num_slices, ranks):
    """To within one slice; and consecutive keys begin with different ranks."""
    dealt = deal_to_ranks(key_id, num_slices, ranks)
    counts = [dealt.count(rank) for rank in range(ranks)]
    assert len(dealt) == num_slices
    assert max(counts) - min(counts) <= 1
    changes = sum(one != other for one, other in itertools.pairwise(dealt))
    assert changes == min(num_slices, ranks) - 1
    assert dealt[0] == key_id % ranks


@given(st.integers(0, 50), st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_pieces_of_tables_go_to_ranks_near_their_servers(key_id, num_servers, times, ranks):
    """As if both were dealt to as many hosts in the same order; ranks that are equally near take turns."""
    servers = [position % num_servers for position in range(times * num_servers * ranks)]
    dealt = deal_to_ranks_near(key_id, servers, num_servers, ranks)
    for server, rank in zip(servers, dealt):
        assert 0 <= rank < ranks
        assert (
            (rank * num_servers // ranks <= server)
            if ranks >= num_servers
            else (rank == server * ranks // num_servers)
        )
    if ranks == num_servers:
        assert dealt == servers
    if num_servers == 1:
        assert set(dealt) == set(range(ranks))
