"""Collectives on tensors, blocking and for one thread: what a tensor group does without its thread.

It decides by which design a tensor is reduced, where its buffer lies, and in which segments it goes through
memory that the ranks of a host share.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvstore_mpi.errors import MismatchError, UnsupportedError
from kvstore_mpi.tensor_collectives import designs, hierarchical, hosts, rings, trees
from kvstore_mpi.tensor_collectives.choice import Algorithm, Chooser
from kvstore_mpi.tensor_collectives.driver import Driver
from kvstore_mpi.tensor_collectives.local_reduce import EachVector, HostMemory, combine, copy_rounded
from kvstore_mpi.tensor_collectives.steps import split
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Operation, Tensor, accumulator
from kvstore_mpi.tensor_collectives.threads import BackgroundMemory, ThreadedCombine
from kvstore_mpi.transport.shared_memory import ALIGNMENT, Arena, Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.tensor_collectives.designs import Design
    from kvstore_mpi.tensor_collectives.driver import Make
    from kvstore_mpi.tensor_collectives.executor import LocalReducer
    from kvstore_mpi.tensor_collectives.profile import Profile
    from kvstore_mpi.tensor_collectives.steps import Range

Array = np.ndarray[Any, Any]

log = logging.getLogger("kvstore_mpi.collectives")

SEGMENTS = 16
"""Number of segments that follow each other without a pause where rings take turns. More would hide a
little more, and need larger buffers."""

COMPARED_CALLS = 64
"""The first calls of a group that ranks compare with each other: a script that errs does so from the start,
and each comparison is a message to a neighbour, which small tensors would feel for ever."""

_SUM = OPERATIONS["sum"]
_ADDED_BY_LIBRARIES = "?bBhHiIlLqQfdgFDG"
"""NumPy's characters of the types that MPI has itself."""


class TensorMemory(Protocol):
    """Where the vectors of a tensor lie: on the host, or on GPUs."""

    def reducer(self, tensor: Tensor, operation: Operation, into: Tensor) -> LocalReducer:
        """Make what works on a tensor."""
        ...

    def allocate(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Make an array on the host that transfers, and the reducer, may fill."""
        ...

    def buffer(self, into: Tensor) -> Array:
        """Return a buffer for a tensor."""
        ...

    def pin(self, buffer: Array) -> Callable[[], None]:
        """Let memory of the host that is not from ``allocate`` be a buffer; return what ends that."""
        ...


class BlockingTensorGroup:
    """The ranks of a communicator, and the design by which they reduce tensors."""

    def __init__(self, communicator: Communicator, design: Design, profile: Profile | None) -> None:
        """Take ownership of a communicator; the arguments are those of ``TensorGroup``."""
        self._adders = ThreadedCombine(design.threads) if design.threads > 1 else None
        self._driver = Driver(communicator, profile=profile, add=self._adders or combine)
        self._design = design
        self._background = BackgroundMemory()
        self._chooser: Chooser | None = None
        self._stage: Stage | None = None
        self._pinned: dict[TensorMemory, Callable[[], None]] = {}
        self._chosen: dict[tuple[Any, ...], Design] = {}
        self._compared = 0

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The ranks that it waits for now; another thread may ask."""
        return self._driver.waits_for

    def chunk(self, size: int) -> Range:
        """Return which elements of a tensor this rank has between ``reduce_scatter`` and ``allgather``."""
        return split(0, size, self._driver.size)[self._driver.rank]

    def compare(self, call: str) -> None:
        """Compare what this rank is about to call with what its neighbour is, in the first calls.

        Raises:
            MismatchError: They differ: data would be lost, or a rank wait for ever.
        """
        driver = self._driver
        if driver.size == 1 or self._compared == COMPARED_CALLS:
            return
        self._compared += 1
        other, before = driver.said_before_me(call), (driver.rank - 1) % driver.size
        if other != call:
            raise MismatchError(
                f"rank {driver.rank} calls {call}, but rank {before} {other}; all ranks make the same "
                "calls in the same order"
            )

    # --- the collectives ---

    def allreduce(self, tensor: Tensor, operation: Operation, into: Tensor) -> None:
        """Reduce all vectors of all ranks into those of ``into``."""
        design, count = self._design_for(tensor, operation), len(tensor.vectors)
        wide, memory = accumulator(tensor.dtype), self._memory(tensor, design)
        step = max(1, design.segment_bytes // wide.itemsize)
        run = partial(self._run, memory, operation=operation, divisor=self._divisor(tensor, operation))
        if design.shared:
            self._through_stage(run, memory, tensor, into, design)
        elif design.library:
            run(designs.through_library, tensor, into, step)
        elif design.whole_first:
            run(designs.whole_first, tensor, into)
        elif design.every_vector:
            buffer = memory.allocate(count * tensor.size, wide)
            reducer = EachVector(memory, tensor, operation, into)
            run(designs.every_vector, tensor, into, count, buffer=buffer, reducer=reducer)
        else:
            at_once = step * SEGMENTS if design.num_rings > 1 else step
            for lo in range(0, tensor.size, at_once):
                source, target = tensor.segment(lo, lo + at_once), into.segment(lo, lo + at_once)
                if source.size * wide.itemsize <= design.small_bytes:
                    run(trees.recursive_doubling, source, target)
                else:
                    run(rings.pipelined, source, target, design.num_rings, step)

    def reduce_scatter(self, tensor: Tensor, out: Array, operation: Operation) -> None:
        """Reduce all vectors of all ranks; ``out`` gets the elements ``chunk(tensor.size)``."""
        memory, divisor = self._memory(tensor, self._design), self._divisor(tensor, operation)
        buffer = memory.allocate(tensor.size, accumulator(tensor.dtype))
        make = rings.reduce_scatter_chunks
        self._run(memory, make, tensor, tensor, operation=operation, divisor=divisor, buffer=buffer)
        lo, hi = self.chunk(tensor.size)
        copy_rounded(out, buffer[lo:hi])

    def allgather(self, chunk: Array, tensor: Tensor) -> None:
        """Put the chunks of all ranks together in all vectors of all ranks."""
        memory, (lo, hi) = self._memory(tensor, self._design), self.chunk(tensor.size)
        buffer = memory.allocate(tensor.size, accumulator(tensor.dtype))
        copy_rounded(buffer[lo:hi], chunk)
        self._run(memory, rings.allgather_chunks, tensor, tensor, operation=_SUM, buffer=buffer)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Copy the first vector of one rank's tensor to all vectors of all ranks."""
        memory, source = self._memory(tensor, self._design), Tensor(tensor.vectors[:1])
        self._run(memory, trees.broadcast, source, tensor, root, operation=_SUM)

    def end_threads(self) -> None:
        """End the threads that reduce; also where a rank still waits for others."""
        self._background.close()
        if self._adders is not None:
            self._adders.close()

    def close(self) -> None:
        """Let go of the memory in common, and free the communicator."""
        for unpin in self._pinned.values():
            unpin()
        self._pinned.clear()
        self._stage = None
        self._driver.close()

    # --- which way ---

    def _design_for(self, tensor: Tensor, operation: Operation) -> Design:
        """Return how a tensor is reduced: as was asked for, or what ``auto`` takes; alike on all ranks."""
        if not self._design.auto:
            return self._design
        key = (tensor.size, tensor.dtype, len(tensor.vectors), operation.name)
        known = self._chosen.get(key)
        if known is None:
            known = self._chosen[key] = self._fastest(tensor, operation)
        return known

    def _fastest(self, tensor: Tensor, operation: Operation) -> Design:
        wide, chooser = accumulator(tensor.dtype), self._choose()
        num_bytes, library = tensor.size * wide.itemsize, _library_has(operation, wide)
        copies = _copies(tensor, wide)
        shared = chooser.may_share(num_bytes, library=library, copies=copies) and self._meet().reached
        plan = chooser.plan(num_bytes, shared=shared, library=library, copies=copies)
        return designs.of_plan(self._design, plan)

    def _choose(self) -> Chooser:
        if self._chooser is None:
            self._chooser = self._driver.chooser(Algorithm.AUTO, buckets=False)
        return self._chooser

    def _memory(self, tensor: Tensor, design: Design) -> TensorMemory:
        """Return where a tensor lies: on the host, where several rings need a thread, or on devices."""
        if isinstance(tensor.vectors[0], np.ndarray):
            return self._background if design.num_rings > 1 else HostMemory
        # CuPy is needed for its own arrays only.
        from kvstore_mpi.tensor_collectives.gpu.device_memory import DeviceMemory  # noqa: PLC0415

        return DeviceMemory

    def _divisor(self, tensor: Tensor, operation: Operation) -> int:
        return self._driver.size * len(tensor.vectors) if operation.is_mean else 1

    # --- carrying out ---

    def _through_stage(
        self, run: Callable[..., None], memory: TensorMemory, tensor: Tensor, into: Tensor, design: Design
    ) -> None:
        """Reduce what the stage has room for, sum that with the ranks of the host and others, spread it."""
        stage, places = self._pinned_stage(memory), self._choose().hosts
        wide = accumulator(tensor.dtype)
        step = stage.whole.nbytes // wide.itemsize
        for lo in range(0, tensor.size, step):
            source, target = tensor.segment(lo, lo + step), into.segment(lo, lo + step)
            peers = stage.buffers(source.size, wide)
            go = partial(run, buffer=peers[self._driver.rank], peers=peers)
            if len(places) == 1:
                go(hosts.shared_memory, source, target)
            else:
                doubling = source.size * wide.itemsize <= design.small_bytes
                go(hierarchical.allreduce, source, target, hierarchical.Levels(places, doubling))

    def _pinned_stage(self, memory: TensorMemory) -> Stage:
        """Return the memory that the ranks of a host share, for vectors that lie in a memory.

        A device that refuses to register it raises its own error here, and this rank's name comes with the
        others' deadlines: they may have vectors elsewhere, and register nothing.

        Raises:
            UnsupportedError: Some rank does not reach that of another one of its host; on all ranks.
        """
        stage = self._meet()
        if not stage.reached:
            raise UnsupportedError(
                "design shared: not all ranks of a host can map each other's memory, as in containers of "
                "their own or without memory files; take auto, which then does without, or another design"
            )
        if memory not in self._pinned:
            self._pinned[memory] = memory.pin(stage.whole)
        return stage

    def _meet(self) -> Stage:
        if self._stage is None:
            num_bytes = max(self._design.segment_bytes, ALIGNMENT)  # one element of any type fits
            self._stage = Stage(self._driver, self._choose().hosts, num_bytes)
        return self._stage

    def _run(
        self,
        memory: TensorMemory,
        make: Make,
        tensor: Tensor,
        into: Tensor,
        *arguments: Any,
        operation: Operation,
        divisor: int = 1,
        buffer: Array | None = None,
        reducer: LocalReducer | None = None,
        peers: Mapping[int, Array] | None = None,
    ) -> None:
        """Carry out a collective where the tensor lies, in its own buffer unless another is given."""
        self._driver.run(
            make,
            memory.buffer(into) if buffer is None else buffer,
            reducer or memory.reducer(tensor, operation, into),
            operation,
            *arguments,
            peers=peers,
            divisor=divisor,
            allocate=memory.allocate,
        )


class Stage:
    """Memory of one size through which vectors go that lie elsewhere; each rank of a host has one.

    It ends with the last rank that has it: no file, and no descriptor of its own, is left.

    Attributes:
        whole: The own one, as bytes.
        reached: All ranks of all hosts reach those of their host; else it is of no use.
    """

    def __init__(self, driver: Driver, hosts: tuple[tuple[int, ...], ...], num_bytes: int) -> None:
        """Make it, and find those of the ranks of this host; called by all ranks."""
        arena = Arena()
        try:
            self.whole = _allocate(arena, num_bytes)
            views = driver.map_peers(hosts, Directory(), arena.place(self.whole))
        finally:
            arena.close()  # the ranks that are to reach it have mapped it
        self.reached = bool(views)
        self._views = {**views, driver.rank: self.whole.data}

    def buffers(self, size: int, dtype: np.dtype[Any]) -> dict[int, Array]:
        """Return the first elements of the stages of all ranks of this host, as arrays of a type."""
        return {rank: np.frombuffer(view, dtype, size) for rank, view in self._views.items()}


def _allocate(arena: Arena, num_bytes: int) -> Array:
    """Return memory from an arena; where there is none, other memory: that others must learn, not miss."""
    if Arena.available():
        try:
            return arena.allocate(num_bytes, np.dtype(np.uint8))
        except OSError as error:  # a sandbox forbids it, or there are too many files
            log.debug("no memory that other processes could map: %s", error)
    return np.empty(num_bytes, np.uint8)


def _copies(tensor: Tensor, wide: np.dtype[Any]) -> int:
    """Return how many copies other ways save, whose buffer is a vector itself where that is wide enough.

    Where vectors lie, and whether the result goes elsewhere, does not count: that may differ between ranks,
    and all must choose alike.
    """
    if wide != tensor.dtype:
        return 0
    return 2 if len(tensor.vectors) == 1 else 1  # to the stage and back, or only to the first vector


def _library_has(operation: Operation, dtype: np.dtype[Any]) -> bool:
    """Tell whether MPI's own allreduce does it as we do: as a maximum it may lose a NaN."""
    return operation.ufunc is np.add and dtype.isnative and dtype.char in _ADDED_BY_LIBRARIES
