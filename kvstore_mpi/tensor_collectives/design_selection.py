"""Where the ranks of a tensor group are, which design suits a tensor there, and the memory in common.

It sums nothing, and knows nothing of threads or of what is under way.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import UnsupportedError
from kvstore_mpi.tensor_collectives import designs
from kvstore_mpi.tensor_collectives.choice import Algorithm, Chooser
from kvstore_mpi.tensor_collectives.peer_mapping import Stage
from kvstore_mpi.tensor_collectives.tensor import Operation, Tensor, accumulator
from kvstore_mpi.transport.shared_memory import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.tensor_collectives.designs import Design
    from kvstore_mpi.tensor_collectives.profile import Profile

_ADDED_BY_LIBRARIES = "?bBhHiIlLqQfdgFDG"
"""NumPy's characters of the types that MPI has itself."""


class Surroundings:
    """What the ranks find out together, when it is first needed; the same calls on all of them.

    Attributes:
        waits_for: The ranks that may be waited for meanwhile; another thread may look.
    """

    def __init__(self, communicator: Communicator, design: Design, profile: Profile) -> None:
        """Find out nothing yet.

        Args:
            communicator: The ranks; stays the caller's.
            design: What was asked for.
            profile: What ``auto`` goes by.
        """
        self.waits_for: tuple[int, ...] = ()
        self._communicator = communicator
        self._design = design
        self._profile = profile
        self._chooser: Chooser | None = None
        self._stage: Stage | None = None
        self._pinned: dict[Any, Callable[[], None]] = {}
        self._designs: dict[tuple[Any, ...], Design] = {}

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host."""
        return self._choose().hosts

    def design_for(self, tensor: Tensor, operation: Operation) -> Design:
        """Return how a tensor is reduced: as was asked for, or what ``auto`` takes; alike on all ranks."""
        if not self._design.auto:
            return self._design
        key = (tensor.size, tensor.dtype, len(tensor.vectors), operation.name)
        known = self._designs.get(key)
        if known is None:
            known = self._designs[key] = self._fastest(tensor, operation)
        return known

    def _fastest(self, tensor: Tensor, operation: Operation) -> Design:
        wide, chooser = accumulator(tensor.dtype), self._choose()
        num_bytes, library = tensor.size * wide.itemsize, _library_has(operation, wide)
        copies = _copies(tensor, wide)
        shared = chooser.may_share(num_bytes, library=library, copies=copies) and self._meet().reached
        plan = chooser.plan(num_bytes, shared=shared, library=library, copies=copies)
        return designs.of_plan(self._design, plan)

    def stage(self, memory: Any) -> Stage:
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

    def close(self) -> None:
        """Let go of the memory."""
        for unpin in self._pinned.values():
            unpin()
        self._pinned.clear()
        self._stage = None

    def _choose(self) -> Chooser:
        if self._chooser is None:
            with self._waiting():
                hosts = self._communicator.hosts()
            self._chooser = Chooser(Algorithm.AUTO, self._profile, hosts, buckets=False)
        return self._chooser

    def _meet(self) -> Stage:
        if self._stage is None:
            hosts = self.hosts
            num_bytes = max(self._design.segment_bytes, ALIGNMENT)  # one element of any type fits
            with self._waiting():
                self._stage = Stage(self._communicator, hosts, num_bytes)
        return self._stage

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Say meanwhile that this rank waits for all others."""
        everyone = range(self._communicator.size)
        self.waits_for = tuple(rank for rank in everyone if rank != self._communicator.rank)
        try:
            yield
        finally:
            self.waits_for = ()


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
