"""Which way two ranks sum: by one exchange where they sleep while they wait, otherwise by the library."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from kvstore_mpi.comm.mpi import MpiCommunicator

FEW, MANY = 1_000, 5_000
"""float32 elements: below and above what is left to the library anyway."""


class Ranks:
    """Stands for mpi4py's communicator; the other rank has twos."""

    def __init__(self):
        self.calls = []

    def Sendrecv(self, data, target, *, recvbuf, source):  # noqa: N802  mpi4py's name
        self.calls.append(("exchange", target, source, data.nbytes))
        recvbuf.view(np.float32)[:] = 2

    def Allreduce(self, _in_place, array):  # noqa: N802  likewise
        self.calls.append("library")
        array += 2


def make(*, sleeps, size, rank):
    """Make a communicator without MPI."""
    communicator = object.__new__(MpiCommunicator)
    communicator.rank, communicator.size = rank, size
    communicator._sleeps = sleeps
    communicator._around = lambda _bytes: nullcontext()
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
