"""Which way ranks sum: where they sleep while they wait by messages to each other, or by the library."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from kvstore_mpi.comm import mpi, waits
from kvstore_mpi.comm.mpi import SEGMENT_BYTES, MpiCommunicator
from kvstore_mpi.comm.sums import MESSAGES, MOST_RANKS, LibrarySum

FEW, MANY = 1_000, 5_000
"""float32 elements: below and above what is left to the library anyway."""


class Ranks:
    """Stands for mpi4py's communicator; the other rank has twos."""

    def __init__(self):
        self.calls = []

    def Sendrecv(self, data, target, *, recvbuf, source):  # noqa: N802  mpi4py's name
        self.calls.append(("exchange", target, source, data.nbytes))
        recvbuf.view(np.float32)[:] = 2

    def Iallreduce(self, _in_place, array):  # noqa: N802  likewise
        self.calls.append(("begin", array.nbytes))
        return SimpleNamespace(Wait=lambda: array.__iadd__(2))

    def Allreduce(self, _in_place, array):  # noqa: N802  likewise
        self.calls.append("library")
        array += 2


def make(*, sleeps, size, rank):
    """Make a communicator without MPI."""
    communicator = object.__new__(MpiCommunicator)
    communicator.rank, communicator.size = rank, size
    communicator._words = None
    communicator._sleeps = sleeps
    communicator._overlaps = sleeps
    communicator._swaps = sleeps and size == 2
    communicator._around = lambda _bytes: nullcontext()
    communicator._patience = None
    communicator._direct = SimpleNamespace(
        begin=lambda array: ("direct", array.nbytes),
        begin_reduce=lambda array, root: ("reduce", array.nbytes, root),
        begin_broadcast=lambda array, root: ("broadcast", array.nbytes, root),
    )
    communicator._space = np.empty(0, np.uint8)
    communicator._mpi = SimpleNamespace(IN_PLACE=None)
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


@pytest.mark.parametrize("size", [2, 3, MOST_RANKS])
def test_sums_of_few_hosts_go_to_each_other(size):
    """Float16 among two alone: of more it would be rounded with each that is added."""
    communicator = make(sleeps=True, size=size, rank=1)
    assert communicator.begin_allreduce(np.ones(MANY, np.float32)) == ("direct", 4 * MANY)
    halves = communicator.begin_allreduce(np.ones(MANY, np.float16))
    assert halves == (("direct", 2 * MANY) if size == 2 else None)
    assert communicator._comm.calls == []


@pytest.mark.parametrize("size", [2, 3, MOST_RANKS])
def test_what_goes_to_one_of_few_hosts_and_comes_from_one_goes_directly(size):
    communicator = make(sleeps=True, size=size, rank=1)
    floats, halves = np.ones(MANY, np.float32), np.ones(MANY, np.float16)
    assert communicator.begin_reduce(floats, 0) == ("reduce", 4 * MANY, 0)
    assert communicator.begin_reduce(halves, 1) == (("reduce", 2 * MANY, 1) if size == 2 else None)
    assert communicator.begin_broadcast(floats, 0) == ("broadcast", 4 * MANY, 0)
    assert communicator.begin_broadcast(halves, 1) == ("broadcast", 2 * MANY, 1)


@pytest.mark.parametrize(
    ("sleeps", "size", "elements"),
    [(False, 2, MANY), (True, MOST_RANKS + 1, MANY), (True, 2, SEGMENT_BYTES + 1)],
)
def test_all_else_is_not_begun(sleeps, size, elements):
    communicator = make(sleeps=sleeps, size=size, rank=0)
    assert communicator.begin_reduce(np.ones(elements, np.uint8), 0) is None
    assert communicator.begin_broadcast(np.ones(elements, np.uint8), 0) is None


def test_sums_of_many_hosts_are_the_librarys():
    communicator = make(sleeps=True, size=MOST_RANKS + 1, rank=1)
    array = np.ones(MANY, np.float32)
    one = communicator.begin_allreduce(array)
    assert isinstance(one, LibrarySum)
    assert communicator.begin_allreduce(np.ones(MANY, np.float16)) is None
    assert communicator._comm.calls == [("begin", 4 * MANY)]


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
    monkeypatch.setattr(MpiCommunicator, "hosts", lambda _self: [[0], [1], [2]])
    communicator = MpiCommunicator(ranks)
    patience = [communicator._around.__self__, communicator._patience, communicator._direct.patience]
    assert [each._share for each in patience] == [waits.SHARE, *[waits.SHARE_OF_SEVERAL] * 2]
    assert [each._messages for each in patience] == [4, 4, MESSAGES]
