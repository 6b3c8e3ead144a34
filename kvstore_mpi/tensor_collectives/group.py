"""The ranks of one client: sums and spreads runs of slices of exchange buffers, by the fastest way.

The MPI thread alone uses it. It knows nothing of keys, nor why something is summed. What
the ranks do with rows of tables is in ``rows.py``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
)

import numpy as np

from kvstore_mpi.tensor_collectives import hierarchical, hosts, rings, trees
from kvstore_mpi.tensor_collectives.choice import PAIR, Algorithm, Chooser, Plan
from kvstore_mpi.tensor_collectives.driver import Driver, Make, Shared
from kvstore_mpi.tensor_collectives.hierarchical import Levels
from kvstore_mpi.tensor_collectives.rows import RowCollectives
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, accumulator
from kvstore_mpi.transport.shared_memory import Directory
from kvstore_mpi.values.rows import RowMerger

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.sums_interface import SumUnderWay
    from kvstore_mpi.tensor_collectives.profile import Profile
    from kvstore_mpi.transport.shared_memory import Place

Array = np.ndarray[Any, Any]
Locate = Callable[[Array], "Place | None"]

MOST_PREPARED = 4096
"""Runs for which the prepared call is kept; then all are forgotten: slices travel in runs that vary."""

STAGED_BYTES = 64 << 10
"""Up to here a run is copied to others of its bucket and back, to be one call with them."""

log = logging.getLogger("kvstore_mpi.collectives")

_SUM = OPERATIONS["sum"]


class BufferRun(NamedTuple):
    """Neighbouring slices of an exchange buffer, on which one collective is carried out.

    Attributes:
        buffer: The exchange buffer.
        lo: First element.
        hi: End of the elements.
        root: The rank that gets the sum, or has the value; ``None`` for an allreduce.
        job: The caller's.
    """

    buffer: Array
    lo: int
    hi: int
    root: int | None = None
    job: Any = None

    @property
    def elements(self) -> Array:
        """The elements, as a view."""
        return self.buffer[self.lo : self.hi]

    @property
    def arguments(self) -> tuple[int, ...]:
        """What the collective is told besides the elements."""
        return () if self.root is None else (self.root,)


class _Peers(NamedTuple):
    """An exchange buffer, and the same key's buffers of the ranks of this host if all reach theirs."""

    buffer: Array
    all: dict[int, Array]

    def elements(self, lo: int, hi: int) -> dict[int, Array]:
        """Return the same elements of all of them."""
        return {rank: array[lo:hi] for rank, array in self.all.items()}


class _Ways(NamedTuple):
    """How one collective is carried out: by MPI, in shared memory, around rings or over a tree.

    Attributes:
        mpi: Makes the call from an array and a root, if there is one.
        shared: The program in the shared memory of one host.
        hierarchical: That of several hosts.
        rings: That around rings; ``None`` for a tree.
    """

    mpi: Callable[..., Callable[[], None]]
    shared: Make
    hierarchical: Make
    rings: Make | None


Name = Literal["allreduce", "reduce", "broadcast"]


class Group:
    """Collectives of one client, blocking."""

    def __init__(
        self,
        communicator: Communicator,
        *,
        locate: Locate = lambda _buffer: None,
        algorithm: Algorithm = Algorithm.AUTO,
        profile: Profile | None = None,
    ) -> None:
        """Take ownership of a communicator.

        Args:
            communicator: The ranks of the client.
            locate: Where an exchange buffer lies, if other processes of this host can map it.
            algorithm: Which way to take; ``AUTO`` decides by size and place.
            profile: As for ``Driver``.
        """
        self.rank = communicator.rank
        self.size = communicator.size
        self._driver = Driver(communicator, profile=profile)
        self._locate = locate
        self._algorithm = algorithm
        self._directory = Directory()
        self._chooser: Chooser | None = None
        self._peers: dict[int, _Peers] = {}
        self._stages: dict[np.dtype[Any], Array] = {}
        self._warned = False
        self._ways: dict[Name, _Ways] = {
            "allreduce": _Ways(
                communicator.prepare_allreduce, hosts.shared_memory, hierarchical.allreduce, rings.allreduce
            ),
            "reduce": _Ways(
                partial(partial, communicator.reduce),
                hosts.shared_memory_reduce,
                hierarchical.reduce,
                rings.reduce,
            ),
            "broadcast": _Ways(
                partial(partial, communicator.broadcast),
                hosts.shared_memory_broadcast,
                hierarchical.broadcast,
                None,
            ),
        }
        self._prepared: dict[tuple[Any, ...], Callable[[], None]] = {}
        self._held: dict[int, Array] = {}  # so that no other buffer gets the id of one that is known

    def shares(self, buffer: Array) -> bool:
        """Tell whether runs of a buffer that are large enough are reduced in shared memory.

        Then they may be reduced by themselves or together with what lies beside them, with the same bits.
        """
        if self._algorithm not in (Algorithm.AUTO, Algorithm.SHM) or not buffer.size:
            return False
        return self._choose().same_bits and self._reaches(buffer)

    def allreduce(self, buffer: Array, lo: int, hi: int) -> None:
        """Sum a run of an exchange buffer over all ranks, in place; all get the same bits."""
        known = self._prepared.get(("allreduce", id(buffer), lo, hi, None))  # as _alone, but a call less
        (known or self._prepare("allreduce", BufferRun(buffer, lo, hi)))()

    def begin(self, name: Name, run: BufferRun) -> SumUnderWay | None:
        """Begin what the method of that name does, where others may begin before it ends."""
        if self._way(run, run.elements.nbytes).algorithm is not Algorithm.MPI:
            return None
        if name == "broadcast":
            return self._driver.communicator.begin_broadcast(run.elements, *run.arguments)
        # A sum of more than two ranks depends on their order, which may be another in the call that is
        # waited for. So all are begun, of any size, or none: one that is begun now must not be put together
        # with others the next time.
        if self.size > PAIR and self.gains_together(name):
            return None
        if name == "reduce":
            return self._driver.communicator.begin_reduce(run.elements, *run.arguments)
        return self._driver.communicator.begin_allreduce(run.elements)

    def reduce(self, buffer: Array, lo: int, hi: int, root: int) -> None:
        """Sum a run of an exchange buffer into one rank's; on the others it is undefined afterwards."""
        self._alone("reduce", buffer, lo, hi, root)

    def broadcast(self, buffer: Array, lo: int, hi: int, root: int) -> None:
        """Overwrite a run of an exchange buffer with one rank's."""
        self._alone("broadcast", buffer, lo, hi, root)

    @cached_property
    def rows(self) -> RowCollectives:
        """What sums and spreads rows of tables; made when it is needed, since it may import SciPy."""
        shares = self._algorithm in (Algorithm.AUTO, Algorithm.SHM)
        return RowCollectives(self._driver, RowMerger(), shares=shares)

    @property
    def hosts(self) -> Sequence[Sequence[int]]:
        """The ranks of each host; all ranks ask for them first in the same place."""
        return self._choose().hosts

    def gains_together(self, name: Name) -> bool:
        """Tell whether any runs of a collective are carried out together; all ranks ask in the same place.

        Where more than ``PAIR`` ranks have a host each, sums are formed one by one.
        """
        if name == "broadcast" or self.size <= PAIR:
            return True
        return self._algorithm in (Algorithm.AUTO, Algorithm.SHM) and self._choose().shares_hosts

    def agree(self, number: int) -> int:
        """Return the least of all ranks' numbers."""
        return self._driver.communicator.minimum(number)

    def carry_out(self, name: Name, bucket: Sequence[BufferRun]) -> Iterator[Sequence[BufferRun]]:
        """Do what the method of that name does on several runs; yield those that have ended, at once.

        What is quicker together is carried out together. That changes no bit of the results: among two
        ranks, and in shared memory, a sum does not depend on what is beside it; elsewhere sums are formed
        one by one.

        Args:
            name: The collective.
            bucket: The runs, the same on all ranks.
        """
        if len(bucket) == 1:
            [run] = bucket
            self._alone(name, run.buffer, run.lo, run.hi, run.root)
            yield bucket
            return
        for plan, runs in self._by_plan(name, bucket):
            if len(runs) == 1:
                self._call(plan, name, runs[0])()
            elif plan.algorithm is Algorithm.SHM:
                self._through_shared_memory(plan, name, runs)()
            else:
                self._staged(plan, name, runs)
            yield runs

    def close(self) -> None:
        """Free the communicator."""
        self._driver.close()

    # --- which way ---

    def _choose(self) -> Chooser:
        """Return what chooses; the first time all ranks find out together which host each is on."""
        if self._chooser is None:
            self._chooser = self._driver.chooser(self._algorithm, buckets=True)
        return self._chooser

    def _way(self, run: BufferRun, num_bytes: int) -> Plan:
        """Return the way for a run that is carried out among ``num_bytes`` bytes."""
        if self._algorithm is Algorithm.MPI or run.lo == run.hi:
            return Plan(Algorithm.MPI)
        chooser = self._choose()
        if not chooser.may_share(num_bytes):
            return chooser.plan(num_bytes, shared=False)  # reached or not
        return chooser.plan(num_bytes, shared=self._reaches(run.buffer))

    def _by_plan(self, name: Name, bucket: Sequence[BufferRun]) -> Iterator[tuple[Plan, list[BufferRun]]]:
        """Put together the runs that are carried out at once, in the order of the first of each."""
        same_bits = name == "broadcast" or self.size <= PAIR  # whatever lies beside a run
        num_bytes = sum(run.elements.nbytes for run in bucket)
        alike: dict[Hashable, tuple[Plan, list[BufferRun]]] = {}
        for index, run in enumerate(bucket):
            own_bytes = run.elements.nbytes
            plan = self._way(run, num_bytes if same_bits else own_bytes)
            key: Hashable = index
            if plan.algorithm is Algorithm.SHM:
                key = plan if len(self._choose().hosts) == 1 else (plan, run.root)
            elif same_bits and own_bytes <= STAGED_BYTES:
                key = (plan, run.buffer.dtype, run.root)
            alike.setdefault(key, (plan, []))[1].append(run)
        return iter(alike.values())

    def _reaches(self, buffer: Array) -> bool:
        """Tell whether all ranks reach what is to be summed with a buffer in the memory of their host.

        What is to be rounded once cannot lie there between two hosts' sums.
        """
        wide = accumulator(buffer.dtype) == buffer.dtype
        return (wide or len(self._choose().hosts) == 1) and bool(self._known_peers(buffer).all)

    def _known_peers(self, buffer: Array) -> _Peers:
        return self._peers.get(id(buffer)) or self._find_peers(buffer)

    def _find_peers(self, buffer: Array) -> _Peers:
        """Tell each other where a buffer lies; once for each key, in the same order on all ranks."""
        views = self._driver.map_peers(self._choose().hosts, self._directory, self._locate(buffer))
        arrays = {rank: np.frombuffer(view, buffer.dtype) for rank, view in views.items()}
        if arrays:
            arrays[self.rank] = buffer
        if not arrays and self._algorithm is Algorithm.SHM and not self._warned:
            self._warned = True
            text = (
                "collective shm: some buffers cannot be reached by all ranks, and are summed by MPI instead"
            )
            log.warning("%s (the first has %d %s elements)", text, buffer.size, buffer.dtype)
        peers = self._peers[id(buffer)] = _Peers(buffer, arrays)
        return peers

    # --- carrying out ---

    def _alone(self, name: Name, buffer: Array, lo: int, hi: int, root: int | None = None) -> None:
        """Carry out one run; for small ones to prepare the call takes longer than MPI."""
        known = self._prepared.get((name, id(buffer), lo, hi, root))
        (known or self._prepare(name, BufferRun(buffer, lo, hi, root)))()

    def _prepare(self, name: Name, run: BufferRun) -> Callable[[], None]:
        """Keep and return the call for a run, whose buffer is held as long as calls are kept."""
        if len(self._prepared) >= MOST_PREPARED:
            self._prepared.clear()
            self._held.clear()
        self._held[id(run.buffer)] = run.buffer
        call = self._call(self._way(run, run.elements.nbytes), name, run)
        self._prepared[name, id(run.buffer), run.lo, run.hi, run.root] = call
        return call

    def _call(self, plan: Plan, name: Name, run: BufferRun) -> Callable[[], None]:
        ways, array, arguments = self._ways[name], run.elements, run.arguments
        if plan.algorithm is Algorithm.MPI:
            return ways.mpi(array, *arguments)
        if plan.algorithm is Algorithm.SHM:
            return self._through_shared_memory(plan, name, [run])
        if ways.rings is not None:
            return partial(self._around, ways.rings, array, plan, *arguments)
        return partial(self._run, trees.broadcast, array, {}, *arguments)

    def _through_shared_memory(
        self, plan: Plan, name: Name, runs: Sequence[BufferRun]
    ) -> Callable[[], None]:
        """Return the call for runs that are carried out side by side; on several hosts of one root."""
        hosts = self._choose().hosts
        apart = len(hosts) > 1
        make = self._ways[name].hierarchical if apart else self._ways[name].shared
        levels = (Levels(hosts, plan.doubling),) if apart else ()
        segment_bytes = plan.segment_bytes * min(map(len, hosts)) if apart else sys.maxsize
        shared: list[Shared] = [
            (array, peers, (*run.arguments, *levels))
            for run in runs
            for array, peers in self._segments(run, segment_bytes)
        ]
        if len(runs) > 1:
            return partial(self._driver.run_together, make, shared, _SUM)
        if len(shared) > 1:
            return partial(self._one_by_one, make, shared)
        [(array, peers, arguments)] = shared
        return partial(self._run, make, array, peers, *arguments)

    def _segments(self, run: BufferRun, most_bytes: int) -> Iterator[tuple[Array, dict[int, Array]]]:
        """Cut a run; yield its segments, each with those of all ranks of this host."""
        known = self._known_peers(run.buffer)
        step = most_bytes // run.buffer.itemsize
        for lo in range(run.lo, run.hi, step):
            hi = min(lo + step, run.hi)
            yield run.buffer[lo:hi], known.elements(lo, hi)

    def _staged(self, plan: Plan, name: Name, runs: Sequence[BufferRun]) -> None:
        """Copy runs of one type to memory of their own, where they are one, and back."""
        arrays = [run.elements for run in runs]
        root, dtype, size = runs[0].root, arrays[0].dtype, sum(array.size for array in arrays)
        stage = self._stages.get(dtype)
        if stage is None or stage.size < size:
            stage = self._stages[dtype] = np.empty(size, dtype)
        if name != "broadcast" or root == self.rank:
            np.concatenate(arrays, out=stage[:size])
        self._call(plan, name, BufferRun(stage, 0, size, root))()
        if name == "allreduce" or (root == self.rank) is (name == "reduce"):
            start = 0
            for array in arrays:
                array[...] = stage[start : start + array.size]
                start += array.size

    def _around(self, make: Make, array: Array, plan: Plan, *root: int) -> None:
        """Send an array around rings, a segment at a time."""
        wide = accumulator(array.dtype)
        step = plan.segment_bytes // wide.itemsize
        for lo in range(0, array.size, step):
            segment = array[lo : lo + step]
            work = segment if wide == segment.dtype else segment.astype(wide)
            self._run(make, work, {}, *root, plan.num_rings)
            if work is not segment:
                np.copyto(segment, work, casting="same_kind")

    def _one_by_one(self, make: Make, shared: Sequence[Shared]) -> None:
        for array, peers, arguments in shared:
            self._run(make, array, peers, *arguments)

    def _run(self, make: Make, array: Array, peers: Mapping[int, Array], *arguments: Any) -> None:
        self._driver.run(make, array, None, _SUM, *arguments, peers=peers)
