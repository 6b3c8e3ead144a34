"""The ranks of one client: sums and spreads parts of exchange buffers, in the way that suits.

Used by the MPI thread alone, like the communicator that it owns. It knows nothing of keys or of why.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Tuple

import msgspec
import numpy as np

from .tensor_collectives import hosts, rings, trees
from .tensor_collectives.choice import Algorithm, Chooser, Plan
from .tensor_collectives.profile import BUILT_IN, Profile
from .tensor_collectives.runner import Make, Runner
from .tensor_collectives.tensor import OPERATIONS, accumulator
from .transport.shared_memory import Directory, Place

if TYPE_CHECKING:
    from .interfaces import Communicator

Array = np.ndarray[Any, Any]
Locate = Callable[[Array], "Place | None"]

MOST_PREPARED = 4096
"""Parts of which it is kept how they are reduced; then it starts anew. Slices travel in runs that vary."""

log = logging.getLogger("kvstore_mpi.collectives")

_SUM = OPERATIONS["sum"]


class _Peers(NamedTuple):
    """An exchange buffer, and the same key's buffers of all ranks if they can be reached from here."""

    buffer: Array
    all: Dict[int, Array]


class _Ways(NamedTuple):
    """How one collective is carried out: by MPI, in shared memory, around rings or over a tree.

    Attributes:
        mpi: Makes the call from an array and a root, if there is one.
        shared: The program in shared memory.
        rings: That around rings; ``None`` for a tree.
    """

    mpi: Callable[..., Callable[[], None]]
    shared: Make
    rings: Optional[Make]


class ClientGroup:
    """Collectives of one client."""

    def __init__(
        self,
        communicator: Communicator,
        *,
        locate: Locate = lambda _buffer: None,
        algorithm: Algorithm = Algorithm.AUTO,
        profile: Profile = BUILT_IN,
    ) -> None:
        """Take ownership of a communicator.

        Args:
            communicator: The ranks of the client.
            locate: Where an exchange buffer lies, if other processes of this host can map it.
            algorithm: Which way to take; ``AUTO`` decides by size and place.
            profile: What ``AUTO`` goes by; must be the same on all ranks.
        """
        self.rank = communicator.rank
        self.size = communicator.size
        self._communicator = communicator
        self._locate = locate
        self._algorithm = algorithm
        self._directory = Directory()
        self._profile = profile
        self._chooser: Optional[Chooser] = None
        self._peers: Dict[int, _Peers] = {}
        self._runner = Runner(communicator)
        self._ways = {
            "allreduce": _Ways(communicator.prepare_allreduce, hosts.shared_memory, rings.allreduce),
            "reduce": _Ways(
                partial(partial, communicator.reduce), hosts.shared_memory_reduce, rings.reduce
            ),
            "broadcast": _Ways(
                partial(partial, communicator.broadcast), hosts.shared_memory_broadcast, None
            ),
        }
        self._prepared: Dict[Tuple[Any, ...], Callable[[], None]] = {}
        self._held: Dict[int, Array] = {}  # so that no other buffer gets the id of one that is known
        self._warned = False

    def shares(self, buffer: Array) -> bool:
        """Tell whether parts of a buffer that are large enough are reduced in shared memory."""
        if self._algorithm not in (Algorithm.AUTO, Algorithm.SHM) or not buffer.size:
            return False
        return self._choose().one_host and bool(self._known_peers(buffer).all)

    def allreduce(self, buffer: Array, lo: int, hi: int) -> None:
        """Sum a part of an exchange buffer over all ranks, in place; all get the same bits."""
        key = ("allreduce", id(buffer), lo, hi)
        call = self._prepared.get(key) or self._prepare(key, buffer)
        call()

    def reduce(self, buffer: Array, lo: int, hi: int, root: int) -> None:
        """Sum a part of an exchange buffer into one rank's; on the others it is undefined afterwards."""
        key = ("reduce", id(buffer), lo, hi, root)
        call = self._prepared.get(key) or self._prepare(key, buffer)
        call()

    def broadcast(self, buffer: Array, lo: int, hi: int, root: int) -> None:
        """Overwrite a part of an exchange buffer with one rank's."""
        key = ("broadcast", id(buffer), lo, hi, root)
        call = self._prepared.get(key) or self._prepare(key, buffer)
        call()

    def close(self) -> None:
        """Free the communicator."""
        self._communicator.close()

    # --- which way ---

    def _choose(self) -> Chooser:
        """Return what chooses; the first time all ranks find out together which host each is on."""
        if self._chooser is None:
            self._chooser = Chooser(self._algorithm, self._profile, self._communicator.hosts())
        return self._chooser

    def _way(self, buffer: Array, part: Array) -> tuple[Plan, Dict[int, Array]]:
        if self._algorithm is Algorithm.MPI or not part.size:
            return Plan(Algorithm.MPI), {}
        chooser = self._choose()
        if not chooser.may_share(part.nbytes):
            return chooser.plan(part.nbytes, shared=False), {}
        peers = self._known_peers(buffer).all
        return chooser.plan(part.nbytes, shared=bool(peers)), peers

    def _known_peers(self, buffer: Array) -> _Peers:
        return self._peers.get(id(buffer)) or self._meet(buffer)

    def _meet(self, buffer: Array) -> _Peers:
        """Tell each other where a buffer lies; once for each key, in the same order on all ranks."""
        place = self._locate(buffer)
        mine = msgspec.msgpack.encode(place)
        told = [self._communicator.broadcast_bytes(mine, rank) for rank in range(self.size)]
        places = [msgspec.msgpack.decode(each, type=Optional[Tuple[Any, ...]]) for each in told]
        views = [self._directory.open(Place(*each)) if each else None for each in places]
        agreed = np.array([all(view is not None for view in views)], np.int64)
        self._communicator.allreduce(agreed)  # what one cannot reach, none may use
        arrays = {}
        if agreed[0] == self.size:
            arrays = {rank: np.frombuffer(view, buffer.dtype) for rank, view in enumerate(views) if view}
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

    def _prepare(self, key: Tuple[Any, ...], buffer: Array) -> Callable[[], None]:
        """Make the call for a part of a buffer, and keep it: for small ones this takes longer than MPI."""
        what, _, lo, hi, *root = key
        if len(self._prepared) >= MOST_PREPARED:
            self._prepared.clear()
            self._held.clear()
        self._held[id(buffer)] = buffer
        call = self._prepared[key] = self._call(self._ways[what], buffer, lo, hi, *root)
        return call

    def _call(self, ways: _Ways, buffer: Array, lo: int, hi: int, *root: int) -> Callable[[], None]:
        part = buffer[lo:hi]
        plan, peers = self._way(buffer, part)
        if plan.algorithm is Algorithm.MPI:
            return ways.mpi(part, *root)
        if plan.algorithm is Algorithm.SHM:
            parts = {rank: array[lo:hi] for rank, array in peers.items()}
            return partial(self._run, ways.shared, part, parts, *root)
        if ways.rings is not None:
            return partial(self._around, ways.rings, part, plan, *root)
        return partial(self._run, trees.broadcast, part, {}, *root)

    def _around(self, make: Make, part: Array, plan: Plan, *root: int) -> None:
        """Send a part around rings, a segment at a time."""
        wide = accumulator(part.dtype)
        step = plan.segment_bytes // wide.itemsize
        for lo in range(0, part.size, step):
            piece = part[lo : lo + step]
            work = piece if wide == piece.dtype else piece.astype(wide)
            self._run(make, work, {}, *root, plan.num_rings)
            if work is not piece:
                np.copyto(piece, work, casting="same_kind")

    def _run(self, make: Make, part: Array, peers: Dict[int, Array], *arguments: int) -> None:
        self._runner.run(make, part, None, _SUM, *arguments, peers=peers)
