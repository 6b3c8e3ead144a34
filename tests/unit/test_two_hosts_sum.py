"""Which way ranks sum: two by one exchange where they sleep while they wait, all others by the library."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from kvstore_mpi.comm import mpi, waits
from kvstore_mpi.comm.mpi import SEGMENT_BYTES, MpiCommunicator

FEW, MANY = 1_000, 5_000
"""float32 elements: below and above what is left to the library anyway."""


class Ranks:
    """Stands for mpi4py's communicator; the other rank has twos."""

    def __init__(self):
        self.calls = []

    def Sendrecv(self, data, target, *, recvbuf, source):  # noqa: N802  mpi4py's name
        self.calls.append(("exchange", target, source, data.nbytes))
        recvbuf.view(np.float32)[:] = 2

    def Irecv(self, space, source):  # noqa: N802  likewise
        self.calls.append(("receive", source, space.nbytes))
        return space

    def Isend(self, data, target):  # noqa: N802  likewise
        self.calls.append(("send", target, data.nbytes))

    def Iallreduce(self, _in_place, array):  # noqa: N802  likewise
        self.calls.append(("begin", array.nbytes))
        return SimpleNamespace(Wait=lambda: array.__iadd__(2))

    def Allreduce(self, _in_place, array):  # noqa: N802  likewise
        self.calls.append("library")
        array += 2


class Waits:
    """Stands for the patience with calls that others are under way with."""

    def __init__(self):
        self.bytes = []

    def __call__(self, num_bytes):
        self.bytes.append(num_bytes)
        return nullcontext()


def make(*, sleeps, size, rank):
    """Make a communicator without MPI."""
    communicator = object.__new__(MpiCommunicator)
    communicator.rank, communicator.size = rank, size
    communicator._sleeps = sleeps
    communicator._overlaps = sleeps
    communicator._swaps = sleeps and size == 2
    communicator._spaces = []
    communicator._around = lambda _bytes: nullcontext()
    communicator._around_one_of_several = Waits()
    communicator._space = np.empty(0, np.uint8)
    requests = SimpleNamespace(Waitall=lambda requests: requests[0].view(np.float32).fill(2))
    communicator._mpi = SimpleNamespace(IN_PLACE=None, Request=requests)
    communicator._comm = Ranks()
    return communicator


@pytest.mark.parametrize("rank", [0, 1])
def test_two_hosts_exchange_the_whole_array_once(rank):
    communicator, array = make(sleeps=True, size=2, rank=rank), np.ones(MANY, np.float32)
    communicator.allreduce(array)
    assert communicator._comm.calls == [("exchange", 1 - rank, 1 - rank, 4 * MANY)]
    assert (array == 3).all()


@pytest.mark.parametrize(
    ("sleeps", "size", "elements"), [(False, 2, MANY), (True, 3, MANY), (True, 2, FEW)]
)
def test_all_else_is_the_librarys(sleeps, size, elements):
    """Ranks of one host, more than two hosts, and small arrays."""
    communicator, array = make(sleeps=sleeps, size=size, rank=0), np.ones(elements, np.float32)
    communicator.allreduce(array)
    assert communicator._comm.calls == ["library"]
    assert (array == 3).all()


def test_sums_under_way_have_memory_of_their_own():
    """And use that of those that have ended."""
    communicator = make(sleeps=True, size=2, rank=1)
    arrays = [np.ones(elements, np.float32) for elements in (MANY, FEW, MANY)]
    ends = [communicator.begin_allreduce(array) for array in arrays[:2]]
    calls = [call for array in arrays for call in (("receive", 0, array.nbytes), ("send", 0, array.nbytes))]
    assert communicator._comm.calls == calls[:4]
    ends[0]()
    [used] = communicator._spaces
    ends.append(communicator.begin_allreduce(arrays[2]))
    assert communicator._spaces == []
    for end in ends[1:]:
        end()
    assert any(space is used for space in communicator._spaces)
    assert len(communicator._spaces) == 2
    assert communicator._comm.calls == calls
    assert communicator._around_one_of_several.bytes == [2 * array.nbytes for array in arrays]
    assert all((array == 3).all() for array in arrays)


def test_sums_of_several_hosts_are_the_librarys():
    """Several are under way at once; what it cannot add is not begun."""
    communicator = make(sleeps=True, size=3, rank=1)
    arrays = [np.ones(elements, np.float32) for elements in (MANY, FEW)]
    ends = [communicator.begin_allreduce(array) for array in arrays]
    assert communicator.begin_allreduce(np.ones(MANY, np.float16)) is None
    assert communicator._comm.calls == [("begin", array.nbytes) for array in arrays]
    assert all((array == 1).all() for array in arrays)
    for end in ends:
        end()
    assert communicator._around_one_of_several.bytes == [array.nbytes for array in arrays]
    assert all((array == 3).all() for array in arrays)


@pytest.mark.parametrize("size", [2, 3])
def test_sums_of_others_are_not_begun(size):
    """Of ranks that poll; nor what is larger than MPI is handed at once."""
    assert make(sleeps=False, size=size, rank=0).begin_allreduce(np.ones(MANY, np.float32)) is None
    ranks = make(sleeps=True, size=size, rank=0)
    assert ranks.begin_allreduce(np.ones(SEGMENT_BYTES + 1, np.uint8)) is None
    assert ranks._comm.calls == []


def test_sums_that_are_under_way_together_may_be_waited_for_longer(monkeypatch):
    """What a late timer loses for one, the others use."""
    ranks = Ranks()
    ranks.Get_rank, ranks.Get_size = lambda: 0, lambda: 3
    ranks.Allreduce = lambda *_args, op: None
    library = SimpleNamespace(IN_PLACE=None, MIN=None, COMM_WORLD=ranks)
    monkeypatch.setattr(mpi, "load_mpi", lambda: library)
    monkeypatch.setenv(waits.VARIABLE, "1")
    communicator = MpiCommunicator(ranks)
    shares = [
        around.__self__._share for around in (communicator._around, communicator._around_one_of_several)
    ]
    assert shares == [waits.SHARE, waits.SHARE_OF_SEVERAL]
