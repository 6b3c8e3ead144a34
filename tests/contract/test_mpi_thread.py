"""The MPI threads of a client, over threads for ranks: what is carried out together, in which order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.fake_messages import FakeNetwork
from support.mpi_ranks import DEADLINE_S, SMALL, Direct, Rank

from kvstore_mpi.comm.memory import MemoryCommunicator, memory_communicators
from kvstore_mpi.comm.sums import WHOLE_BYTES
from kvstore_mpi.records import KeySpec, Rows, Shard
from kvstore_mpi.values.row_sparse import PushedRows, RowSparse
from kvstore_mpi.worker.client import OVERLAPPING
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.instructions import Collect
from kvstore_mpi.worker.mpi_thread import STEPS
from kvstore_mpi.worker.records import KeyState, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def two(jobs: Callable[[Rank], Sequence[Collect]]) -> list[Rank]:
    """Return two ranks that start with the same jobs queued; their threads end after these."""
    ranks = [Rank(communicator) for communicator in memory_communicators(2)]
    for rank in ranks:
        rank.put(jobs(rank))
        rank.collectives.start(rank.reports.put, rank.reports.put)
    return ranks


def test_what_was_announced_together_is_carried_out_together() -> None:
    def jobs(rank: Rank) -> list[Collect]:
        alone = rank.job(Collective.BROADCAST, 9)
        return [*rank.bucket(Collective.REDUCE, range(5)), alone, *rank.bucket(Collective.SHARE, (5, 6))]

    for rank in two(jobs):
        assert [rank.report() for _ in range(3)] == [[0, 1, 2, 3, 4], [9], [5, 6]]
        rank.collectives.stop()
        rank.collectives.close(DEADLINE_S)


@pytest.mark.filterwarnings("error:overflow:RuntimeWarning")
def test_a_sum_that_is_too_large_is_infinite_and_nothing_is_said() -> None:
    """As with MPI and MXNet: whoever scales losses expects it. Not a number likewise."""
    buffers = []

    def jobs(rank: Rank) -> list[Collect]:
        [job] = rank.bucket(Collective.ALLREDUCE, [0])
        job.key.buffer[:] = 3e38
        buffers.append(job.key.buffer)
        return [job]

    for rank in two(jobs):
        assert rank.report() == [0]
        rank.collectives.stop()
        rank.collectives.close(DEADLINE_S)
    assert np.isinf(buffers).all()


class Counting(MemoryCommunicator):
    """Counts the messages of a rank."""

    messages = 0

    def exchange(self, sends: Any, receives: Any) -> None:
        self.messages += len(sends)
        super().exchange(sends, receives)


def counting(hosts: list[list[int]]) -> list[Counting]:
    """Return communicators of ranks on these hosts."""
    ranks = sum(map(len, hosts))
    return [Counting(each.rank, each._shared) for each in memory_communicators(ranks, hosts)]


@pytest.mark.parametrize(
    ("hosts", "what", "together"),
    [
        ([[0], [1], [2]], Collective.ALLREDUCE, False),
        ([[0], [1], [2]], Collective.REDUCE, False),
        ([[0], [1], [2]], Collective.SHARE, True),
        ([[0], [1, 2]], Collective.ALLREDUCE, True),
        ([[0], [1]], Collective.ALLREDUCE, True),
    ],
)
def test_where_sums_are_carried_out_together(
    hosts: list[list[int]], what: Collective, together: bool
) -> None:
    """Sums of three ranks with a host each are formed one by one, though they are announced together."""
    ranks = [Rank(communicator) for communicator in memory_communicators(sum(map(len, hosts)), hosts)]
    jobs = [rank.bucket(what, range(3)) for rank in ranks]
    for rank, own in zip(ranks, jobs):
        rank.collectives.start(rank.reports.put, rank.reports.put)
        rank.put(own)
    for rank in ranks:
        reported: list[list[int]] = []
        while sum(map(len, reported)) < 3:
            reported.append(rank.report())
        assert [number for numbers in reported for number in numbers] == [0, 1, 2]
        assert (rank.collectives.carried_out == 1) is together
        rank.collectives.stop()
        rank.collectives.close(DEADLINE_S)


def test_a_bucket_that_ends_in_the_middle_ends_the_thread() -> None:
    """As after a failure: what was announced with it is not carried out."""
    rank, _ = (Rank(communicator) for communicator in memory_communicators(2))
    rank.put(rank.bucket(Collective.ALLREDUCE, (0, 1))[:1])
    rank.collectives.stop()
    rank.collectives.start(rank.reports.put, rank.reports.put)
    rank.collectives.close(DEADLINE_S)
    assert rank.collectives.carried_out == 0
    assert rank.reports.empty()


def pushed(rank: int, number: int, together: int) -> Collect:
    """Make a reduce of a table of 4 pieces, of which each rank pushes two."""
    spec = KeySpec(0, number, (100, 3), "float32", layout="rows", partitions=4)
    key = KeyState(spec, None, None)
    key.place(number, [Shard(0, 2 * piece, 2 * piece + 1) for piece in range(4)], 1)
    key.pushers = [0, 1, 0, 1]
    ids = np.arange(number, 100, 1 + rank)
    rows = PushedRows(RowSparse(spec), Rows(ids, np.full((ids.size, 3), 1.0 + rank, np.float32)))
    operation = Operation(Kind.PUSH, 0, None, rows)
    key.queue.append(operation)
    key.alone = False
    key.fill(operation)
    return Collect(Collective.REDUCE, key, 1, 0, 4, together)


def test_the_tables_of_a_recommender_share_two_messages() -> None:
    """One says how many rows of each table come, to each of the two ranks that push."""
    for hosts in ([[0], [1]], [[0], [1], [2]]):
        communicators = counting(hosts)
        jobs = [[pushed(rank, number, 26 - number) for number in range(26)] for rank in range(len(hosts))]
        ranks = [Rank(communicator) for communicator in communicators]
        for rank, own in zip(ranks, jobs):
            rank.put(own)
            rank.collectives.start(rank.reports.put, rank.reports.put)
        for rank, communicator in zip(ranks, communicators):
            assert rank.report() == list(range(26))
            assert communicator.messages == 2 * len({0, 1} - {rank.rank})
            rank.collectives.stop()
            rank.collectives.close(DEADLINE_S)


def test_every_collective_can_be_carried_out() -> None:
    assert set(STEPS) == set(Collective)


class Begun:
    """A sum under way; asked for after each pause, if there is one."""

    def __init__(self, ranks: Overlapping, number: int, own: Any, array: Any) -> None:
        self._ranks, self._number, self._own, self._array = ranks, number, own, array
        self._came = ranks._shared.messages[1 - ranks.rank, ranks.rank]

    def pause_s(self) -> float:
        return self._ranks.pause_s

    def has_ended(self) -> bool:
        self._ranks.asked += 1
        return not self._came.empty()

    def wait(self) -> None:
        self._array[...] = self._own + self._came.get(timeout=DEADLINE_S)
        self._ranks.notes.append(f"end {self._number}")


class Overlapping(MemoryCommunicator):
    """Begins sums as two ranks on two hosts do, and notes what is begun and what ends."""

    def __init__(self, inner: MemoryCommunicator, *, begins: bool = True) -> None:
        super().__init__(inner.rank, inner._shared)
        self.notes: list[str] = []
        self.begun = self.asked = 0
        self.pause_s = 0.0
        self._begins = begins

    def begin_allreduce(self, array: Any) -> Any:
        if not self._begins:
            return None
        number = self.begun = self.begun + 1
        own = array.copy()
        self.notes.append(f"begin {number}")
        self._shared.messages[self.rank, 1 - self.rank].put(own)
        return Begun(self, number, own, array)

    def broadcast(self, array: Any, root: int) -> None:
        self.notes.append("broadcast")
        super().broadcast(array, root)


def overlapping(numbers: int, *others: Collective, begins: bool = True) -> list[tuple[Rank, Overlapping]]:
    """Return two ranks with that many sums queued, and other collectives behind them; not started."""
    both = []
    for each in memory_communicators(2, [[0], [1]]):
        communicator = Overlapping(each, begins=begins)
        rank = Rank(communicator)
        jobs = [rank.job(Collective.ALLREDUCE, number) for number in range(numbers)]
        jobs += [rank.job(what, numbers + number) for number, what in enumerate(others)]
        rank.put(jobs)
        both.append((rank, communicator))
    return both


def _let_run(both: Sequence[tuple[Rank, Overlapping]], *, jobs: int) -> None:
    for rank, _ in both:
        rank.collectives.stop()
        rank.collectives.start(rank.reports.put, rank.reports.put)
    for rank, _ in both:
        assert [rank.report() for _ in range(jobs)] == [[number] for number in range(jobs)]
        rank.collectives.close(DEADLINE_S)


def test_sums_of_two_hosts_overlap() -> None:
    """As many as may; each is reported when it has ended, in order, and the last before the thread ends."""
    both = overlapping(OVERLAPPING + 2)
    _let_run(both, jobs=OVERLAPPING + 2)
    for _, communicator in both:
        begins = [f"begin {number}" for number in range(1, OVERLAPPING + 1)]
        assert communicator.notes[: OVERLAPPING + 2] == [*begins, "end 1", f"begin {OVERLAPPING + 1}"]
        assert communicator.notes[-1] == f"end {OVERLAPPING + 2}"


def test_what_follows_sums_under_way_waits_for_them() -> None:
    both = overlapping(2, Collective.BROADCAST)
    _let_run(both, jobs=3)
    for _, communicator in both:
        assert communicator.notes == ["begin 1", "begin 2", "end 1", "end 2", "broadcast"]


def test_sums_that_cannot_be_begun_are_carried_out() -> None:
    both = overlapping(3, begins=False)
    _let_run(both, jobs=3)
    assert all(communicator.notes == [] for _, communicator in both)


def test_a_sum_ends_though_nothing_follows() -> None:
    """The thread does not wait for another job first."""
    both = overlapping(1)
    for rank, _ in both:
        rank.collectives.start(rank.reports.put, rank.reports.put)
    for rank, _ in both:
        assert rank.report() == [0]
        rank.collectives.stop()
        rank.collectives.close(DEADLINE_S)
        assert rank.collectives.seconds > 0
        assert rank.collectives.carried_out == 1
    # What has no pause is waited for.
    assert all(communicator.asked == 0 for _, communicator in both)


def test_a_sum_begins_while_another_is_waited_for() -> None:
    """The other rank, which is late with the first, needs it for the second, and gets it."""
    (first, communicator), (late, other) = overlapping(1)
    communicator.pause_s = 1e-3
    other.pause_s = DEADLINE_S  # for which nobody asks, because jobs come before
    first.collectives.start(first.reports.put, first.reports.put)
    for number in (1, 2):
        first.put([first.job(Collective.ALLREDUCE, number)])
    came = communicator._shared.messages[0, 1]
    for _ in range(3):
        assert (came.get(timeout=DEADLINE_S) == 0).all()
    # Of the late rank everything is still to come: that of the first three has come to it all the same.
    assert first.reports.empty()
    for _ in range(3):
        came.put(np.zeros(SMALL, np.float32))
    late.put([late.job(Collective.ALLREDUCE, number) for number in (1, 2)])
    late.collectives.stop()
    late.collectives.start(late.reports.put, late.reports.put)
    for rank in (first, late):
        assert [rank.report() for _ in range(3)] == [[0], [1], [2]]
    assert communicator.asked >= 3
    first.collectives.stop()
    for rank in (first, late):
        rank.collectives.close(DEADLINE_S)


def test_what_a_thread_waits_for_is_told() -> None:
    """The first of the sums under way, since that began; their time counts once."""
    (rank, communicator), (late, _) = overlapping(1)
    communicator.pause_s = 1e-3
    rank.collectives.start(rank.reports.put, rank.reports.put)
    rank.put([rank.job(Collective.ALLREDUCE, 1)])
    begin = time.monotonic()
    while communicator.asked < 20 or rank.collectives.current is None:
        assert time.monotonic() - begin < DEADLINE_S
    began, job = rank.collectives.current
    assert job.key.key_id == 0
    assert began < time.monotonic() - 0.02
    late.put([late.job(Collective.ALLREDUCE, 1)])
    for each in (late, rank):
        each.collectives.stop()
    late.collectives.start(late.reports.put, late.reports.put)
    for each in (rank, late):
        assert [each.report() for _ in range(2)] == [[0], [1]]
        each.collectives.close(DEADLINE_S)
    assert rank.collectives.current is None
    assert 0.02 < rank.collectives.seconds < time.monotonic() - began


def test_sums_of_tables_do_not_overlap() -> None:
    """Their ranks first tell each other how many rows there are."""
    both = overlapping(0)
    for rank, _ in both:
        job = pushed(rank.rank, 0, 1)._replace(operation=Collective.ALLREDUCE)
        rank.put([job])
    _let_run(both, jobs=1)
    assert all(communicator.notes == [] for _, communicator in both)


@pytest.mark.parametrize("of_tables", [True, False])
def test_ranks_that_come_to_an_agreement_have_no_sum_under_way(of_tables: bool) -> None:
    """The last rank comes to it when it has a sum, in two messages, for which it needs theirs."""
    network = FakeNetwork(3, DEADLINE_S)
    ranks = [Rank(Direct(each, network)) for each in memory_communicators(3, [[0], [1], [2]])]
    behind = [
        [pushed(rank.rank, 1, 2), pushed(rank.rank, 2, 1)]
        if of_tables
        else rank.bucket(Collective.SHARE, (1, 2))
        for rank in ranks
    ]
    for rank in ranks:
        rank.put([rank.job(Collective.ALLREDUCE, 0, WHOLE_BYTES)])
        if rank is not ranks[2]:
            rank.put(behind[rank.rank])
    for rank in ranks:
        rank.collectives.start(rank.reports.put, rank.reports.put)
    assert ranks[2].report() == [0]
    ranks[2].put(behind[2])
    for rank in ranks:
        assert rank is ranks[2] or rank.report() == [0]
        assert rank.report() == [1, 2]
        rank.collectives.stop()
        rank.collectives.close(DEADLINE_S)
