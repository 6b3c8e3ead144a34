"""Reduces and broadcasts of ranks that have a host each: under way together, in the order of the leader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.fake_messages import FakeNetwork
from support.mpi_ranks import DEADLINE_S, SMALL, Direct, Rank

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.records import KeySpec, Shard
from kvstore_mpi.worker.collectives import Collective
from kvstore_mpi.worker.instructions import Collect
from kvstore_mpi.worker.records import KeyState

SLICES = 7


def ranks_of(size: int, *, all_push: bool = True) -> tuple[list[Rank], FakeNetwork]:
    network = FakeNetwork(size, DEADLINE_S)
    each_alone = [[rank] for rank in range(size)]
    communicators = memory_communicators(size, each_alone)
    return [Rank(Direct(each, network), all_push=all_push) for each in communicators], network


def start(rank: Rank) -> None:
    rank.collectives.start(rank.reports.put, rank.reports.put)


def end(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.collectives.stop()
        rank.collectives.close(DEADLINE_S)


def dealt(rank: Rank, number: int, size: int, what: Collective) -> Collect:
    """Make a collective on slices that the ranks push by turns; elements are those of ``values``."""
    elements = SMALL * SLICES
    buffer = values(rank.rank, number)
    key = KeyState(KeySpec(0, number, (elements,), "float32"), buffer, buffer.data)
    key.place(number, [Shard(0, SMALL * place, SMALL * (place + 1)) for place in range(SLICES)], SMALL)
    key.pushers = [place % size for place in range(SLICES)]
    return Collect(what, key, 1, 0, SLICES)


def values(rank: int, number: int) -> Any:
    return np.random.default_rng([rank, number]).standard_normal(SMALL * SLICES).astype(np.float32)


def reported(rank: Rank, slices: int) -> list[tuple[int, int]]:
    """Return key and first slice of each run that is reported, in this order."""
    found: list[tuple[int, int]] = []
    seen = 0
    while seen < slices:
        jobs = rank.reports.get(timeout=DEADLINE_S)
        assert not isinstance(jobs, BaseException), jobs
        found += [(job.key.key_id, job.first) for job in jobs]
        seen += sum(job.last - job.first for job in jobs)
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
def test_slices_are_summed_to_those_who_push_them_and_shared_by_these(size: int) -> None:
    """Reduce by reduce in the order of the ranks, and whoever gets a sum is the only one that does."""
    ranks, network = ranks_of(size)
    jobs = {}
    for rank in ranks:
        own = [dealt(rank, 0, size, Collective.REDUCE_SHARE), dealt(rank, 1, size, Collective.SHARE)]
        jobs[rank.rank] = own
        rank.put(own)
        start(rank)
    found = [reported(rank, 2 * SLICES) for rank in ranks]
    one_by_one = [(number, place) for number in range(2) for place in range(SLICES)]
    assert found == [one_by_one] * size, "not each slice by itself, in the order of the announcements"
    end(ranks)
    total = values(0, 0)
    for other in range(1, size):
        total = total + values(other, 0)
    for rank in ranks:
        reduced, shared = (job.key.buffer.reshape(SLICES, SMALL) for job in jobs[rank.rank])
        for place in range(SLICES):
            root = place % size
            of_rank = values(rank.rank, 0).reshape(SLICES, SMALL)[place]
            wanted = total.reshape(SLICES, SMALL)[place] if root == rank.rank else of_rank
            assert reduced[place].tobytes() == wanted.tobytes()
            assert shared[place].tobytes() == values(root, 1).reshape(SLICES, SMALL)[place].tobytes()
    # Each slice crosses from and to each rank but the one that pushes it, once each way.
    assert len(network.messages) == 2 * SLICES * (size - 1)


def test_a_value_goes_while_a_sum_is_waited_for() -> None:
    """The other rank has called neither yet: what this one has of both has left."""
    (first, late), network = ranks_of(2)
    jobs = [Collective.REDUCE_SHARE, Collective.SHARE, Collective.REDUCE]
    first.put([first.job(what, number) for number, what in enumerate(jobs)])
    start(first)
    with network.moved:
        sent = network.moved.wait_for(lambda: network.messages, DEADLINE_S)
    assert sent == [(0, 1, 2, 4 * SMALL)], "the share, with the second tag"
    assert first.reports.empty()
    late.put([late.job(what, number) for number, what in enumerate(jobs)])
    start(late)
    for rank in (first, late):
        assert [rank.report() for _ in jobs] == [[0], [1], [2]]
    end([first, late])


@pytest.mark.parametrize(
    ("size", "all_push", "what", "is_begun"),
    [
        (2, False, Collective.REDUCE, True),
        (2, False, Collective.REDUCE_GIVE, True),
        (2, False, Collective.SHARE, True),
        (2, False, Collective.SKIP, True),
        (2, False, Collective.BROADCAST, False),
        (2, False, Collective.FETCH, False),
        (3, False, Collective.REDUCE, False),
        (3, False, Collective.SHARE, False),
        (3, False, Collective.ALLREDUCE, True),
        (3, True, Collective.REDUCE, True),
        (3, True, Collective.SHARE, True),
    ],
)
def test_what_is_begun(size: int, all_push: bool, what: Collective, is_begun: bool) -> None:
    """Of more than two ranks, one that pushes for all is better served by the library."""
    ranks, network = ranks_of(size, all_push=all_push)
    for rank in ranks:
        rank.put([rank.job(what, 0)])
        start(rank)
    assert [rank.report() for rank in ranks] == [[0]] * size
    end(ranks)
    assert bool(network.messages) is is_begun


def test_a_run_that_goes_another_way_waits_for_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a large one beside small ones may; the rest of its slices is begun."""
    ranks, network = ranks_of(2)
    for rank in ranks:
        group = rank.collectives._group
        begin = group.begin

        def begin_most(name: Any, run: Any, begin: Any = begin) -> Any:
            return None if run.lo == 2 * SMALL else begin(name, run)

        monkeypatch.setattr(group, "begin", begin_most)
        rank.put([dealt(rank, 0, 2, Collective.REDUCE)])
        start(rank)
    found = [reported(rank, SLICES) for rank in ranks]
    assert [place for _, place in found[0]] == sorted(place for _, place in found[0])
    assert found[0] == found[1]
    end(ranks)
    assert len(network.messages) == SLICES - 1
