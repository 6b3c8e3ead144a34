"""The ranks of one client: sums and spreads runs of slices of exchange buffers, by the fastest way.

The MPI thread alone uses it. It knows nothing of keys, nor why something is summed. What
the ranks do with rows of tables is in ``rows.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
)

import numpy as np

from kvstore_mpi.tensor_collectives import hierarchical, hosts, rings, trees
from kvstore_mpi.tensor_collectives.choice import PAIR, Algorithm, Chooser, Plan
from kvstore_mpi.tensor_collectives.driver import Driver, Make, Shared
from kvstore_mpi.tensor_collectives.hierarchical import Levels
from kvstore_mpi.tensor_collectives.rows import RowCollectives
from kvstore_mpi.tensor_collectives.runs import BufferRun, KeptByRun, Name
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, accumulator
from kvstore_mpi.transport.shared_memory import Directory
from kvstore_mpi.values.rows import RowMerger

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.sums_interface import SumUnderWay
    from kvstore_mpi.tensor_collectives.executor import Phases
    from kvstore_mpi.tensor_collectives.profile import Profile
    from kvstore_mpi.transport.shared_memory import Place

Array = np.ndarray[Any, Any]
Locate = Callable[[Array], "Place | None"]

STAGED_BYTES = 64 << 10
"""Up to here a run is copied to others of its bucket and back, to be one call with them."""

log = logging.getLogger("kvstore_mpi.collectives")

_SUM = OPERATIONS["sum"]


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
        self._everyone = tuple(range(self.size))
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
        self._calls = KeptByRun(self._find_call)
        self._phases = KeptByRun(self._find_phases)

    def shares(self, buffer: Array) -> bool:
        """Tell whether runs of a buffer that are large enough are reduced in shared memory.

        Then they may be reduced by themselves or together with what lies beside them, with the same bits.
        """
        if self._algorithm not in (Algorithm.AUTO, Algorithm.SHM) or not buffer.size:
            return False
        return self._choose().same_bits and self._reaches(buffer)

    def allreduce(self, buffer: Array, lo: int, hi: int) -> None:
        """Sum a run of an exchange buffer over all ranks, in place; all get the same bits."""
        known = self._calls.known.get(("allreduce", id(buffer), lo, hi, None))  # as _alone, but a call less
        (known or self._calls.add("allreduce", BufferRun(buffer, lo, hi)))()

    def begin(self, name: Name, run: BufferRun) -> SumUnderWay | None:
        """Begin what the method of that name does, where others may begin before it ends."""
        if self._way(run, run.num_bytes).algorithm is not Algorithm.MPI:
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
        self._alone("reduce", BufferRun(buffer, lo, hi, root))

    def broadcast(self, buffer: Array, lo: int, hi: int, root: int) -> None:
        """Overwrite a run of an exchange buffer with one rank's."""
        self._alone("broadcast", BufferRun(buffer, lo, hi, root))

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
            self._alone(name, bucket[0])
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

    def forget(self, buffers: Sequence[Array]) -> None:
        """Some exchange buffers are gone: let go of them, and of the same keys' of the other ranks."""
        gone = {id(buffer) for buffer in buffers}
        self._peers = {each: peers for each, peers in self._peers.items() if each not in gone}
        self._calls.forget(gone)
        self._phases.forget(gone)

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
        plan = self._choose().plan(num_bytes, shared=True)
        if plan.algorithm is not Algorithm.SHM or self._reaches(run.buffer):
            return plan  # the same one, reached or not, unless it goes through shared memory
        return self._choose().plan(num_bytes, shared=False)

    def _by_plan(self, name: Name, bucket: Sequence[BufferRun]) -> Iterator[tuple[Plan, list[BufferRun]]]:
        """Put together the runs that are carried out at once, in the order of the first of each."""
        same_bits = name == "broadcast" or self.size <= PAIR  # whatever lies beside a run
        alone = len(self._choose().hosts) == 1
        num_bytes = sum(run.num_bytes for run in bucket)
        alike: dict[Hashable, tuple[Plan, list[BufferRun]]] = {}
        for index, run in enumerate(bucket):
            plan = self._way(run, num_bytes if same_bits else run.num_bytes)
            key: Hashable = index
            if plan.algorithm is Algorithm.SHM:
                key = "" if alone else (plan, run.root)
            elif same_bits and run.num_bytes <= STAGED_BYTES:
                key = (plan, run.buffer.dtype, run.root)
            alike.setdefault(key, (plan, []))[1].append(run)
        return iter(alike.values())

    def _reaches(self, buffer: Array) -> bool:
        """Tell whether all ranks reach what is to be summed with a buffer in the memory of their host."""
        return bool(self._known_peers(buffer).all)

    def _known_peers(self, buffer: Array) -> _Peers:
        return self._peers.get(id(buffer)) or self._find_peers(buffer)

    def _find_peers(self, buffer: Array) -> _Peers:
        """Tell each other where a buffer lies; once for each key, in the same order on all ranks."""
        peers = self._peers[id(buffer)] = _Peers(buffer, self._map_peers(buffer))
        return peers

    def _map_peers(self, buffer: Array) -> dict[int, Array]:
        hosts = self._choose().hosts
        if len(hosts) > 1 and accumulator(buffer.dtype) != buffer.dtype:
            return {}  # what is to be rounded once cannot lie there between two hosts' sums
        views = self._driver.map_peers(hosts, self._directory, self._locate(buffer))
        arrays = {rank: np.frombuffer(view, buffer.dtype) for rank, view in views.items()}
        if arrays:
            return {**arrays, self.rank: buffer}
        if self._algorithm is Algorithm.SHM and not self._warned:
            self._warned = True
            text = (
                "collective shm: some buffers cannot be reached by all ranks, and are summed by MPI instead"
            )
            log.warning("%s (the first has %d %s elements)", text, buffer.size, buffer.dtype)
        return {}

    # --- carrying out ---

    def _alone(self, name: Name, run: BufferRun) -> None:
        """Carry out one run; for small ones to prepare the call takes longer than MPI."""
        known = self._calls.known.get((name, id(run.buffer), run.lo, run.hi, run.root))
        (known or self._calls.add(name, run))()

    def _find_call(self, name: Name, run: BufferRun) -> Callable[[], None]:
        return self._call(self._way(run, run.num_bytes), name, run)

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
        if len(hosts) == 1:
            return partial(self._meet_between, [self._phases_of(name, run) for run in runs])
        make, levels = self._ways[name].hierarchical, Levels(hosts, plan.doubling)
        segment_bytes = plan.segment_bytes * min(map(len, hosts))
        shared: list[Shared] = [
            (array, peers, (*run.arguments, levels))
            for run in runs
            for array, peers in self._segments(run, segment_bytes)
        ]
        if len(runs) > 1:
            return partial(self._driver.run_together, make, shared, _SUM)
        if len(shared) > 1:
            return partial(self._one_by_one, make, shared)
        [(array, peers, arguments)] = shared
        return partial(self._run, make, array, peers, *arguments)

    def _meet_between(self, several: Sequence[Phases]) -> None:
        """Carry out runs side by side, phase by phase; all ranks wait for each other between."""
        for number, together in enumerate(zip(*several)):
            if number:
                self._driver.communicator.barrier(self._everyone)
            for calls in together:
                for call in calls:
                    call()

    def _phases_of(self, name: Name, run: BufferRun) -> Phases:
        known = self._phases.known.get((name, id(run.buffer), run.lo, run.hi, run.root))
        return known or self._phases.add(name, run)

    def _find_phases(self, name: Name, run: BufferRun) -> Phases:
        peers = self._known_peers(run.buffer).elements(run.lo, run.hi)
        return self._driver.phases(self._ways[name].shared, run.elements, peers, _SUM, *run.arguments)

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
