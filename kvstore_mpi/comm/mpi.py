"""A communicator over MPI: a duplicate of ``COMM_WORLD``, used by one thread only.

The only file that imports mpi4py. Arrays are contiguous and 1-D; sums are in place.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.comm import before_mpi, bells, cores, sums, waits
from kvstore_mpi.comm.host_barrier import barrier_of_host
from kvstore_mpi.comm.links import Links
from kvstore_mpi.comm.started import SIZE_VARIABLES
from kvstore_mpi.errors import ConfigurationError, DeadlineError
from kvstore_mpi.host_name import host_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.sums_interface import SumUnderWay

Array = np.ndarray[Any, Any]

SEGMENT_BYTES = 4 << 20
"""Largest message handed to MPI: above 16 MB its temporaries are mapped and faulted in anew on every call
(256 MB allreduce in segments of 4 MB: 79 -> 21 ms on Open MPI, 93 -> 22 ms on MPICH)."""

_PAIR = 2
_ONE_WAY_BYTES = 8 << 10
"""Above, a reduce among two ranks is a message to the root, which adds. MPICH lets each add up a half, so
that half of the array goes over the root's link, too; and within a host that takes five to eight times as
long from 256 KB on (MPICH 5.0.2). Open MPI 5.0.11 takes about the same time either way. Below, the
library's own call takes less of Python.

And an allreduce among two hosts is one exchange of the whole array, where MPICH makes two of halves: a step
of 12 keys of 2 MB over 500 Mbit/s takes both 130 ms of processor time instead of 153, and 450 ms instead of
456 (medians of three jobs of each in turn, `benchmarks/sparse_step.py --models dense --variants allreduce`
before this was committed; 446 - 454 and 453 - 460)."""

_LOOKS_S = (0.001, 0.02)
"""From one look at who has come to the next, at first and in the end: MPI itself would wait at full load. A
barrier goes on only when somebody looks, and takes log2 N of its steps after the last has come."""


def load_mpi() -> Any:
    """Import mpi4py's MPI module, which initialises MPI.

    Raises:
        ConfigurationError: There is no usable MPI library, or its thread level is too low.
    """
    before_mpi.prepare(os.environ)
    try:
        from mpi4py import MPI  # noqa: PLC0415  importing it initialises MPI: only when wanted
    except (ImportError, RuntimeError) as error:
        raise ConfigurationError(
            f"MPI cannot be loaded: {error}. Install one with pip install 'kvstore_mpi[mpich]', or load "
            "your cluster's MPI module; mpilaunch doctor checks it"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ConfigurationError(
            "this MPI was initialised without thread support (THREAD_SERIALIZED is needed, because one "
            "thread of the store calls MPI while yours computes); do not lower mpi4py.rc.thread_level"
        )
    return MPI


def join(
    model_parallel: int, connect_timeout: float, step_timeout: float, warn_after: float
) -> tuple[MpiCommunicator, Links | None]:
    """Meet the other ranks of this process's MPI job.

    Args:
        model_parallel: Ranks of each worker, which are neighbours.
        connect_timeout: Seconds within which all must come.
        step_timeout: Those after which a wait for another rank of the worker is an error.
        warn_after: Those after which the log says whom it is for.

    Returns:
        The workers' ranks that own the same part of the model, and those of this worker if it has several.

    Raises:
        DeadlineError: Somebody has not come in time.
        ConfigurationError: They cannot be divided into workers, or MPI takes calls of one thread at a time.
    """
    _meet(connect_timeout)
    if model_parallel > 1:
        return _split(model_parallel, step_timeout, warn_after)
    return MpiCommunicator(), None


def _meet(timeout: float) -> None:
    """Wait, mostly asleep, until all ranks are here: the calls that come next have no deadline."""
    world = load_mpi().COMM_WORLD
    arrival = world.Ibarrier()
    end, (pause, longest) = time.monotonic() + timeout, _LOOKS_S
    while not arrival.Test():
        if time.monotonic() > end:
            raise DeadlineError(
                f"not all {world.Get_size()} MPI ranks of this client have made a store within "
                f"connect_timeout ({timeout:g} s): let the script make one on every rank, or let ranks "
                "come later with mpilaunch --set connect_timeout=S"
            )
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _split(model_parallel: int, timeout: float, warn_after: float) -> tuple[MpiCommunicator, Links]:
    mpi = load_mpi()
    world = mpi.COMM_WORLD
    _check_size(mpi, world.Get_size())
    if world.Get_size() % model_parallel:
        raise ConfigurationError(
            f"{world.Get_size()} MPI ranks cannot be divided into workers of {model_parallel}: start a "
            "multiple of --model-parallel"
        )
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise ConfigurationError(
            "this MPI was initialised without THREAD_MULTIPLE, which --model-parallel needs, because the "
            "store's thread calls MPI while others send activations; do not lower mpi4py.rc.thread_level"
        )
    worker, model_rank = divmod(world.Get_rank(), model_parallel)
    owners = MpiCommunicator(world.Split(model_rank, worker))
    ranks = world.Split(worker, model_rank)
    hung = bells.hang(ranks)
    cores.divide(world.Split_type(mpi.COMM_TYPE_SHARED), wanted=hung is not None)
    return owners, Links(mpi, ranks, timeout, hung, warn_after=warn_after)


class MpiCommunicator:
    """Ranks of this process's MPI job."""

    def __init__(self, comm: Any = None) -> None:
        """Duplicate ``COMM_WORLD``, so that the user's own MPI calls cannot meet ours.

        Args:
            comm: A communicator of mpi4py, owned from now on; of all ranks if not given.
        """
        self._mpi = load_mpi()
        self._comm = self._mpi.COMM_WORLD.Dup() if comm is None else comm
        self._groups: dict[tuple[int, ...], Any] = {}
        self._number = np.empty(1, np.int64)
        self._space = np.empty(0, np.uint8)  # for what comes and is added
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        _check_size(self._mpi, self._mpi.COMM_WORLD.Get_size())
        self._sleeps = waits.sleeps(os.environ)
        messages = waits.messages_of_the_library(self.size)
        # Of one host only: on several, MPI must be called for what has left for another to arrive.
        self._words = barrier_of_host(self._comm) if len(self.hosts()) == 1 < self.size else None
        self._around = waits.around_calls(messages, os.environ)
        self._patience = waits.patience_with_several(messages)
        # All or none: one that exchanged with one that called the library would wait for ever.
        self._overlaps = bool(self.minimum(int(self._sleeps)))
        self._swaps = self.size == _PAIR and self._overlaps
        self._direct = sums.DirectSums(self._mpi, self._comm, waits.patience_with_several(sums.MESSAGES))

    def library(self) -> str:
        """See ``interfaces.Communicator``: the first line."""
        return _library(self._mpi)

    def local_rank(self) -> int:
        """Return this rank's number among those of its host."""
        [host] = [ranks for ranks in self.hosts() if self.rank in ranks]
        return host.index(self.rank)

    def allreduce(self, array: Array) -> None:
        """See ``interfaces.Communicator``."""
        if self._words is not None:
            self._words.wait()  # asleep, which MPI does not
        if self._swaps and array.nbytes > _ONE_WAY_BYTES:
            for segment in _segments(array):
                self._swap_and_add(segment)
            return
        if _one_call(array):
            with self._around(array.nbytes):
                self._comm.Allreduce(self._mpi.IN_PLACE, array)
            return
        for segment in _segments(array):
            work = _summable(segment)
            with self._around(work.nbytes):
                self._comm.Allreduce(self._mpi.IN_PLACE, work)
            _restore(segment, work)

    def begin_allreduce(self, array: Array) -> SumUnderWay | None:
        """See ``interfaces.Communicator``: where all ranks sleep while they wait."""
        if not self._overlaps or array.nbytes > SEGMENT_BYTES:
            return None
        # Among two ranks a sum is rounded once, whatever adds it.
        if self.size > _PAIR and not _one_call(array):
            return None
        if self.size <= sums.MOST_RANKS:
            return self._direct.begin(array)
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, array)
        return sums.LibrarySum(request, array.nbytes, self._patience)

    def begin_reduce(self, array: Array, root: int) -> SumUnderWay | None:
        """See ``interfaces.Communicator``."""
        if not self._sends_directly(array) or (self.size > _PAIR and not _one_call(array)):
            return None
        return self._direct.begin_reduce(array, root)

    def begin_broadcast(self, array: Array, root: int) -> SumUnderWay | None:
        """See ``interfaces.Communicator``."""
        return self._direct.begin_broadcast(array, root) if self._sends_directly(array) else None

    def _sends_directly(self, array: Array) -> bool:
        return self._overlaps and array.nbytes <= SEGMENT_BYTES and self.size <= sums.MOST_RANKS

    def prepare_allreduce(self, array: Array) -> Callable[[], None]:
        """See ``interfaces.Communicator``."""
        if self._sleeps or not _one_call(array):
            return partial(self.allreduce, array)
        datatype = self._mpi.Datatype.fromcode(array.dtype.char)
        call = partial(
            self._comm.Allreduce, self._mpi.IN_PLACE, [self._mpi.buffer(array), array.size, datatype]
        )
        return call if self._words is None else partial(_one_after_the_other, self._words.wait, call)

    def reduce(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        for segment in _segments(array):
            if self.size == _PAIR and segment.nbytes > _ONE_WAY_BYTES:
                self._send_or_add(segment, root)
                continue
            work = _summable(segment)
            with self._around(work.nbytes):
                if self.rank == root:
                    self._comm.Reduce(self._mpi.IN_PLACE, work, root=root)
                else:
                    self._comm.Reduce(work, None, root=root)
            if self.rank == root:
                _restore(segment, work)

    def _swap_and_add(self, segment: Array) -> None:
        """Sum among two hosts: as many bytes as the library's two exchanges of halves, and one wait."""
        space, peer = self._room(segment), 1 - self.rank
        with self._around(2 * segment.nbytes):
            self._comm.Sendrecv(segment.view(np.uint8), peer, recvbuf=space, source=peer)
        sums.add_in_order(segment, [space.view(segment.dtype)], self.rank)  # float16 in float32, by NumPy

    def _send_or_add(self, segment: Array, root: int) -> None:
        """Reduce among two ranks: nothing leaves the root."""
        if self.rank != root:
            self._comm.Send(segment.view(np.uint8), root)
            return
        other = self._room(segment)
        self._comm.Recv(other, 1 - root)
        np.add(segment, other.view(segment.dtype), out=segment)  # NumPy adds float16 in float32

    def _room(self, segment: Array) -> Array:
        """Return room for what comes and is added to a segment, as bytes."""
        if self._space.nbytes < segment.nbytes:
            self._space = np.empty(segment.nbytes, np.uint8)
        return self._space[: segment.nbytes]

    def broadcast(self, array: Array, root: int) -> None:
        """See ``interfaces.Communicator``."""
        for segment in _segments(array.view(np.uint8)):
            with self._around(segment.nbytes):
                self._comm.Bcast(segment, root=root)

    def minimum(self, number: int) -> int:
        """See ``interfaces.Communicator``."""
        if self._words is not None:
            return self._words.least(number)
        self._number[0] = number
        self._comm.Allreduce(self._mpi.IN_PLACE, self._number, op=self._mpi.MIN)
        return int(self._number[0])

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """See ``interfaces.Communicator``."""
        size = np.array([len(data)], np.int64)
        self._comm.Bcast(size, root=root)
        buffer = (
            np.frombuffer(data, np.uint8).copy() if self.rank == root else np.empty(int(size[0]), np.uint8)
        )
        self._comm.Bcast(buffer, root=root)
        return buffer.tobytes()

    def exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """See ``interfaces.Communicator``."""
        if len(sends) == len(receives) == 1:  # one call instead of three
            [(target, data)], [(source, space)] = sends, receives
            with self._around(data.nbytes + space.nbytes):
                self._comm.Sendrecv(
                    data.view(np.uint8), target, recvbuf=space.view(np.uint8), source=source
                )
            return
        requests = [self._comm.Irecv(space.view(np.uint8), source) for source, space in receives]
        requests += [self._comm.Isend(data.view(np.uint8), target) for target, data in sends]
        with self._around(sum(array.nbytes for _, array in (*sends, *receives))):
            self._mpi.Request.Waitall(requests)

    def barrier(self, ranks: tuple[int, ...]) -> None:
        """See ``interfaces.Communicator``."""
        if self._words is not None and len(ranks) == self.size:
            self._words.wait()
            return
        group = self._groups.get(ranks)
        if group is None:
            members = self._comm.Get_group().Incl(ranks)
            group = self._groups[ranks] = self._comm.Create_group(members)
        group.Barrier()

    def hosts(self) -> list[list[int]]:
        """See ``interfaces.Communicator``."""
        host = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        first = np.array([self.rank], np.int64)
        host.Bcast(first, root=0)
        host.Free()
        firsts = np.empty(self.size, np.int64)
        self._comm.Allgather(first, firsts)
        return [[int(rank) for rank in np.flatnonzero(firsts == each)] for each in np.unique(firsts)]

    def close(self) -> None:
        """See ``interfaces.Communicator``."""
        if not self._mpi.Is_finalized():
            for group in self._groups.values():
                group.Free()
            self._comm.Free()


def _one_after_the_other(one: Callable[[], None], other: Callable[[], None]) -> None:
    one()
    other()


def _one_call(array: Array) -> bool:
    """Return whether there is nothing to cut or to convert."""
    return array.nbytes <= SEGMENT_BYTES and array.dtype.char in "fdilqbB" and array.dtype.isnative


def _segments(array: Array) -> list[Array]:
    step = max(1, SEGMENT_BYTES // array.itemsize)
    return [array[lo : lo + step] for lo in range(0, array.size, step)]


def _check_size(mpi: Any, size: int) -> None:
    for name in SIZE_VARIABLES:
        told = os.environ.get(name, "")
        if told.isdigit() and int(told) > size == 1:
            raise ConfigurationError(
                f"mpiexec started {told} processes ({name}), but each of them is alone in its "
                f"COMM_WORLD, as on {host_name()}: mpiexec and mpi4py's library "
                f"({_library(mpi)}) belong to different MPIs; mpilaunch doctor shows both"
            )


def _library(mpi: Any) -> str:
    version: str = mpi.Get_library_version()
    return version.splitlines()[0].strip("\0 ")


def _summable(segment: Array) -> Array:
    """Return an array that a library can add: float16 is summed in float32, bool as a count of one byte.

    MPI libraries add float16 4 to 70 times slower than float32, and round at every hop.
    """
    if segment.dtype == np.float16:
        return segment.astype(np.float32)
    return segment.view(np.uint8) if segment.dtype == np.bool_ else segment


def _restore(segment: Array, work: Array) -> None:
    """Write a sum of what ``_summable`` has returned to where that came from."""
    if segment.dtype == np.float16:
        segment[...] = work
    elif segment.dtype == np.bool_:
        segment[...] = work != 0
