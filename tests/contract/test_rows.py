"""Rows of tables within a client: the contract with threads for ranks, and what travels between them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.often import often

from kvstore_mpi.comm.memory import MemoryCommunicator, memory_communicators
from kvstore_mpi.errors import PeerError
from kvstore_mpi.tensor_collectives import row_dealing, row_memory
from kvstore_mpi.tensor_collectives.choice import Algorithm
from kvstore_mpi.tensor_collectives.group import Group
from kvstore_mpi.tensor_collectives.row_unions import Summed
from kvstore_mpi.tensor_collectives.rows import Pushed
from kvstore_mpi.testing.row_contract import CHECKS, ranks_of, reduced, spread, summed
from kvstore_mpi.testing.row_ranks import PIECES, Ranks, Table, contribution, same, total
from kvstore_mpi.transport.shared_memory import Arena, Directory
from kvstore_mpi.values.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]


class Counting(MemoryCommunicator):
    """Counts what a rank sends and receives, and how often it waits for the others of its host."""

    def __init__(self, inner: MemoryCommunicator) -> None:
        super().__init__(inner.rank, inner._shared)
        self.sent = self.received = self.messages = self.waits = 0

    def exchange(self, sends: Any, receives: Any) -> None:
        self.sent += sum(data.nbytes for _, data in sends)
        self.received += sum(space.nbytes for _, space in receives)
        self.messages += len(sends)
        super().exchange(sends, receives)

    def barrier(self, ranks: tuple[int, ...]) -> None:
        self.waits += 1
        super().barrier(ranks)


def on_all(
    size: int,
    call: Callable[[Ranks, Counting], Any],
    *,
    shares: bool = False,
    hosts: list[list[int]] | None = None,
) -> list[Any]:
    """Call on every rank, each in a thread; return what they return."""
    communicators = [Counting(each) for each in memory_communicators(size, hosts)]

    def run(communicator: Counting) -> Any:
        try:
            return call(ranks_of(communicator, shares=shares), communicator)
        except BaseException:
            for barrier in (communicator._shared.barrier, *communicator._shared.barriers.values()):
                barrier.abort()  # or the others wait for this rank until a deadline
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, communicators))


@pytest.mark.parametrize("size", often([1, 3], [1, 2, 3, 4]))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_messages(check, size):
    on_all(size, lambda ranks, _: check(ranks))


@pytest.mark.parametrize("size", often([3], [2, 3, 4]))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_memory(check, size):
    on_all(size, lambda ranks, _: check(ranks), shares=True)


SEVERAL_HOSTS = [[[0, 1], [2, 3]], [[0, 2], [1]], [[0], [1, 2, 4], [3]]]


@pytest.mark.parametrize("hosts", often([[[0, 2], [1]]], SEVERAL_HOSTS))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_several_hosts(check, hosts):
    on_all(sum(map(len, hosts)), lambda ranks, _: check(ranks), shares=True, hosts=hosts)


TABLE = Table(40_000, 32, np.dtype(np.float32))
ROW_BYTES = 4 + 32 * 4
FEW = 1_000  # bytes of numbers beforehand


def apart(rank: int, number: int) -> Rows:
    """Return rows with ids that no other rank has."""
    return Rows(np.arange(number) * 8 + rank, np.ones((number, 32), np.float32))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_rows_without_a_common_id_go_once_to_every_rank(size):
    """What Parallax gives for sparse variables by allreduce: 2 a w (N - 1), sent and received."""

    def call(ranks, communicator):
        for _ in range(2):  # known then: there is nothing to be merged
            before = communicator.sent + communicator.received
            summed(ranks, apart(ranks.rank, 900), TABLE, "table")
            travelled = communicator.sent + communicator.received - before
            assert 0 <= travelled - 2 * 900 * ROW_BYTES * (size - 1) <= FEW

    on_all(size, call)


@pytest.mark.parametrize("size", [3, 4])
def test_rows_with_common_ids_are_merged_before_they_are_spread(size):
    """As soon as it is known that they are the same: about 4 a w (N - 1) / N, as of what is dense."""
    rows = contribution(0, TABLE, 1_200)

    def call(ranks, communicator):
        first = summed(ranks, rows, TABLE, "table")
        before = communicator.sent + communicator.received
        again = summed(ranks, rows, TABLE, "table")
        same(again, first)
        travelled = communicator.sent + communicator.received - before
        wanted = 4 * 1_200 * ROW_BYTES * (size - 1) // size
        assert abs(travelled - wanted) <= wanted // 20 + FEW
        before = communicator.sent + communicator.received
        summed(ranks, rows, TABLE, "another table")
        assert communicator.sent + communicator.received - before >= 2 * 1_200 * ROW_BYTES * (size - 1)

    on_all(size, call)


def test_every_row_is_sent_once_to_its_owner():
    """Those of the own pieces do not travel."""

    def call(ranks, communicator):
        rows = contribution(ranks.rank, TABLE, 1_200)
        reduced(ranks, rows, TABLE, [piece % 3 for piece in range(PIECES)])
        away = np.count_nonzero(rows.ids % PIECES % 3 != ranks.rank)
        assert 0 <= communicator.sent - away * ROW_BYTES <= FEW
        received = communicator.received
        reduced(ranks, rows, TABLE, [2] * PIECES)
        assert (communicator.received > received) is (ranks.rank == 2)

    on_all(3, call)


def test_ids_travel_in_four_bytes_where_these_suffice():
    def call(ranks, communicator):
        sent = []
        for num_rows in (1 << 31, (1 << 31) + 1):
            before = communicator.sent
            summed(ranks, apart(ranks.rank, 900), TABLE._replace(num_rows=num_rows), num_rows)
            sent.append(communicator.sent - before)
        assert sent[1] - sent[0] == 900 * 4

    on_all(2, call)


# --- who merges which rows ---


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(np.arange(40_000), id="all"),
        pytest.param(np.arange(0, 1 << 40, 1 << 28), id="far apart"),
        pytest.param(contribution(0, TABLE, 2_000).ids, id="frequent ones first"),
    ],
)
@pytest.mark.parametrize("ranks", [2, 3, 8, 60])
def test_each_rank_merges_about_as_many_rows(ids, ranks):
    places = row_dealing.places_of(ids, ranks)
    dealt = np.bincount(places, minlength=ranks)
    even = ids.size / ranks
    assert len(dealt) == ranks
    assert np.abs(dealt - even).max() <= 4 * even**0.5 + 1


def test_no_host_sends_much_more_than_another_though_few_ids_are_frequent():
    """Ranges with as many rows each would have the last host send 1.7 times the mean."""
    sent = {}

    def call(ranks, communicator):
        rows = contribution(ranks.rank, TABLE, 4_000)
        summed(ranks, rows, TABLE, "table")
        before = communicator.sent
        summed(ranks, rows, TABLE, "table")
        sent[ranks.rank] = communicator.sent - before

    on_all(8, call)
    assert max(sent.values()) <= 1.1 * np.mean([*sent.values()])


@pytest.mark.parametrize(
    ("ranks", "overlap", "merges"),
    [
        (2, 0.5, False),
        (3, 0.66, True),
        (3, 0.67, False),
        (4, 0.74, True),
        (4, 0.76, False),
        (4, 1.0, False),
    ],
)
def test_merging_first_has_to_save_bytes(ranks, overlap, merges):
    assert row_dealing.merges_first(100_000, ROW_BYTES, ranks, overlap) is merges


def test_few_rows_are_not_worth_two_more_messages():
    assert not row_dealing.merges_first(100, ROW_BYTES, 4, 0.25)


def test_a_sum_does_not_begin_with_a_negative_zero():
    """Whichever way it has taken: a rank alone in its range would leave it as it is."""
    rows = Rows(np.arange(0, 4_000, 4), np.full((1_000, 32), -0.0, np.float32))

    def call(ranks, _):
        own = rows if ranks.rank == 1 else Rows(rows.ids[:0], rows.values[:0])
        return summed(ranks, own, TABLE, "table")

    for came in on_all(3, call):
        same(came, total([rows], TABLE))
        assert not any(map(np.shares_memory, came, rows))


# --- several hosts, and memory that is shared ---


def test_nothing_is_sent_within_a_host():
    def call(ranks, communicator):
        for step in range(2):
            rows = contribution(ranks.rank, TABLE, 1_200 + step)
            summed(ranks, rows, TABLE, "table")
            reduced(ranks, rows, TABLE, [piece % 2 for piece in range(PIECES)])
            spread(ranks, [rows] if ranks.rank == 1 else None, TABLE, 1)
        assert communicator.sent == communicator.received == 0

    on_all(3, call, shares=True)


def test_what_ranks_of_a_host_have_in_common_leaves_it_once():
    """Parallax's local aggregation: the union, from one rank of each host to the one that pushes."""

    def call(ranks, communicator):
        rows = contribution(ranks.rank // 2, TABLE, 1_200)  # of two ranks of a host the same
        reduced(ranks, rows, TABLE, [1] * PIECES)
        union = rows.ids.size * ROW_BYTES
        low, high = (union, union + FEW) if ranks.rank == 3 else (0, 0)
        assert low <= communicator.sent <= high
        before = communicator.sent
        summed(ranks, rows, TABLE, "table")
        low, high = (union, union + FEW) if ranks.rank in (0, 2) else (0, 0)
        assert low <= communicator.sent - before <= high

    on_all(4, call, shares=True, hosts=[[0, 1], [2, 3]])


def test_messages_are_sent_where_one_rank_has_no_memory_for_others(monkeypatch):
    """Nobody shares any then, on any host."""
    allocate = Arena.allocate

    def refused(arena, size, dtype):
        if threading.current_thread().name.endswith("_1"):
            raise OSError("no memory")
        return allocate(arena, size, dtype)

    monkeypatch.setattr(Arena, "allocate", refused)

    def call(ranks, communicator):
        rows = contribution(ranks.rank, TABLE, 1_200)
        came = summed(ranks, rows, TABLE, "table")
        same(came, total([contribution(rank, TABLE, 1_200) for rank in range(3)], TABLE))
        assert communicator.sent > 0

    on_all(3, call, shares=True)


def test_memory_that_cannot_be_mapped_is_an_error(monkeypatch):
    opened = Directory.open

    def too_large(directory, place):
        return opened(directory, place) if place.num_bytes < row_memory.LEAST_BYTES else None

    monkeypatch.setattr(Directory, "open", too_large)

    def call(ranks, communicator):
        with pytest.raises(PeerError, match=r"rank \d .* cannot be mapped .* --collective mpi"):
            summed(ranks, contribution(ranks.rank, TABLE, 5), TABLE, "table")

    on_all(2, call, shares=True)


def test_memory_grows_and_no_descriptor_is_held():
    """Where others have mapped it, it need not be found any more; nor may it keep what it was before."""

    def call(ranks, communicator):
        for number in (10, 20_000, 10, 40_000, 30_000, 20, 40):
            rows = apart(ranks.rank, number)
            union = total([apart(rank, number) for rank in range(2)], TABLE._replace(num_rows=400_000))
            same(summed(ranks, rows, TABLE._replace(num_rows=400_000), number), union)

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    on_all(2, call, shares=True)
    assert descriptors() == before


@pytest.mark.parametrize(
    ("algorithm", "sends"), [("auto", False), ("shm", False), ("mpi", True), ("ring", True)]
)
def test_a_group_shares_memory_if_its_algorithm_does(algorithm, sends):
    def call(ranks, communicator):
        group = Group(communicator, algorithm=Algorithm(algorithm))
        same(summed(group, apart(ranks.rank, 5), TABLE, "table"), union)
        assert bool(communicator.sent) is sends

    union = total([apart(rank, 5) for rank in range(3)], TABLE)
    on_all(3, call)


# --- many tables ---

MANY = [Table(40_000 + number, 16, np.dtype(np.float32)) for number in range(26)]
"""Of a recommender."""


@pytest.mark.parametrize("common", [False, True])
def test_many_tables_share_messages(common):
    """Two to each other rank, of which one says how many rows come; three more where ranges are merged."""

    def call(ranks, communicator):
        own = [contribution(0 if common else ranks.rank, table, 1_200) for table in MANY]
        owners = [piece % 4 for piece in range(PIECES)]
        ranks.rows.reduce([Pushed(rows, table, owners) for rows, table in zip(own, MANY)])
        assert communicator.messages == 2 * 3
        sums = [Summed(rows, table, number) for number, (rows, table) in enumerate(zip(own, MANY))]
        ranks.rows.allreduce(sums)
        assert communicator.messages == 4 * 3
        ranks.rows.allreduce(sums)
        assert communicator.messages == (9 if common else 6) * 3

    on_all(4, call)


def test_many_tables_wait_once_for_the_ranks_of_a_host():
    def call(ranks, communicator):
        own = [contribution(ranks.rank, table, 40) for table in MANY]
        for waits in (2, 1):  # the first time there is new memory to be mapped
            before = communicator.waits
            ranks.rows.reduce([Pushed(rows, table, [1] * PIECES) for rows, table in zip(own, MANY)])
            assert communicator.waits - before == waits
            ranks.rows.allreduce([Summed(rows, table, 0) for rows, table in zip(own, MANY)])
        assert communicator.messages == 0

    on_all(3, call, shares=True)


def test_what_many_tables_send_is_hardly_more_than_their_rows():
    """Blocks begin with a cache line; who owns some of the tables is sent no rows of the others."""

    def call(ranks, communicator):
        own = [contribution(ranks.rank, table, 1_200) for table in MANY]
        owners = [1 + number % 2 for number in range(len(MANY))]
        ranks.rows.reduce([Pushed(*each, [owner] * PIECES) for *each, owner in zip(own, MANY, owners)])
        rows = sum(each.ids.size for each, owner in zip(own, owners) if owner != ranks.rank)
        assert 0 <= communicator.sent - rows * (4 + 16 * 4) <= 2 * len(MANY) * (8 + 64)

    on_all(3, call)
