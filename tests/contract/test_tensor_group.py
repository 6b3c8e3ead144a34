"""Collectives on tensors with threads for ranks, and a rank that does not come."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.delegating import DelegatingCommunicator
from support.often import ONE_OF_MANY, often_of

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.errors import DeadlineError, MismatchError, UnsupportedError, UsageError
from kvstore_mpi.tensor_collectives.blocking import COMPARED_CALLS
from kvstore_mpi.tensor_collectives.designs import DESIGNS, Design
from kvstore_mpi.tensor_collectives.driver import Driver
from kvstore_mpi.tensor_collectives.local_reduce import combine
from kvstore_mpi.tensor_collectives.profile import MPICH
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Tensor
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup
from kvstore_mpi.tensor_collectives.threads import ThreadedCombine
from kvstore_mpi.testing.tensor_contract import result, run_checks, vectors
from kvstore_mpi.transport.shared_memory import Arena, Directory


@pytest.mark.parametrize(("size", "num_rings"), often_of([(1, 2), (3, 1), (4, 3)], [1, 2, 3, 4], [1, 2, 3]))
def test_threads(size, num_rings):
    with ThreadPoolExecutor(size) as pool:
        design = DESIGNS["ring"]._replace(num_rings=num_rings)
        list(pool.map(lambda each: run_checks(each, design), memory_communicators(size)))


ON_HOSTS = [("auto", [[0, 1]]), ("auto", [[0, 2], [1]])]
PLACES = [[[0]], [[0, 1]], [[0], [1]], [[0, 1, 2]], [[0, 2], [1]], [[0, 1], [2, 3]], [[0], [1, 2, 4], [3]]]
THOROUGH = [
    pytest.param(name, hosts, marks=ONE_OF_MANY)
    for name in ("shared", "auto")
    for hosts in PLACES
    if (name, hosts) not in ON_HOSTS
]


@pytest.mark.parametrize(("name", "hosts"), [*ON_HOSTS, *THOROUGH])
def test_threads_on_hosts(name, hosts):
    """Alone, on one host, each on its own, and some of both."""
    ranks = sum(map(len, hosts))
    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(lambda each: run_checks(each, DESIGNS[name]), memory_communicators(ranks, hosts)))


def on_all(size, design, call, hosts=None):
    """Call something with the group of each rank, in a thread of its own; return what all return."""

    def run(communicator):
        group = TensorGroup(communicator, design=design)
        try:
            return call(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, memory_communicators(size, hosts)))


@pytest.mark.paper("MXNET-MPI section 7.3")
@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_designs_of_the_paper_agree(name, ranks, dtype):
    """MXNET-MPI, section 7.3: with small segments, so that large tensors are cut in all of them."""

    def check(group):
        for count in (1, 2, 3):
            for size in (0, 1, 1_000, 30_011):
                tensor = Tensor(vectors(group.rank, count, size, dtype))
                group.allreduce(tensor, timeout=60)
                wanted = result(group, count, size, dtype).astype(np.float64)
                for vector in tensor.vectors:
                    np.testing.assert_array_equal(vector.astype(np.float64), wanted)
                source = Tensor(vectors(group.rank, count, size, dtype))
                out = Tensor([np.zeros(size, dtype) for _ in range(count)])
                group.allreduce(source, "mean", out=out, timeout=60)
                np.testing.assert_allclose(out.vectors[-1], wanted / (ranks * count), rtol=1e-3)
                for one, before in zip(source.vectors, vectors(group.rank, count, size, dtype)):
                    np.testing.assert_array_equal(one, before)

    on_all(ranks, DESIGNS[name]._replace(segment_bytes=16 << 10), check)


class Noting(DelegatingCommunicator):
    """Notes by which ways ranks reach each other."""

    def __init__(self, inner, library):
        super().__init__(inner)
        self._library = library
        self.ways = set()

    def library(self):
        return self._library

    def allreduce(self, array):
        self.ways.add("library")
        super().allreduce(array)

    def exchange(self, sends, receives):
        self.ways.update(peer for peer, _ in (*sends, *receives))
        super().exchange(sends, receives)

    def barrier(self, ranks):
        self.ways.add("memory")
        super().barrier(ranks)


def ways(hosts, tensor, operation="sum", profile=MPICH, library=""):
    """Return how the ranks reach each other when ``auto`` reduces a tensor, for each of them."""

    def reduce(communicator):
        noting = Noting(communicator, library)
        group = TensorGroup(noting, design=DESIGNS["auto"], profile=profile)
        group._blocking._compared = COMPARED_CALLS  # whose messages are none of the tensor
        out = Tensor([np.zeros_like(vector) for vector in tensor.vectors])
        group.allreduce(tensor, operation, out=out, timeout=60)
        group.close()
        return noting.ways

    ranks = sum(map(len, hosts))
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(reduce, memory_communicators(ranks, hosts)))


LIBRARY, MEMORY = {"library"}, {"memory"}
SLOW = MPICH._replace(library=((1, 1.0), (2, 1.0)))
"""Of a machine whose MPI takes a second for anything."""


class TestAuto:
    @pytest.mark.parametrize(
        ("hosts", "num_bytes", "count", "taken"),
        [
            *([[[0, 1]], size << 10, 1, LIBRARY] for size in (0, 4, 48)),
            *([[[0, 1]], size << 10, 1, MEMORY] for size in (64, 9 << 10)),
            *([[[0, 1]], size << 10, 2, LIBRARY] for size in (4, 8)),
            *([[[0, 1]], size << 10, 2, MEMORY] for size in (16, 9 << 10)),
            *([[[0], [1]], size << 10, 2, LIBRARY] for size in (4, 4 << 10)),
            *([[[0, 1, 2]], size << 10, 2, taken] for size, taken in ((4, LIBRARY), (4 << 10, MEMORY))),
        ],
    )
    def test_the_way_follows_size_and_place(self, hosts, num_bytes, count, taken):
        """Two ranks of a host: the library, and shared memory where copying to it is made up for."""
        tensor = Tensor([np.ones(num_bytes // 4, np.float32)] * count)
        assert ways(hosts, tensor) == [taken if num_bytes else set()] * sum(map(len, hosts))

    def test_16_bit_vectors_need_a_buffer_in_any_way(self):
        """So that shared memory costs no copy more."""
        assert ways([[0, 1]], Tensor([np.ones(100_000, np.float16)])) == [MEMORY] * 2

    @pytest.mark.parametrize("size", [1_000, 2_000_003])
    def test_several_hosts_meet_on_two_levels(self, size):
        """Shared memory within them, and between them two that send at once; the third one helps."""
        tensor = Tensor([np.ones(size, np.float16)])
        assert ways([[0, 1], [2, 3, 4]], tensor, "mean") == [
            *({"memory", 2}, {"memory", 3}),
            *({"memory", 0}, {"memory", 1}, {"memory"}),
        ]

    @pytest.mark.parametrize(("size", "peers"), [(1_000, {2, 3}), (100_000, {2, 4})])
    def test_few_messages_go_between_hosts_for_what_is_small(self, size, peers):
        """One to a partner in each of two rounds; else around a ring."""
        tensor = Tensor([np.ones(size, np.float32)])
        assert ways([[0, 1], [2], [3], [4]], tensor)[0] == {"memory", *peers}

    def test_the_profile_decides(self):
        """Where the library is slow, rings are taken between hosts, and shared memory within them."""
        tensor = Tensor([np.ones(10_000, np.float32)])
        assert ways([[0], [1]], tensor, profile=SLOW) == [{1}, {0}]
        assert ways([[0, 1]], tensor, profile=SLOW) == [MEMORY] * 2
        assert ways([[0, 1]], tensor) == [LIBRARY] * 2

    @pytest.mark.parametrize(("library", "taken"), [("", MEMORY), ("Open MPI v5.0.11", LIBRARY)])
    def test_without_a_profile_the_library_decides(self, library, taken):
        """For 100 KB Open MPI's own call takes three quarters of what MPICH's takes."""
        tensor = Tensor([np.ones(25 << 10, np.float32)])
        assert ways([[0, 1]], tensor, profile=None, library=library) == [taken] * 2

    @pytest.mark.filterwarnings("ignore:The `dtype` and `signature` arguments:DeprecationWarning")
    @pytest.mark.parametrize("operation", ["max", "min"])
    @pytest.mark.parametrize("size", [9, 200_000])
    def test_what_the_library_cannot_do_goes_another_way(self, operation, size):
        """As do numbers in an order of bytes that is not the machine's."""
        tensor = Tensor([np.ones(size, np.float32)] * 2)
        assert ways([[0, 1]], tensor, operation) == [MEMORY] * 2
        assert ways([[0], [1]], tensor, operation) == [{1}, {0}]
        swapped = Tensor([np.ones(size, np.dtype(np.float32).newbyteorder())])
        assert ways([[0], [1]], swapped) == [{1}, {0}]

    @pytest.mark.parametrize("dtype", ["float16", "float64"])
    def test_all_ranks_have_the_same_bits_in_every_way(self, dtype):
        """Every time, of any number of vectors; 16 bits are rounded once."""

        def bits(group):
            found = []
            source = np.random.default_rng(group.rank)
            for size, count in ((3_001, 1), (70_001, 2), (300_007, 1)):
                numbers = [(9 * source.standard_normal(size)).astype(dtype) for _ in range(count)]
                for _ in range(2):
                    tensor = Tensor([vector.copy() for vector in numbers])
                    group.allreduce(tensor, timeout=60)
                    assert len({vector.tobytes() for vector in tensor.vectors}) == 1
                    found.append(tensor.vectors[0].tobytes())
            assert found[::2] == found[1::2]
            return found

        for hosts in ([[0, 1]], [[0, 1, 2]], [[0, 2], [1]]):
            for name in ("auto", "shared"):
                alike = on_all(sum(map(len, hosts)), DESIGNS[name], bits, hosts)
                assert all(each == alike[0] for each in alike)

    def test_a_16_bit_sum_is_rounded_once(self):
        """Also between hosts: of 1 and twice 2 ** -11 either half alone would be lost."""
        parts = [1.0, 2**-11, 2**-11, 0.0]

        def total(group):
            tensor = Tensor([np.full(5, parts[group.rank], np.float16)])
            group.allreduce(tensor, timeout=60)
            return tensor.vectors[0].tolist()

        for hosts in ([[0, 1, 2, 3]], [[0, 1], [2, 3]]):
            assert on_all(4, DESIGNS["auto"], total, hosts) == [[1 + 2**-10] * 5] * 4

    def test_where_memory_cannot_be_mapped_auto_does_without(self, monkeypatch):
        """And the design that needs it says so, on all ranks."""
        monkeypatch.setattr(Arena, "available", lambda: False)
        tensor = Tensor([np.ones(1 << 20, np.float32)])
        assert ways([[0, 1, 2]], tensor) == [LIBRARY] * 3
        assert ways([[0, 1]], tensor, "max") == [{1}, {0}]

        def refused(group):
            with pytest.raises(UnsupportedError, match="map each other's memory"):
                group.allreduce(Tensor([np.ones(3)]), timeout=60)

        on_all(2, DESIGNS["shared"], refused)

    def test_where_one_rank_gets_no_memory_file_all_do_without(self, monkeypatch):
        """At the same call; nobody waits for one that has failed."""
        create, calls = os.memfd_create, itertools.count()

        def refuses_the_first(*arguments):
            if next(calls) == 0:
                raise OSError(errno.EMFILE, "too many open files")
            return create(*arguments)

        monkeypatch.setattr(os, "memfd_create", refuses_the_first)
        assert ways([[0, 1]], Tensor([np.ones(1 << 20, np.float32)] * 2)) == [LIBRARY] * 2

    def test_what_one_rank_cannot_reach_none_uses(self):
        """Also on another host."""
        arena = Arena()
        place = arena.place(arena.allocate(8, np.dtype(np.uint8)))
        hosts = [[0, 1], [2]]

        def reached(communicator):
            mine = None if communicator.rank == 2 else place
            return Driver(communicator).map_peers(hosts, Directory(), mine)

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(reached, memory_communicators(3, hosts))) == [{}] * 3

    @pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not tell")
    def test_the_memory_ends_with_the_group(self):
        """Nothing stays mapped, and no descriptor open, once it is closed."""
        groups = []

        def traces():
            gc.collect()
            opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
            everything = [*opened, *Path("/proc/self/maps").read_text().splitlines()]
            return sum("memfd:kvstore_mpi" in each for each in everything)

        def reduce(group):
            groups.append(group)
            group.allreduce(Tensor([np.ones(9)]), timeout=60)
            return traces()

        before = traces()
        assert min(on_all(2, DESIGNS["shared"], reduce)) > before
        assert traces() == before


def test_adding_with_threads_has_the_bits_of_one():
    source = np.random.default_rng(5)
    arrays = [source.standard_normal(300_001).astype(np.float32) for _ in range(3)]
    one, other = np.empty_like(arrays[0]), np.empty_like(arrays[0])
    threads = ThreadedCombine(3)
    threads([one], arrays, OPERATIONS["mean"], 3)
    threads.close()
    combine([other], arrays, OPERATIONS["mean"], 3)
    assert one.tobytes() == other.tobytes()


def test_what_a_design_cannot_do_is_refused_before_anything_is_sent():
    [communicator] = memory_communicators(1)
    tensor = Tensor([np.zeros(8, np.float32)] * 2)
    for design, operation, words in ((DESIGNS["library"], "max", "library has sum and mean, not max"),):
        group = TensorGroup(communicator, design=design)
        with pytest.raises(UsageError, match=words):
            group.allreduce(tensor, operation)
        group.close()
    group = TensorGroup(communicator, design=DESIGNS["flat-ring"])
    with pytest.raises(UsageError, match="out must have 2 vectors, not 1"):
        group.allreduce(tensor, out=Tensor(tensor.vectors[:1]))
    group.close()
    for design in (
        Design(num_rings=0),
        Design(whole_first=True, library=True),
        Design(2, every_vector=True),
        Design(2, shared=True),
        Design(library=True, auto=True),
    ):
        with pytest.raises(UsageError):
            TensorGroup(communicator, design=design)


class Watched(DelegatingCommunicator):
    """Tells when the rank has come to where it waits for others, however busy the machine."""

    def __init__(self, inner):
        super().__init__(inner)
        self.waits = threading.Event()

    def allreduce(self, array):
        self.waits.set()
        super().allreduce(array)

    def exchange(self, sends, receives):
        self.waits.set()
        super().exchange(sends, receives)

    def barrier(self, ranks):
        self.waits.set()
        super().barrier(ranks)

    def broadcast_bytes(self, data, root):
        self.waits.set()
        return super().broadcast_bytes(data, root)


@pytest.mark.parametrize("name", ["ring", "library", "shared", "auto"])
def test_a_rank_that_does_not_come_is_named(name):
    """Also where ranks first tell each other where they are."""
    first, _missing = memory_communicators(2)
    watched = Watched(first)
    group = TensorGroup(watched, design=DESIGNS[name])
    work = group.start_allreduce(Tensor([np.zeros(5, np.float32)]))
    assert watched.waits.wait(60)
    with pytest.raises(DeadlineError, match=r"allreduce of 1 x 5 float32 on rank 0 .* waits for rank 1"):
        work.wait(0.01)
    assert not work.done()


@pytest.mark.parametrize("name", ["ring", "library", "shared", "auto"])
def test_a_rank_that_comes_no_more_is_named(name):
    """It alone, and not the one that waits, at a barrier either."""
    watched = [Watched(each) for each in memory_communicators(2)]
    groups = [TensorGroup(each, design=DESIGNS[name]) for each in watched]
    tensors = [Tensor([np.zeros(200_000, np.float32)] * 2) for _ in groups]
    for work in [group.start_allreduce(tensor) for group, tensor in zip(groups, tensors)]:
        work.wait(60)
    watched[0].waits.clear()
    work = groups[0].start_allreduce(tensors[0])
    assert watched[0].waits.wait(60)
    with pytest.raises(DeadlineError, match=r"it waits for rank 1(, 1)?$"):
        work.wait(0.01)
    groups[1].close()


def test_vectors_of_a_tensor_must_fit_together():
    with pytest.raises(UsageError, match="at least one"):
        Tensor([])
    with pytest.raises(MismatchError, match=r"vector 1 has 3 float32"):
        Tensor([np.zeros(2, np.float32), np.zeros(3, np.float32)])
    with pytest.raises(UsageError, match="contiguous"):
        Tensor([np.zeros((2, 2), np.float32)])
    with pytest.raises(UsageError, match="contiguous"):
        Tensor([np.zeros(4, np.float32)[::2]])
