"""Sums under way together: ranks in threads of this process, whose messages end in a random order."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from support.fake_messages import FakeComm, FakeNetwork

from kvstore_mpi.comm.sums import MESSAGES, WHOLE_BYTES, DirectSums, LibrarySum, add_in_order, pause_s
from kvstore_mpi.comm.waits import LONGEST_NS, SHARE_OF_SEVERAL, USUAL_NS, Patience

DEADLINE_S = 20
MANY = WHOLE_BYTES // 4
"""float32 elements that three ranks and more sum in parts; a quarter of it goes whole among up to five."""


def run(size, work, seed=0):
    """Let every rank do its work with its sums; return the network."""
    network = FakeNetwork(size, DEADLINE_S, seed)
    failed = []

    def of_rank(rank):
        comm = FakeComm(network, rank)
        try:
            patience = Patience(MESSAGES, SHARE_OF_SEVERAL, lambda _: None)
            work(rank, DirectSums(comm, comm, patience))
        except BaseException as error:  # noqa: BLE001  told in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=of_rank, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_S)
        assert not thread.is_alive()
    assert not failed, failed
    return network


def numbers(rank, place, elements):
    """Return what a rank adds to a sum: floats, whose sum has other bits in another order."""
    return np.random.default_rng([rank, place]).standard_normal(elements).astype(np.float32)


def in_order(size, place, elements):
    """Return the sum in the order of the ranks: the dumb twin."""
    total = numbers(0, place, elements)
    for rank in range(1, size):
        total = total + numbers(rank, place, elements)
    return total


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("seed", range(4))
def test_sums_under_way_together_are_those_in_the_order_of_the_ranks(size, seed):
    """In parts and whole, of few elements and none; every rank asks for them when it likes."""
    sizes = [MANY, 5, MANY // 4, 0, 2 * MANY + 1, MANY + size - 1, 1]

    def work(rank, sums):
        times = random.Random(100 * seed + rank)
        for _ in range(2):
            arrays = [numbers(rank, place, elements) for place, elements in enumerate(sizes)]
            begun = [sums.begin(array) for array in arrays]
            for place, one in enumerate(begun):
                for _ in range(times.randrange(5)):
                    times.choice(begun).has_ended()
                one.wait()
                assert one.has_ended()
                assert arrays[place].tobytes() == in_order(size, place, sizes[place]).tobytes()

    run(size, work, seed)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_sums_to_one_rank_and_values_from_one_are_under_way_with_them(size, seed):
    """Of each kind some; who gets no sum keeps what it has."""

    def work(rank, sums):
        times = random.Random(100 * seed + rank)
        begun = []
        for place in range(12):
            root, array = place % size, numbers(rank, place, 3 + MANY * (place % 2))
            kind = ("to all", "to one", "from one")[place % 3]
            if kind == "to all":
                wanted, one = in_order(size, place, array.size), sums.begin(array)
            elif kind == "to one":
                wanted = in_order(size, place, array.size) if rank == root else array.copy()
                one = sums.begin_reduce(array, root)
            else:
                wanted, one = numbers(root, place, array.size), sums.begin_broadcast(array, root)
            begun.append((array, wanted, one))
        for array, wanted, one in begun:
            for _ in range(times.randrange(5)):
                times.choice(begun)[2].has_ended()
            one.wait()
            assert array.tobytes() == wanted.tobytes()

    run(size, work, seed)


@pytest.mark.parametrize("begin", ["begin_reduce", "begin_broadcast"])
def test_what_goes_to_one_rank_or_comes_from_one_crosses_each_link_once(begin):
    """And as many bytes are waited for: at the root those of all others."""
    waited = {}

    def work(rank, sums):
        one = getattr(sums, begin)(numbers(rank, 0, MANY), 1)
        one.wait()
        waited[rank] = one.num_bytes

    messages = run(4, work).messages
    routes = sorted((source, target) for source, target, _, _ in messages)
    outward = [(1, other) for other in (0, 2, 3)]
    assert routes == (outward if begin == "begin_broadcast" else sorted((b, a) for a, b in outward))
    assert {num_bytes for *_, num_bytes in messages} == {4 * MANY}
    assert waited == {0: 4 * MANY, 1: 3 * 4 * MANY, 2: 4 * MANY, 3: 4 * MANY}


@pytest.mark.parametrize("asks", [False, True])
def test_a_sum_goes_on_while_one_before_it_is_under_way(asks):
    """Rank 2 begins the third when the others have the second, for which they need its sum of a part."""
    has_second = [threading.Event() for _ in range(2)]

    def work(rank, sums):
        arrays = [numbers(rank, place, MANY) for place in range(3)]
        begun = [sums.begin(array) for array in arrays[:2]]
        if rank < 2:
            begun[0].wait()
            begun[1].wait()
            has_second[rank].set()
        else:
            while asks and not all(each.is_set() for each in has_second):
                begun[0].has_ended()
            begun[0].wait()
            begun[1].wait()
            assert all(each.wait(DEADLINE_S) for each in has_second)
        begun.append(sums.begin(arrays[2]))
        for place, one in enumerate(begun):
            one.wait()
            assert arrays[place].tobytes() == in_order(3, place, MANY).tobytes()

    run(3, work)


def test_only_the_first_of_those_that_have_not_come_is_asked_for():
    """Each question costs as much as all of a rank's connections do."""
    go_on = threading.Event()

    def work(rank, sums):
        if rank == 1:
            assert go_on.wait(DEADLINE_S)
        begun = [sums.begin(numbers(rank, place, MANY)) for place in range(6)]
        if rank == 0:
            assert not begun[0].has_ended()
            assert sums._comm.questions == 1
            go_on.set()
        for one in begun:
            one.wait()

    run(3, work)


def bytes_sent(size, elements):
    """Return what each rank sends for a sum, message by message."""

    def work(rank, sums):
        sums.begin(numbers(rank, 0, elements)).wait()

    sent = defaultdict(list)
    for source, _, tag, num_bytes in run(size, work).messages:
        sent[source].append((tag, num_bytes))
    [each] = {tuple(sorted(messages)) for messages in sent.values()}
    return each


@pytest.mark.parametrize("size", [3, 4, 8])
def test_large_sums_cross_a_link_as_recursive_halving_and_doubling_do(size):
    """2 (N - 1) / N of the array, in two messages to each of the others."""
    elements = size * MANY
    assert bytes_sent(size, elements) == ((1, 4 * MANY),) * (size - 1) + ((2, 4 * MANY),) * (size - 1)


def test_small_sums_are_one_message_to_each():
    """And so are all among two ranks."""
    assert bytes_sent(5, MANY // 4) == ((1, MANY),) * 4
    assert bytes_sent(5, MANY // 4 + 2) == ((1, 1640),) * 4 + ((2, 1640),) * 4
    assert bytes_sent(2, 4 * MANY) == ((1, 16 * MANY),)


def test_memory_is_used_again():
    """Sums under way have some of their own; the next use that of those that have ended."""
    spaces = []

    def work(rank, sums):
        for _ in range(3):
            for one in [sums.begin(numbers(rank, place, MANY)) for place in range(2)]:
                one.wait()
            if rank == 0:
                spaces.append({id(space) for space in sums._spaces})

    run(3, work)
    assert len(spaces[0]) == 2
    assert spaces[0] == spaces[1] == spaces[2]


def test_tags_are_used_again():
    """After as many as MPI has at least."""

    def work(rank, sums):
        sums._tag = 32_765
        for place in range(3):
            array = numbers(rank, place, MANY)
            sums.begin(array).wait()
            assert array.tobytes() == in_order(3, place, MANY).tobytes()

    tags = {tag for _, _, tag, _ in run(3, work).messages}
    assert tags == {32_766, 32_767, 1, 2, 3, 4}


def test_sums_are_asked_for_the_less_the_longer_they_usually_take():
    """From the beginning to the end, by their bytes both ways; short ones are waited for in MPI."""
    sums = DirectSums(
        None, FakeComm(FakeNetwork(2, DEADLINE_S), 0), Patience(MESSAGES, SHARE_OF_SEVERAL, lambda _: None)
    )
    one = sums.begin(numbers(0, 0, MANY))
    assert one.pause_s() == 0
    for seconds, pause in ((0.0008, 0), (0.01, 1e-9 * LONGEST_NS)):
        for _ in range(50):
            sums.patience.took(8 * MANY, seconds)
        assert one.pause_s() == pytest.approx(pause, rel=0.5)


def test_how_long_a_sum_took_is_noted():
    noted = []

    def work(rank, sums):
        sums.patience.took = lambda num_bytes, seconds: noted.append((num_bytes, seconds >= 0))
        begun = [sums.begin(numbers(rank, place, elements)) for place, elements in enumerate((MANY, 10))]
        for one in begun:
            one.wait()

    run(2, work)
    assert sorted(noted) == [(80, True), (80, True), (8 * MANY, True), (8 * MANY, True)]


def test_waiting_makes_timers_late_and_not_asking():
    """Nor what has ended already."""
    told = []

    def work(rank, sums):
        for _ in range(50):
            sums.patience.took(8 * MANY, 1.0)
        sums.patience._allow = lambda nanoseconds: told.append((rank, nanoseconds))
        one = sums.begin(numbers(rank, 0, MANY))
        if rank == 0:
            while not one.has_ended():
                pass
        one.wait()

    run(2, work)
    assert told == [(1, LONGEST_NS), (1, USUAL_NS)]


@pytest.mark.parametrize("asks", [False, True])
def test_the_library_takes_its_own_sums_further(asks):
    """Each of its calls does, so that a question is enough; how long one took is noted once."""
    ended, noted = [], []
    request = SimpleNamespace(Test=lambda: bool(ended), Wait=lambda: ended.append(1))
    patience = Patience(6, SHARE_OF_SEVERAL, lambda _: None)
    patience.took = lambda num_bytes, seconds: noted.append((num_bytes, seconds > 0))
    one = LibrarySum(request, 1 << 20, patience)
    assert not one.has_ended()
    assert noted == []
    if asks:
        ended.append(1)
        assert one.has_ended()
    one.wait()
    one.wait()
    assert one.has_ended()
    assert ended == [1]
    assert noted == [(1 << 20, True)]


def test_the_librarys_sums_are_asked_for_the_less_the_longer_they_usually_take():
    patience = Patience(6, SHARE_OF_SEVERAL, lambda _: None)
    one = LibrarySum(None, 1 << 20, patience)
    assert one.pause_s() == 0
    for _ in range(50):
        patience.took(1 << 20, 1.0)
    assert one.pause_s() == pause_s(patience, 1 << 20) == 1e-9 * LONGEST_NS


@pytest.mark.parametrize("rank", range(4))
def test_the_order_is_that_of_the_ranks(rank):
    """Whoever adds: three large numbers cancel in one order only."""
    values = [np.array([each], np.float32) for each in (1e8, 1.0, -1e8, 1.0)]
    own = values.pop(rank)
    add_in_order(own, values, rank)
    assert own[0] == np.float32(1.0)
