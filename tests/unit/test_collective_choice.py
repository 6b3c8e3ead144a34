"""Which algorithm, how many rings and which segments, given what a machine takes."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.delegating import DelegatingCommunicator

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.tensor_collectives import hosts, rings
from kvstore_mpi.tensor_collectives.calibration import agree_on_profile, measure
from kvstore_mpi.tensor_collectives.choice import PAIR, Algorithm, Chooser, Plan
from kvstore_mpi.tensor_collectives.cost import Model, fit, predict
from kvstore_mpi.tensor_collectives.designs import DESIGNS, check, of_plan
from kvstore_mpi.tensor_collectives.group import Group
from kvstore_mpi.tensor_collectives.profile import MPICH, OPEN_MPI, Profile, built_in, decode, encode
from kvstore_mpi.transport.shared_memory import Arena

HERE, APART = [[0, 1]], [[0], [1]]
KB, MB = 1 << 10, 1 << 20
COSTS = Model(alpha=1e-6, beta=1e-10, gamma=1e-10, delta=1e-10, barrier=5e-6, overhead=0.0)
SLOW_LIBRARY = ((1, 5e-6), (64 * MB, 5e-6 + 64 * MB * 5e-10))
"""MPI at 2 GB/s, and 5 us for what is small."""

SECONDS = st.floats(0, 1e-3, allow_nan=False)
MODELS = st.builds(Model, *[SECONDS] * 7, asynchronous=st.just(False))


@st.composite
def profiles(draw):
    sizes = sorted(draw(st.sets(st.integers(1, 1 << 30), min_size=2, max_size=6)))
    library = tuple((size, draw(SECONDS)) for size in sizes)
    return Profile(draw(st.integers(2, 64)), draw(MODELS), draw(MODELS), library)


def auto(profile=MPICH, on=HERE):
    return Chooser(Algorithm.AUTO, profile, on)


class TestChoice:
    @pytest.mark.parametrize("num_bytes", [8, 4 * KB, 16 * KB, MB, 256 * MB])
    def test_with_mpich_shared_memory_is_taken_at_any_size(self, num_bytes):
        """As was measured; without memory that all reach it leaves everything to MPI."""
        assert auto().plan(num_bytes, shared=True).algorithm is Algorithm.SHM
        assert auto().plan(num_bytes, shared=False).algorithm is Algorithm.MPI
        assert auto(on=APART).plan(num_bytes, shared=True).algorithm is Algorithm.MPI

    @pytest.mark.parametrize(
        ("num_bytes", "algorithm"),
        [(8, "mpi"), (4 * KB, "mpi"), (6 * KB, "shm"), (64 * KB, "shm"), (MB, "shm")],
    )
    def test_with_open_mpi_shared_memory_is_taken_at_6_kb(self, num_bytes, algorithm):
        """Its own sums of few bytes take less than MPICH's."""
        assert auto(OPEN_MPI).plan(num_bytes, shared=True).algorithm.value == algorithm
        assert auto(OPEN_MPI).plan(num_bytes, shared=False).algorithm is Algorithm.MPI
        assert auto(OPEN_MPI, APART).plan(num_bytes, shared=True).algorithm is Algorithm.MPI

    @pytest.mark.parametrize("on", [[[0, 1], [2, 3]], [[0, 2], [1]], [[0], [1], [2, 3, 4]]])
    def test_several_hosts_with_ranks_in_common_sum_on_two_levels(self, on):
        """Whatever the size, with few messages for what is small; without memory in common by MPI."""
        for wanted in (Algorithm.AUTO, Algorithm.SHM):
            chooser = Chooser(wanted, MPICH, on)
            assert chooser.plan(16 * KB, shared=True) == Plan(Algorithm.SHM, doubling=True)
            assert chooser.plan(17 * KB, shared=True) == Plan(Algorithm.SHM)
            assert chooser.plan(64 * MB, shared=True) == Plan(Algorithm.SHM)
            assert chooser.plan(64 * MB, shared=False) == Plan(Algorithm.MPI)
            assert chooser.same_bits is (len(on) <= PAIR)

    def test_between_hosts_sharing_memory_is_predicted_to_pay(self):
        """Of four ranks, two and two, a flat ring has six steps; between two hosts there are two."""
        chooser = auto(on=[[0, 1], [2, 3]])
        for num_bytes in (64 * KB, MB, 64 * MB):
            shared, ring = (
                chooser.seconds(Plan(way), num_bytes) for way in (Algorithm.SHM, Algorithm.RING)
            )
            assert shared < ring

    @pytest.mark.parametrize(("copies", "from_kb"), [(0, 32), (1, 32), (2, 64)])
    def test_copies_to_shared_memory_are_counted(self, copies, from_kb):
        """What lies elsewhere goes through it from where that is made up for."""
        sizes = [*(size * 32 * KB for size in range(1, 24)), 4 * MB, 16 * MB, 64 * MB, 256 * MB]
        chosen = [auto().plan(size, shared=True, copies=copies).algorithm for size in sizes]
        shared = [size for size, algorithm in zip(sizes, chosen) if algorithm is Algorithm.SHM]
        assert shared == [size for size in sizes if size >= from_kb * KB]

    @pytest.mark.parametrize("algorithm", [Algorithm.MPI, Algorithm.RING, Algorithm.SHM])
    def test_what_lies_elsewhere_is_read_in_every_way(self, algorithm):
        """From no cache; to copy it takes two steps besides, and each is found out anew."""
        chooser, plan = auto(), Plan(algorithm)
        more = chooser.seconds(plan, MB, copies=1) - chooser.seconds(plan, MB)
        calls = (5 * 3 - 3) * MPICH.cached.overhead if algorithm is Algorithm.SHM else 0
        assert more == pytest.approx(MPICH.memory.gamma * MB + calls)

    @pytest.mark.parametrize("copies", [0, 2])
    def test_one_rank_alone_asks_nothing_else_than_mpi(self, copies):
        """It has nothing to send, and no ring of its own is faster than that."""
        chooser = auto(on=[[0]])
        assert chooser.seconds(Plan(Algorithm.MPI), MB, copies) == 0
        assert chooser.plan(MB, shared=False, copies=copies).algorithm is Algorithm.MPI

    def test_what_the_library_cannot_do_goes_another_way(self):
        """Through shared memory where there is any, and else around a ring; also of one rank."""
        for num_bytes in (4 * KB, 64 * MB):
            within = auto().plan(num_bytes, shared=True, library=False)
            assert within.algorithm is Algorithm.SHM
            for on in (HERE, APART, [[0]]):
                assert auto(on=on).plan(num_bytes, shared=False, library=False).algorithm is Algorithm.RING

    def test_the_crossover_is_where_the_predictions_meet(self):
        """Here two barriers of 5 us on one side, and 5 us and 5e-10 s a byte on the other."""
        no_rings = COSTS._replace(alpha=1e-3)
        chooser = auto(Profile(2, no_rings, no_rings, SLOW_LIBRARY))
        # 10 us + n / 2 (gamma + delta) = 5 us + 5e-10 n, so that n is 12.5 KB.
        assert chooser.plan(12_400, shared=True).algorithm is Algorithm.MPI
        assert chooser.plan(12_800, shared=True).algorithm is Algorithm.SHM

    def test_rings_are_taken_where_the_library_is_slow(self):
        """Between hosts, from where their latency is made up for."""
        chooser = auto(Profile(2, COSTS, COSTS, SLOW_LIBRARY), APART)
        assert chooser.plan(1_000, shared=False).algorithm is Algorithm.RING  # 2 us against 5
        slow_start = COSTS._replace(alpha=50e-6)
        chooser = auto(Profile(2, slow_start, slow_start, SLOW_LIBRARY), APART)
        # 100 us + n (beta + gamma / 2) = 0.9 (5 us + 5e-10 n): 318 KB.
        assert chooser.plan(300_000, shared=False).algorithm is Algorithm.MPI
        assert chooser.plan(340_000, shared=False) == Plan(Algorithm.RING, 1, MB)

    def test_a_second_ring_must_gain_something(self):
        """On the host nothing overlaps, so that it only costs."""
        chooser = auto(Profile(2, COSTS, COSTS, SLOW_LIBRARY), APART)
        assert {chooser.plan(MB << shift, shared=False).num_rings for shift in range(8)} == {1}

    def test_what_does_not_fit_the_cache_goes_around_in_pieces_only_where_that_pays(self):
        """With costs that are the same for all sizes there is nothing to gain by cutting."""
        chooser = auto(Profile(2, COSTS, COSTS, SLOW_LIBRARY), APART)
        assert chooser.plan(12 * MB, shared=False).segment_bytes == 16 * MB
        dear = COSTS._replace(gamma=1e-9)
        chooser = auto(Profile(2, COSTS, dear, SLOW_LIBRARY), APART)
        assert chooser.plan(12 * MB, shared=False) == Plan(Algorithm.RING, 1, MB)

    def test_what_is_asked_for_is_done(self):
        """Shared memory gives way to MPI where there is none."""
        plans = {each: Chooser(each, MPICH, HERE).plan(8, shared=False) for each in Algorithm}
        assert plans[Algorithm.RING] == Plan(Algorithm.RING)
        assert plans[Algorithm.MULTIRING] == Plan(Algorithm.RING, num_rings=2)
        assert plans[Algorithm.SHM] == plans[Algorithm.MPI] == Plan(Algorithm.MPI)
        assert Chooser(Algorithm.SHM, MPICH, HERE).plan(8, shared=True) == Plan(Algorithm.SHM)

    @given(
        *(profiles(), st.integers(0, 1 << 28), st.integers(1, 9), st.booleans(), st.booleans()),
        *(st.booleans(), st.integers(0, 2)),
    )
    def test_auto_is_never_predicted_to_be_much_slower_than_another_choice(  # noqa: PLR0917  what varies
        self, profile, num_bytes, ranks, one_host, shared, library, copies
    ):
        """By any profile, of what can be done; and the same by one that was saved and read."""
        where = [list(range(ranks))] if one_host else [[rank] for rank in range(ranks)]
        chooser = auto(profile, where)
        case = {"shared": shared, "library": library, "copies": copies}
        chosen = chooser.plan(num_bytes, **case)
        design = of_plan(DESIGNS["auto"], chosen)
        check(design)
        assert not design.auto
        assert library or not design.library
        if chosen.algorithm is Algorithm.RING:
            assert (design.num_rings, design.segment_bytes) == (chosen.num_rings, chosen.segment_bytes)
        if shared and len(where) == 1 and ranks > PAIR:
            assert chosen.algorithm is Algorithm.SHM  # whatever it takes: small keys keep their bits
            return
        others = [Plan(Algorithm.RING), Plan(Algorithm.RING, 2), *[Plan(Algorithm.MPI)] * library]
        others += [Plan(Algorithm.SHM)] if shared and len(where) == 1 < ranks else []
        least = min(chooser.seconds(other, num_bytes, copies) for other in others)
        assert chooser.seconds(chosen, num_bytes, copies) <= least / 0.9**2 + 1e-12
        assert auto(decode(encode(profile), "it"), where).plan(num_bytes, **case) == chosen


class TestCosts:
    @given(MODELS, st.sampled_from(["alpha", "beta", "gamma", "delta", "barrier"]), st.integers(2, 6))
    def test_a_cost_is_found_again(self, model, name, ranks):
        """From the time that the model itself predicts."""
        shared = name in ("delta", "barrier")
        make = hosts.shared_memory if shared else rings.allreduce
        program = make(range(ranks), 0, (0, 6_000))
        found = fit(model, name, program, 4, predict(program, 4, model))
        assert predict(program, 4, found) == pytest.approx(predict(program, 4, model))

    def test_the_library_is_measured_and_lies_on_lines_between(self):
        """Latency goes with the rounds of more ranks, transfers with what each must send."""
        profile = Profile(2, COSTS, COSTS, ((1_000, 4e-6), (2_000, 6e-6), (4_000, 8e-6)))
        assert [profile.library_seconds(size, 2) for size in (10, 1_000, 1_500, 2_000, 8_000)] == (
            pytest.approx([4e-6, 4e-6, 5e-6, 6e-6, 12e-6])
        )
        assert profile.library_seconds(2_000, 4) == pytest.approx(2 * 4e-6 + 1.5 * 2e-6)


class TestSaved:
    @given(profiles())
    def test_a_profile_is_read_back(self, profile):
        """With every bit, so that ranks agree."""
        assert decode(encode(profile), "it") == profile

    @pytest.mark.parametrize(
        "text",
        [
            *(b"", b"{}", b"[1]", encode(MPICH).replace(b"alpha", b"alfa"), encode(MPICH)[:-9]),
            encode(MPICH).replace(b"1.6e-11", b'"2"'),
            encode(MPICH._replace(ranks=1)),
            encode(MPICH._replace(library=MPICH.library[::-1])),
            encode(MPICH._replace(cached=COSTS._replace(beta=-1.0))),
        ],
    )
    def test_what_is_no_profile_is_named(self, text):
        """With its file, and how to make one."""
        with pytest.raises(UsageError, match=r"my\.json is no profile .*kvstore_mpi\.calibrate"):
            decode(text, "my.json")


def on_all(size, call):
    """Call on each rank of a group, in a thread of its own."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, memory_communicators(size)))


OF_OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"


class Speaking(DelegatingCommunicator):
    """A thread that is said to have an MPI library, and notes how often that is to sum."""

    def __init__(self, inner, library):
        super().__init__(inner)
        self._library = library
        self.asked = 0

    def library(self):
        return self._library

    def prepare_allreduce(self, array):
        self.asked += 1
        return super().prepare_allreduce(array)


class TestBuiltIn:
    @pytest.mark.parametrize(
        ("library", "profile"),
        [
            (OF_OPEN_MPI, OPEN_MPI),
            ("Open MPI v4.1.4", OPEN_MPI),
            ("MPICH Version:      5.0.2", MPICH),
            ("Intel(R) MPI Library 2021.13 for Linux* OS", MPICH),
            ("MVAPICH Version      :\t4.0, not Open MPI", MPICH),
            ("", MPICH),
        ],
    )
    def test_it_is_that_of_the_library(self, library, profile):
        """Which begins with its name; of one that is not known it is MPICH's."""
        assert built_in(library) is profile

    def test_who_leaves_sums_to_another_communicator_has_its_library(self):
        """As ranks that reach each other's GPUs do."""
        inner = Speaking(memory_communicators(1)[0], OF_OPEN_MPI)
        assert DelegatingCommunicator(inner).library() == OF_OPEN_MPI

    def test_a_group_goes_by_its_library(self):
        """If it is told no profile: at 4 KB, by MPICH's, two ranks ask no MPI to sum."""

        def asked(communicator):
            arena = Arena()
            buffer = arena.allocate(KB, np.dtype(np.float32))
            buffer[:] = 1
            Group(communicator, locate=arena.place).allreduce(buffer, 0, buffer.size)
            return communicator.asked

        with ThreadPoolExecutor(2) as pool:
            for library, times in ((OF_OPEN_MPI, 1), ("", 0)):
                ranks = [Speaking(each, library) for each in memory_communicators(2)]
                assert list(pool.map(asked, ranks)) == [times] * 2


class TestAgreement:
    def test_all_ranks_have_that_of_rank_0(self, tmp_path):
        """Whatever file the others find, or none."""
        path = tmp_path / "profile.json"
        path.write_bytes(encode(MPICH._replace(ranks=7)))

        def agree(communicator):
            return agree_on_profile(str(path) if communicator.rank == 0 else "nowhere", communicator)

        assert on_all(3, agree) == [MPICH._replace(ranks=7)] * 3
        assert on_all(3, lambda each: agree_on_profile("", each)) == [MPICH] * 3

    def test_without_a_file_it_is_that_of_the_library_of_rank_0(self):
        """Should another rank have another one."""

        def agree(communicator):
            library = "" if communicator.rank else OF_OPEN_MPI
            return agree_on_profile("", Speaking(communicator, library))

        assert on_all(3, agree) == [OPEN_MPI] * 3

    def test_a_file_that_cannot_be_used_ends_all_ranks(self, tmp_path):
        """With its name and what is wrong with it, on whichever of them is looked at."""

        def agree(communicator):
            with pytest.raises(ConfigurationError) as caught:
                agree_on_profile(str(tmp_path / "none.json"), communicator)
            return str(caught.value)

        said = on_all(2, agree)
        assert said[0] == said[1]
        assert re.match("rank 0 of this client cannot use its.*No such file.*none.json", said[0])

    def test_if_rank_0_says_so_all_ranks_measure(self):
        """Whatever the others were told; all get the same."""

        def agree(communicator):
            return agree_on_profile("" if communicator.rank else "measure", communicator)

        first, *others = on_all(3, agree)
        assert first.ranks == 3
        assert others == [first] * 2

    def test_one_rank_has_nothing_to_measure(self):
        """Nor to sum: any profile will do."""
        assert on_all(1, lambda each: agree_on_profile("measure", each)) == [MPICH]

    def test_a_measured_profile_is_the_same_on_all_ranks(self):
        """Threads instead of processes: figures of no worth, but a profile that can be saved."""
        found = on_all(3, lambda each: measure(each)[0])
        assert found[0] == found[1] == found[2] == decode(encode(found[0]), "it")
        assert found[0].ranks == 3
