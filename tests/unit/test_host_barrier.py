"""The barrier of a host's ranks: nobody goes on early, nobody sleeps for one who has come."""

from __future__ import annotations

import ctypes
import threading
import time
from queue import SimpleQueue
from random import Random

import numpy as np
import pytest

from kvstore_mpi.comm import host_barrier
from kvstore_mpi.comm.host_barrier import NUM_BYTES, HostBarrier, barrier_of_host, clear

WAIT_S = 20.0
LINE = 64


def cleared_parts(number):
    """Return the memory of some ranks, as each of them sees it."""
    memory = np.zeros((number + 1) * NUM_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE
    parts = [memoryview(memory)[start + at * NUM_BYTES :][:NUM_BYTES] for at in range(number)]
    for part in parts:
        clear(part)
    return parts


def ranks_of(number, kind=HostBarrier):
    parts = cleared_parts(number)
    return [kind(rank, parts) for rank in range(number)]


def in_threads(calls):
    """Call each in a thread of its own, and return what they return; who waits for ever does not stay."""
    returned = SimpleQueue()

    def tell(number, call):
        returned.put((number, call()))

    for each in enumerate(calls):
        threading.Thread(target=tell, args=each, daemon=True).start()
    return [value for _, value in sorted(returned.get(timeout=WAIT_S) for _ in calls)]


@pytest.fixture(params=["at once", "after a while"])
def sleeping(request, monkeypatch):
    """Let who waits sleep at once, or look before."""
    if request.param == "at once":
        monkeypatch.setattr(host_barrier, "LOOKS", 0)
        monkeypatch.setattr(host_barrier, "YIELDING_NS", -1)


@pytest.mark.usefixtures("sleeping")
@pytest.mark.parametrize("number", [2, 3, 5])
def test_what_was_written_before_is_read_after(number):
    """By everybody, in every round, however long each takes."""
    ranks, written = ranks_of(number), np.zeros((2, number), np.int64)

    def rounds(rank):
        random = Random(rank)
        for index in range(1, 1500):
            for _ in range(random.choice((0, 0, 10, 300))):
                pass
            written[index % 2, rank] = index
            ranks[rank].wait()
            assert set(written[index % 2]) == {index}

    in_threads([lambda rank=rank: rounds(rank) for rank in range(number)])


@pytest.mark.usefixtures("sleeping")
@pytest.mark.parametrize("number", [2, 4])
def test_all_get_the_least_number(number):
    """Of this time, while the first may be at the next already."""
    ranks = ranks_of(number)
    numbers = [
        [Random(f"{rank} {at}").randrange(-(2**63), 2**63) for at in range(800)] for rank in range(number)
    ]

    def rounds(rank):
        return [ranks[rank].least(each) for each in numbers[rank]]

    told = in_threads([lambda rank=rank: rounds(rank) for rank in range(number)])
    assert told == [[min(each) for each in zip(*numbers)]] * number


class Interrupted(HostBarrier):
    """Lets another rank do something at a fence."""

    at = -1
    happens = None

    def _fence(self):
        super()._fence()
        self.at -= 1
        if self.at == 0:
            self.happens()


def bell_has_rung(barrier):
    """Take one ring of a rank's bell, if there is one."""
    return not ctypes.CDLL(None).sem_trywait(barrier._mine.bell)


def test_who_has_come_is_not_slept_for(monkeypatch):
    """Though it came after the last look, and saw nobody asleep then: the sleeper looks again."""
    monkeypatch.setattr(host_barrier, "LOOKS", 0)
    monkeypatch.setattr(host_barrier, "YIELDING_NS", -1)
    early, late = ranks_of(2, Interrupted)

    def come():  # all that the other does to be seen
        late._mine.times[0] = 1

    early.at, early.happens = 3, come  # behind the fence at which it has said that it sleeps
    in_threads([early.wait])
    assert early.at <= 0
    assert not early._mine.asleep[0]
    assert not bell_has_rung(early)


def test_who_falls_asleep_is_woken():
    """Though it did so after the other began to come: that looks when it has counted."""
    early, late = ranks_of(2, Interrupted)

    def fall_asleep():
        early._mine.times[0] = 1
        early._mine.asleep[0] = late._mine.name

    late.at, late.happens = 2, fall_asleep  # when its count can be seen
    late.wait()
    assert bell_has_rung(early)


def test_only_who_is_slept_for_rings():
    """Another rank that comes wakes nobody."""
    sleeper, other, _awaited = ranks_of(3)
    sleeper._mine.asleep[0] = 3
    sleeper._mine.times[0] = _awaited._mine.times[0] = 1
    other.wait()
    assert not bell_has_rung(sleeper)


def test_who_waits_long_takes_no_processor():
    """It sleeps, and says for whom; a ring of an earlier time does not end that."""
    early, late = ranks_of(2)
    host_barrier._LIBRARY.sem_post(early._mine.bell)  # left over
    came = threading.Event()

    def come():
        early.wait()
        came.set()

    waiting = threading.Thread(target=come, daemon=True)
    waiting.start()
    until = time.monotonic() + WAIT_S
    while early._mine.asleep[0] != late._mine.name or bell_is_set(early):
        assert time.monotonic() < until
    assert not came.is_set()
    late.wait()
    waiting.join(WAIT_S)
    assert came.is_set()
    assert not early._mine.asleep[0]


def bell_is_set(barrier):
    value = ctypes.c_int()
    ctypes.CDLL(None).sem_getvalue(barrier._mine.bell, ctypes.byref(value))
    return value.value > 0


class Told:
    """A communicator on which the ranks' places were told before."""

    def __init__(self, rank, places):
        self._rank, self._places = rank, places

    def Get_rank(self):  # noqa: N802  mpi4py's name
        return self._rank

    def allgather(self, mine):
        return [mine if each is ... else each for each in self._places] if self._places else [mine]


def test_one_that_is_not_reached_leaves_it_to_mpi():
    """For all: memory of another host, or none at all."""
    elsewhere = ("another", "/proc/1/fd/3", bytes(32), 1 << 20, 64, NUM_BYTES)
    assert barrier_of_host(Told(0, [..., elsewhere])) is None
    assert barrier_of_host(Told(0, [..., None])) is None
    assert barrier_of_host(Told(0, [...])) is not None
