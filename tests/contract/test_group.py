"""Sums within a client, in every way that can be asked for, with threads for ranks and real shared
memory."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.often import often

from kvstore_mpi.comm.memory import MemoryCommunicator, memory_communicators
from kvstore_mpi.records import ITEMSIZES
from kvstore_mpi.tensor_collectives import runs
from kvstore_mpi.tensor_collectives.choice import Algorithm
from kvstore_mpi.tensor_collectives.executor import Memory, phases
from kvstore_mpi.tensor_collectives.group import Group
from kvstore_mpi.tensor_collectives.hosts import (
    shared_memory,
    shared_memory_broadcast,
    shared_memory_reduce,
)
from kvstore_mpi.tensor_collectives.runs import BufferRun, Name
from kvstore_mpi.tensor_collectives.steps import in_place
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS
from kvstore_mpi.testing.communicator_contract import contribution, total
from kvstore_mpi.transport.shared_memory import Arena

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]
SIZES = (0, 1, 7, 1_000, 70_001)


class Rank:
    """One rank with its memory."""

    def __init__(self, communicator: Any, algorithm: Algorithm, *, shares: bool) -> None:
        self.arena = Arena()
        locate = self.arena.place if shares else lambda _buffer: None
        self.group = Group(communicator, locate=locate, algorithm=algorithm)

    def buffer(self, size: int, dtype: str) -> Array:
        """Return a buffer of numbers that differ between ranks and elements."""
        buffer = self.arena.allocate(size, np.dtype(dtype))
        buffer[:] = contribution(self.group.rank, size, dtype)
        return buffer


def on_all(
    size: int,
    algorithm: Algorithm,
    call: Callable[[Rank], Any],
    *,
    shares: bool = True,
    hosts: list[list[int]] | None = None,
) -> list[Any]:
    """Call on every rank of a group, each in a thread; return what they return."""
    communicators = memory_communicators(size, hosts)
    ranks = [Rank(communicator, algorithm, shares=shares) for communicator in communicators]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, ranks))


SEVERAL_HOSTS = [[[0, 1], [2, 3]], [[0, 2], [1]], [[0], [1, 2, 4], [3]]]
WAYS = [(algorithm, True) for algorithm in Algorithm] + [(Algorithm.AUTO, False), (Algorithm.RING, False)]


def sums_and_values(ranks: int) -> Callable[[Rank], None]:
    """Return the check of all collectives."""

    def check(rank: Rank) -> None:
        for dtype in ITEMSIZES:
            for size in SIZES:
                buffer = rank.buffer(size, dtype)
                rank.group.allreduce(buffer, 0, size)
                np.testing.assert_array_equal(buffer, total(ranks, size, dtype))
                root = size % ranks
                buffer = rank.buffer(size, dtype)
                rank.group.reduce(buffer, 0, size, root)
                if rank.group.rank == root:
                    np.testing.assert_array_equal(buffer, total(ranks, size, dtype))
                rank.group.broadcast(buffer, 0, size, root)
                np.testing.assert_array_equal(buffer, total(ranks, size, dtype))

    return check


@pytest.mark.parametrize(("algorithm", "shares"), WAYS)
@pytest.mark.parametrize("ranks", often([1, 3], [1, 2, 3, 4]))
def test_sums_and_values_of_all_sizes_and_types(ranks: int, algorithm: Algorithm, shares: bool) -> None:
    on_all(ranks, algorithm, sums_and_values(ranks), shares=shares)


@pytest.mark.parametrize("hosts", SEVERAL_HOSTS)
def test_sums_and_values_between_hosts(hosts: list[list[int]]) -> None:
    """In shared memory within them and over rings between them, a few segments of the largest."""
    ranks = sum(map(len, hosts))
    on_all(ranks, Algorithm.AUTO, sums_and_values(ranks), hosts=hosts)


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_run_leaves_the_rest_alone(algorithm: Algorithm) -> None:
    lo, hi, size = 100, 9_100, 10_000

    def check(rank: Rank) -> None:
        buffer = rank.buffer(size, "float32")
        before = buffer.copy()
        rank.group.allreduce(buffer, lo, hi)
        before[lo:hi] = total(3, size, "float32")[lo:hi]
        np.testing.assert_array_equal(buffer, before)

    on_all(3, algorithm, check)


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_all_ranks_get_the_same_bits_every_time(algorithm: Algorithm, dtype: str) -> None:
    def bits(rank: Rank) -> bytes:
        numbers = np.random.default_rng(rank.group.rank).standard_normal(20_000).astype(dtype)
        first, again = rank.buffer(numbers.size, dtype), rank.buffer(numbers.size, dtype)
        for buffer in (first, again):
            buffer[:] = numbers
            rank.group.allreduce(buffer, 0, buffer.size)
        assert first.tobytes() == again.tobytes()
        return first.tobytes()

    assert len(set(on_all(3, algorithm, bits))) == 1


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_float16_is_rounded_once(algorithm: Algorithm) -> None:
    def check(rank: Rank) -> None:
        buffer = rank.buffer(20_000, "float16")
        buffer[:] = 2048.0 if rank.group.rank == 0 else 1.0
        rank.group.allreduce(buffer, 0, buffer.size)
        np.testing.assert_array_equal(buffer, np.float16(2051))

    on_all(4, algorithm, check)


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_buffer_is_not_taken_for_another_that_was_reduced_before(algorithm: Algorithm) -> None:
    """Also when Python gives the new one the place of the old; parts and roots are kept apart, too."""

    def check(rank: Rank) -> None:
        for size in (50_000, 50_000, 40_000, 50_000):
            buffer = rank.buffer(size, "float32")
            before = buffer.copy()
            for lo, hi in ((0, 20_000), (20_000, 40_000), (0, 20_000)):
                buffer[:] = before
                rank.group.allreduce(buffer, lo, hi)
                np.testing.assert_array_equal(buffer[lo:hi], total(3, size, "float32")[lo:hi])
            for root in range(3):
                buffer[:] = before
                rank.group.reduce(buffer, 0, size, root)
                if rank.group.rank == root:
                    np.testing.assert_array_equal(buffer, total(3, size, "float32"))

    on_all(3, algorithm, check)


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_is_read_or_written_before_all_have_come(rank: int) -> None:
    """Nor after they have come again: what is done to the ranks' buffers lies between the two barriers."""
    ranks = range(2)
    for make, arguments in (
        (shared_memory, ()),
        (shared_memory_reduce, (1,)),
        (shared_memory_broadcast, (0,)),
    ):
        buffers = {each: np.full(4, each + 1, np.float32) for each in ranks}
        program = in_place(make(ranks, rank, (0, 4), *arguments))
        first, between, last = phases(program, Memory(buffers[rank], peers=buffers), OPERATIONS["sum"])
        assert not first
        assert not last
        assert bool(between) is (rank == 1 or make is not shared_memory_broadcast)


@pytest.mark.parametrize("algorithm", [Algorithm.AUTO, Algorithm.SHM])
def test_half_sums_of_two_hosts_are_rounded_once(algorithm: Algorithm) -> None:
    """Of 1 and twice 2 ** -11 either half alone would be lost."""
    parts = [1.0, 2**-11, 2**-11, 0.0]

    def check(rank: Rank) -> None:
        buffer = rank.buffer(5, "float16")
        buffer[:] = parts[rank.group.rank]
        rank.group.allreduce(buffer, 0, 5)
        assert buffer.tolist() == [1 + 2**-10] * 5

    on_all(4, algorithm, check, hosts=[[0, 1], [2, 3]])


def test_a_new_buffer_is_not_taken_for_one_that_is_gone() -> None:
    """Python may give it the same id, where nobody holds the old one any more."""

    def check(rank: Rank) -> None:
        values = np.arange(1000, dtype=np.float32)
        for lo in range(0, 1000, 10):
            view = values[lo : lo + 10]
            rank.group.allreduce(view, 0, 10)
            del view  # where it lies the next one will
        np.testing.assert_array_equal(values, 2 * np.arange(1000))

    on_all(2, Algorithm.MPI, check)


def test_what_is_prepared_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices travel in runs that vary."""
    monkeypatch.setattr(runs, "MOST_KEPT", 8)

    def check(rank: Rank) -> None:
        buffer = rank.buffer(100, "float32")
        wanted = total(2, 100, "float32")
        for lo in range(50):
            rank.group.allreduce(buffer, lo, lo + 1)
            assert len(rank.group._calls.known) <= 8
        np.testing.assert_array_equal(buffer[:50], wanted[:50])

    on_all(2, Algorithm.AUTO, check)


def test_who_cannot_reach_a_buffer_makes_all_take_another_way() -> None:
    """Rank 1 cannot say where its buffer lies; nobody may then wait for it in shared memory."""
    lock = threading.Lock()

    def check(rank: Rank) -> None:
        buffer = rank.buffer(50_000, "float32")
        if rank.group.rank == 1:
            with lock:
                buffer = buffer.copy()
        rank.group.allreduce(buffer, 0, buffer.size)
        np.testing.assert_array_equal(buffer, total(3, buffer.size, "float32"))

    on_all(3, Algorithm.AUTO, check)


def test_shared_memory_that_is_asked_for_and_not_there_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def check(rank: Rank) -> None:
        for _ in range(2):
            buffer = rank.buffer(50_000, "float32")
            rank.group.allreduce(buffer, 0, 50_000)
            np.testing.assert_array_equal(buffer, total(2, 50_000, "float32"))

    on_all(2, Algorithm.SHM, check, shares=False)
    assert caplog.text.count("collective shm: some buffers cannot be reached by all ranks") == 2  # ranks


# --- several at once ---

MIXED = [(5, "float32"), (0, "float32"), (1_000, "float32"), (30_000, "float32"), (64, "float16")]
MIXED += [(7, "int64"), (3, "bool"), (2_048, "float32"), (33, "float16"), (1, "float64")]
MIXED += [(1_000, "float32"), (30_000, "float32")]  # which have their like above


def random_runs(rank: Rank, *, roots: int = 0) -> list[BufferRun]:
    """Return runs of random numbers, each of a buffer of its own; the same numbers every time."""
    source = np.random.default_rng(rank.group.rank)
    runs = []
    for index, (size, dtype) in enumerate(MIXED):
        buffer = rank.buffer(size + 2, dtype)
        buffer[:] = (
            source.standard_normal(size + 2) > 0 if dtype == "bool" else source.normal(size=size + 2)
        )
        runs.append(BufferRun(buffer, 1, size + 1, index % roots if roots else None))
    return runs


def sum_by_place(parts: list[Array]) -> Array:
    """Add with another rank first for each element, as an allreduce does that scatters sums over ranks."""
    wide = np.float32 if parts[0].dtype == np.float16 else parts[0].dtype
    result = np.empty(parts[0].size, wide)
    for first in range(len(parts)):
        in_turn = [part[first :: len(parts)].astype(wide) for part in parts[first:] + parts[:first]]
        result[first :: len(parts)] = functools.reduce(np.add, in_turn)
    return result.astype(parts[0].dtype)


def alone_and_together(name: Name, ranks: int) -> Callable[[Rank], None]:
    """Return the check that a collective of runs side by side has the bits of each by itself."""

    def check(rank: Rank) -> None:
        roots = 0 if name == "allreduce" else ranks
        alone, together = random_runs(rank, roots=roots), random_runs(rank, roots=roots)
        for run in alone:
            assert [list(ended) for ended in rank.group.carry_out(name, [run])] == [[run]]
        ended = [run for several in rank.group.carry_out(name, together) for run in several]
        assert sorted(map(id, (run.buffer for run in ended))) == sorted(id(run.buffer) for run in together)
        for one, other in zip(alone, together):
            if name != "reduce" or one.root == rank.group.rank:
                assert one.buffer.tobytes() == other.buffer.tobytes()

    return check


@pytest.mark.parametrize(("algorithm", "shares"), WAYS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast"])
def test_together_all_have_the_bits_that_they_have_alone(
    name: Name, ranks: int, algorithm: Algorithm, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums, copies and what lies around them, whatever the types, sizes and roots beside each other.

    Also with an MPI that adds in an order that depends on where a number lies.
    """
    monkeypatch.setattr("kvstore_mpi.comm.memory._sum", sum_by_place)
    on_all(ranks, algorithm, alone_and_together(name, ranks), shares=shares)


@pytest.mark.parametrize("hosts", SEVERAL_HOSTS)
@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast"])
def test_together_they_have_those_bits_between_hosts(
    name: Name, hosts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in segments."""
    monkeypatch.setattr("kvstore_mpi.comm.memory._sum", sum_by_place)
    monkeypatch.setattr(
        "kvstore_mpi.tensor_collectives.choice.Plan.__new__.__defaults__", (1, 8_000, False)
    )
    ranks = sum(map(len, hosts))
    on_all(ranks, Algorithm.AUTO, alone_and_together(name, ranks), hosts=hosts)


@pytest.mark.parametrize(
    ("hosts", "is_begun"),
    [([[0], [1]], True), ([[0], [1], [2]], True), ([[0], [1, 2]], False), ([[0, 1, 2]], False)],
    ids=str,
)
def test_which_sums_may_be_under_way_together(
    monkeypatch: pytest.MonkeyPatch, hosts: list[list[int]], is_begun: bool
) -> None:
    """Among more than two ranks only where none is ever put together with others, or bits would vary."""
    monkeypatch.setattr(
        MemoryCommunicator,
        "begin_allreduce",
        lambda self, array: SimpleNamespace(wait=partial(self.allreduce, array)),
    )

    def check(rank: Rank) -> list[int]:
        assert rank.group.gains_together("allreduce") is (not is_begun or rank.group.size == 2)
        found = []
        for size in (10, 30_000):
            buffer = rank.buffer(size, "float32")
            begun = rank.group.begin("allreduce", BufferRun(buffer, 0, size))
            if begun is not None:
                begun.wait()
                np.testing.assert_array_equal(buffer, total(rank.group.size, size, "float32"))
                found.append(size)
        return found

    ranks = sum(map(len, hosts))
    begun = [10, 30_000] if is_begun else []
    assert on_all(ranks, Algorithm.AUTO, check, shares=False, hosts=hosts) == [begun] * ranks


def test_small_runs_become_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one type and root; the large one beside them stays by itself."""
    seen: list[int] = []
    reduce = MemoryCommunicator.reduce

    def noting(self: MemoryCommunicator, array: Array, root: int) -> None:
        seen.append(array.size)
        reduce(self, array, root)

    monkeypatch.setattr(MemoryCommunicator, "reduce", noting)

    def check(rank: Rank) -> None:
        runs = [BufferRun(rank.buffer(size, "float32"), 0, size, 1) for size in (10, 20, 30_000, 30)]
        list(rank.group.carry_out("reduce", runs))

    on_all(2, Algorithm.MPI, check)
    assert sorted(seen) == [60, 60, 30_000, 30_000]
