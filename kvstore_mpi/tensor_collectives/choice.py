"""Which algorithm carries out a collective, in how many rings and in which segments.

Pure: what is chosen follows from a profile, the size and the place alone, so that all ranks choose alike,
every time.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.tensor_collectives import hierarchical, rings
from kvstore_mpi.tensor_collectives import hosts as within_hosts
from kvstore_mpi.tensor_collectives.cost import predict
from kvstore_mpi.tensor_collectives.steps import Program, Range, in_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.tensor_collectives.profile import Profile

SEGMENT_BYTES = 4 << 20
"""Of a large vector so much goes around a ring at once, if nothing else is chosen: what is received is then
added while it is in the cache."""

_SEGMENTS_BYTES = (1 << 20, SEGMENT_BYTES, 16 << 20)
_NUM_RINGS = (1, 2)
_ITEM_BYTES = 4
"""Predictions count in elements of float32; for others the time per byte hardly differs."""

_ANEW = 3
"""A step of arrays that lie elsewhere takes three times what a profile says of one that is prepared: what
there is to do is found out anew. With it one vector goes through shared memory from 62 KB on (21.8 us, by
MPI 25.2; 32 KB 22.6 and 20.5), two from 16 KB on (19.6 and 22.5), on an AMD EPYC with MPICH."""

_MARGIN = 0.9
"""What is more complicated must promise to take a tenth less time; predictions are not better than that."""

PAIR = 2
"""Ranks, or hosts, of which the sum is the same in either order. Among more ranks, all sums go through
shared memory where there is any: MPI may add in an order that depends on what a number lies beside, so that
small keys could not be put together without changing bits."""

SMALL_BYTES = 16 << 10
"""Up to here few messages between hosts are worth more than few bytes."""


class Algorithm(enum.Enum):
    """A way to reduce over ranks; the values are what ``--collective`` takes."""

    RING = "ring"
    MULTIRING = "multiring"
    SHM = "shm"
    MPI = "mpi"
    AUTO = "auto"


class Plan(NamedTuple):
    """How a collective is carried out.

    Attributes:
        algorithm: ``RING``, ``SHM``, or ``MPI`` for what the communicator has itself. ``SHM`` on several
            hosts is the hierarchical one: shared memory within them, rings between them.
        num_rings: With ``RING``, over how many.
        segment_bytes: How much goes around a ring at once.
        doubling: With ``SHM`` on several hosts, recursive doubling between them instead of rings.
    """

    algorithm: Algorithm
    num_rings: int = 1
    segment_bytes: int = SEGMENT_BYTES
    doubling: bool = False


_FIXED = {
    Algorithm.RING: Plan(Algorithm.RING),
    Algorithm.MULTIRING: Plan(Algorithm.RING, num_rings=2),
    Algorithm.MPI: Plan(Algorithm.MPI),
}


class Chooser:
    """Chooses for ranks that reduce together; the same sizes come again and again.

    Attributes:
        hosts: The ranks of each host.
        same_bits: In shared memory a sum has the same bits whatever lies beside it.
        shares_hosts: Some ranks share a host.
    """

    def __init__(
        self,
        wanted: Algorithm,
        profile: Profile,
        hosts: Sequence[Sequence[int]],
        *,
        buckets: bool = True,
    ) -> None:
        """Choose among what the user wants.

        Args:
            wanted: One algorithm, or ``AUTO``.
            profile: What this machine takes; the same on all ranks.
            hosts: The ranks of each host.
            buckets: Runs may be carried out together, which must change no bit of them: more than
                ``PAIR`` ranks then add in shared memory wherever that is possible.
        """
        self._buckets = buckets
        self._wanted = wanted
        self._profile = profile
        self.hosts = tuple(map(tuple, hosts))
        self.same_bits = len(hosts) <= PAIR
        self.shares_hosts = any(len(ranks) > 1 for ranks in hosts)
        self._ranks = sum(map(len, hosts))
        self._known: dict[tuple[int, bool, bool, int], Plan] = {}

    def plan(self, num_bytes: int, *, shared: bool, library: bool = True, copies: int = 0) -> Plan:
        """Return how a run of a buffer is reduced; all ranks must come to the same.

        Shared memory gives way to MPI where there is none: types that MXNet keeps in memory of its own,
        say.

        Args:
            num_bytes: Size of the run.
            shared: The ranks of each host can reach each other's buffers of this key.
            library: MPI can do it itself; ``AUTO`` takes something else where it cannot.
            copies: How often the whole is copied besides if it goes through shared memory, because it lies
                elsewhere.
        """
        key = (num_bytes, shared, library, copies)
        if key not in self._known:
            possible = shared and self.shares_hosts
            self._known[key] = self._choose(num_bytes, possible=possible, library=library, copies=copies)
        return self._known[key]

    def may_share(self, num_bytes: int, *, library: bool = True, copies: int = 0) -> bool:
        """Return whether it makes a difference if the ranks can reach each other's buffers."""
        plan = self.plan(num_bytes, shared=True, library=library, copies=copies)
        return plan.algorithm is Algorithm.SHM

    def _choose(self, num_bytes: int, *, possible: bool, library: bool, copies: int) -> Plan:
        if self._wanted is Algorithm.AUTO:
            return self._fastest(num_bytes, possible=possible, library=library, copies=copies)
        if self._wanted is Algorithm.SHM:
            return self._shared(num_bytes) if possible else Plan(Algorithm.MPI)
        return _FIXED[self._wanted]

    def _fastest(self, num_bytes: int, *, possible: bool, library: bool, copies: int) -> Plan:
        """Return the plan with the least predicted time; what is simpler need not be the fastest by far."""
        # A profile, which is of one host, tells nothing of several: two levels send the least between them.
        if possible and self._ranks > PAIR and (self._buckets or len(self.hosts) > 1):
            return self._shared(num_bytes)
        seconds = partial(self.seconds, num_bytes=num_bytes, copies=copies)
        shared = [self._shared(num_bytes)] if possible else []
        simple = ([Plan(Algorithm.MPI)] if library else []) + ([] if copies else shared)
        around = [
            min((Plan(Algorithm.RING, num_rings, each) for each in _segments(num_bytes)), key=seconds)
            for num_rings in _NUM_RINGS
        ]
        best = min(simple or around[:1], key=seconds)
        for plan in (*shared, *around):
            if seconds(plan) < seconds(best) * _MARGIN:
                best = plan
        return best

    def _shared(self, num_bytes: int) -> Plan:
        return Plan(Algorithm.SHM, doubling=len(self.hosts) > 1 and num_bytes <= SMALL_BYTES)

    def seconds(self, plan: Plan, num_bytes: int, copies: int = 0) -> float:
        """Predict what an allreduce takes; with ``copies`` as for ``plan``."""
        # What lies elsewhere is in no cache, whoever reads it first: who copies it, MPI, or a ring.
        a_read = self._profile.memory.gamma * num_bytes if copies else 0.0
        if plan.algorithm is Algorithm.MPI:
            alone = self._ranks == 1
            return 0.0 if alone else a_read + self._profile.library_seconds(num_bytes, self._ranks)
        everyone = range(self._ranks)
        extent = (0, num_bytes // _ITEM_BYTES)
        if plan.algorithm is Algorithm.SHM:
            program = in_place(self._through_shared_memory(extent, plan))
            model = self._profile.model(num_bytes)
            if copies:
                model = model._replace(overhead=_ANEW * model.overhead)
            # A copy is started and waited for, and takes as long as adding what is there.
            return copies * (2 * model.overhead + a_read) + predict(program, _ITEM_BYTES, model)
        # Between ranks the whole buffer moves, but what is added has just come and is of a segment's size.
        model = self._profile.model(num_bytes)
        whole, rest = divmod(num_bytes, plan.segment_bytes)
        seconds = a_read
        for times, size in ((whole, plan.segment_bytes), (1, rest)):
            if times and size:
                program = rings.allreduce(everyone, 0, (0, size // _ITEM_BYTES), plan.num_rings)
                costs = model._replace(gamma=self._profile.model(size).gamma)
                seconds += times * predict(in_place(program), _ITEM_BYTES, costs)
        return seconds

    def _through_shared_memory(self, extent: Range, plan: Plan) -> Program:
        """Return what rank 0 does."""
        if len(self.hosts) == 1:
            return within_hosts.shared_memory(self.hosts[0], 0, extent)
        levels = hierarchical.Levels(self.hosts, plan.doubling)
        return hierarchical.allreduce(range(self._ranks), 0, extent, levels)


def _segments(num_bytes: int) -> list[int]:
    """Return the sizes in which a vector may go around; of those that do not cut it the smallest."""
    useful = sum(each < num_bytes for each in _SEGMENTS_BYTES) + 1
    return list(_SEGMENTS_BYTES[:useful])
