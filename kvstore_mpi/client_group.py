"""The ranks of one client: sums and spreads parts of exchange buffers, in the way that suits.

Used by the MPI thread alone, like the communicator that it owns. It knows nothing of keys or of why.
"""

from __future__ import annotations

import logging
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Hashable,
    Iterator,
    List,
    Literal,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import msgspec
import numpy as np

from .tensor_collectives import hosts, rings, trees
from .tensor_collectives.choice import PAIR, SHARED_FROM_BYTES, Algorithm, choose
from .tensor_collectives.runner import Make, Runner
from .tensor_collectives.tensor import OPERATIONS, accumulator
from .transport.shared_memory import Directory, Place

if TYPE_CHECKING:
    from .interfaces import Communicator

Array = np.ndarray[Any, Any]
Locate = Callable[[Array], "Place | None"]

RING_BYTES = 4 << 20
"""Of a large vector so much goes around at once: what is received is then added while it is in the
cache."""

STAGED_BYTES = 64 << 10
"""Up to here a piece is copied to others of its bucket and back, to be one call with them."""

log = logging.getLogger("kvstore_mpi.collectives")

_SUM = OPERATIONS["sum"]


class Piece(NamedTuple):
    """A part of an exchange buffer, on which a collective is carried out.

    Attributes:
        buffer: The exchange buffer.
        lo: First element.
        hi: End of the elements.
        root: Who gets the sum, or has the value; ``None`` for an allreduce.
        job: The caller's.
    """

    buffer: Array
    lo: int
    hi: int
    root: int | None = None
    job: Any = None

    @property
    def part(self) -> Array:
        """The elements."""
        return self.buffer[self.lo : self.hi]

    @property
    def arguments(self) -> Tuple[int, ...]:
        """What the collective is told besides."""
        return () if self.root is None else (self.root,)


class _Peers(NamedTuple):
    """An exchange buffer, and the same key's buffers of all ranks if they can be reached from here."""

    buffer: Array
    all: Dict[int, Array]

    def parts(self, lo: int, hi: int) -> Dict[int, Array]:
        """Return the same elements of all of them."""
        return {rank: array[lo:hi] for rank, array in self.all.items()}


class _Ways(NamedTuple):
    """How one collective is carried out: by MPI, in shared memory, around rings or over a tree."""

    mpi: Callable[..., None]
    shared: Make
    rings: Optional[Make]


Name = Literal["allreduce", "reduce", "broadcast"]


class ClientGroup:
    """Collectives of one client."""

    def __init__(
        self,
        communicator: Communicator,
        *,
        locate: Locate = lambda _buffer: None,
        algorithm: Algorithm = Algorithm.AUTO,
    ) -> None:
        """Take ownership of a communicator.

        Args:
            communicator: The ranks of the client.
            locate: Where an exchange buffer lies, if other processes of this host can map it.
            algorithm: Which way to take; ``AUTO`` decides by size and place.
        """
        self.rank = communicator.rank
        self.size = communicator.size
        self._communicator = communicator
        self._locate = locate
        self._algorithm = algorithm
        self._directory = Directory()
        self._hosts: List[List[int]] = []
        self._peers: Dict[int, _Peers] = {}
        self._runner = Runner(communicator)
        self._stages: Dict[np.dtype[Any], Array] = {}
        self._warned = False
        self._ways: Dict[Name, _Ways] = {
            "allreduce": _Ways(communicator.allreduce, hosts.shared_memory, rings.allreduce),
            "reduce": _Ways(communicator.reduce, hosts.shared_memory_reduce, rings.reduce),
            "broadcast": _Ways(communicator.broadcast, hosts.shared_memory_broadcast, None),
        }

    def shares(self, buffer: Array) -> bool:
        """Tell whether parts of a buffer that are large enough are reduced in shared memory."""
        if self._algorithm not in (Algorithm.AUTO, Algorithm.SHM) or not buffer.size:
            return False
        return bool(self._known_peers(buffer).all) and len(self._hosts) == 1

    def allreduce(self, buffer: Array, lo: int, hi: int) -> None:
        """Sum a part of an exchange buffer over all ranks, in place; all get the same bits."""
        self._alone("allreduce", Piece(buffer, lo, hi))

    def reduce(self, buffer: Array, lo: int, hi: int, root: int) -> None:
        """Sum a part of an exchange buffer into one rank's; on the others it is undefined afterwards."""
        self._alone("reduce", Piece(buffer, lo, hi, root))

    def broadcast(self, buffer: Array, lo: int, hi: int, root: int) -> None:
        """Overwrite a part of an exchange buffer with one rank's."""
        self._alone("broadcast", Piece(buffer, lo, hi, root))

    def agree(self, number: int) -> int:
        """Return the least of all ranks' numbers."""
        return self._communicator.minimum(number)

    def carry_out(self, name: Name, bucket: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
        """Do what the method of that name does, on several pieces; yield those that have ended, at once.

        What is quicker together is carried out together. That changes no bit of the results: among two
        ranks, and in shared memory, a sum does not depend on what is beside it; elsewhere sums are formed
        one by one.

        Args:
            name: The collective.
            bucket: The pieces, the same on all ranks.
        """
        if len(bucket) == 1:
            self._alone(name, bucket[0])
            yield bucket
            return
        ways = self._ways[name]
        for algorithm, pieces in self._bundles(name, bucket):
            if len(pieces) == 1:
                self._by(algorithm, ways, pieces[0])
            elif algorithm is Algorithm.SHM:
                shared = [
                    (piece.part, self._known_peers(piece.buffer).parts(piece.lo, piece.hi), piece.arguments)
                    for piece in pieces
                ]
                self._runner.run_together(ways.shared, shared, _SUM)
            else:
                self._staged(algorithm, name, pieces)
            yield pieces

    def close(self) -> None:
        """Free the communicator."""
        self._communicator.close()

    # --- which way ---

    def _way(self, piece: Piece, num_bytes: int) -> Algorithm:
        """Return the algorithm for a piece that is carried out among so many bytes."""
        if self._algorithm is Algorithm.MPI or piece.lo == piece.hi:
            return Algorithm.MPI
        small = num_bytes < SHARED_FROM_BYTES and self.size <= PAIR
        if self._algorithm is Algorithm.AUTO and small:
            return Algorithm.MPI  # whoever can reach whom
        shared = bool(self._known_peers(piece.buffer).all)
        return choose(self._algorithm, num_bytes, self._hosts, shared=shared)

    def _bundles(self, name: Name, bucket: Sequence[Piece]) -> Iterator[Tuple[Algorithm, List[Piece]]]:
        """Put together what is carried out at once, in the order of the first piece of each."""
        same_bits = name == "broadcast" or self.size <= PAIR  # whatever lies beside a piece
        num_bytes = sum(piece.part.nbytes for piece in bucket)
        bundles: Dict[Hashable, Tuple[Algorithm, List[Piece]]] = {}
        for index, piece in enumerate(bucket):
            own_bytes = piece.part.nbytes
            algorithm = self._way(piece, num_bytes if same_bits else own_bytes)
            key: Hashable = index
            if algorithm is Algorithm.SHM:
                key = algorithm
            elif same_bits and own_bytes <= STAGED_BYTES:
                key = (algorithm, piece.buffer.dtype, piece.root)
            bundles.setdefault(key, (algorithm, []))[1].append(piece)
        return iter(bundles.values())

    def _known_peers(self, buffer: Array) -> _Peers:
        return self._peers.get(id(buffer)) or self._meet(buffer)

    def _meet(self, buffer: Array) -> _Peers:
        """Tell each other where a buffer lies; once for each key, in the same order on all ranks."""
        if not self._hosts:
            self._hosts = self._communicator.hosts()
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

    def _alone(self, name: Name, piece: Piece) -> None:
        self._by(self._way(piece, piece.part.nbytes), self._ways[name], piece)

    def _by(self, algorithm: Algorithm, ways: _Ways, piece: Piece) -> None:
        buffer, lo, hi, _, _ = piece
        if algorithm is Algorithm.SHM:
            self._run(ways.shared, piece.part, self._known_peers(buffer).parts(lo, hi), *piece.arguments)
        elif algorithm is Algorithm.MPI:
            ways.mpi(piece.part, *piece.arguments)
        elif ways.rings is not None:
            self._around(ways.rings, piece.part, algorithm, *piece.arguments)
        else:
            self._run(trees.broadcast, piece.part, {}, *piece.arguments)

    def _staged(self, algorithm: Algorithm, name: Name, pieces: Sequence[Piece]) -> None:
        """Copy pieces of one type to memory of their own, where they are one, and back."""
        parts = [piece.part for piece in pieces]
        root, dtype, size = pieces[0].root, parts[0].dtype, sum(part.size for part in parts)
        stage = self._stages.get(dtype)
        if stage is None or stage.size < size:
            stage = self._stages[dtype] = np.empty(size, dtype)
        if name != "broadcast" or root == self.rank:
            np.concatenate(parts, out=stage[:size])
        self._by(algorithm, self._ways[name], Piece(stage, 0, size, root))
        if name == "allreduce" or (root == self.rank) is (name == "reduce"):
            start = 0
            for part in parts:
                part[...] = stage[start : start + part.size]
                start += part.size

    def _around(self, make: Make, part: Array, algorithm: Algorithm, *root: int) -> None:
        """Send a part around one ring or two, some megabytes at a time."""
        wide = accumulator(part.dtype)
        step = RING_BYTES // wide.itemsize
        num_rings = 2 if algorithm is Algorithm.MULTIRING else 1
        for lo in range(0, part.size, step):
            piece = part[lo : lo + step]
            work = piece if wide == piece.dtype else piece.astype(wide)
            self._run(make, work, {}, *root, num_rings)
            if work is not piece:
                np.copyto(piece, work, casting="same_kind")

    def _run(self, make: Make, part: Array, peers: Dict[int, Array], *arguments: int) -> None:
        self._runner.run(make, part, None, _SUM, *arguments, peers=peers)
