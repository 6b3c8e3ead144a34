"""Rows of a table in memory that the ranks of a host share: each writes its own, and all read them.

It goes in *rounds*: every rank writes blocks, one for each table, or none; all wait for each other; then
each reads what it needs of the others' blocks. Every rank has two spaces, used in turn: once all have come
to a round, all have read what they needed of the round before, and its space may be written for the next.

A space that is too small is replaced by a larger one. That is seen after the wait by all ranks alike, who
map it and wait once more; afterwards nobody has to find it any more, and no descriptor is held.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvstore_mpi.errors import PeerError
from kvstore_mpi.tensor_collectives.row_blocks import ALIGNMENT, Batch
from kvstore_mpi.transport.shared_memory import Arena, Directory, Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.tensor_collectives.driver import Driver
    from kvstore_mpi.tensor_collectives.row_blocks import Block, Share, Table

Array = np.ndarray[Any, Any]

SPACES = 2

LEAST_BYTES = 1 << 20
"""Size of the smallest space."""

_NUMBERS = np.dtype([("generation", "i8"), ("place_bytes", "i8")])
_SHAPE_BYTES = 16
_NOTE_BYTES = 1024
"""Of what a rank notes of a space for the others: its generation, and where it lies."""


class RowMemory:
    """What the ranks of one host share, as one of them sees it; blocking, for one thread."""

    def __init__(self, communicator: Communicator, notes: Mapping[int, Array]) -> None:
        """Use what ``connect`` has found out.

        Args:
            communicator: The ranks; owned by somebody else.
            notes: Bytes that all ranks of the host reach, of each of these, in their order.
        """
        self._communicator = communicator
        self._host = tuple(notes)
        self._notes = {rank: note.reshape(SPACES, _NOTE_BYTES) for rank, note in notes.items()}
        self._spaces: dict[tuple[int, int], Array] = {}
        self._seen = dict.fromkeys(((rank, space) for rank in notes for space in range(SPACES)), 0)
        self._arena: Arena | None = None  # of a space that not all have mapped yet
        self._current = 0

    # --- a round ---

    def write(self, tables: Sequence[Table], shares: Sequence[Sequence[Share]]) -> None:
        """Write the blocks of this rank for the round that comes: what there is of each table."""
        shapes = np.array([(len(each), sum(share.size for share in each)) for each in shares], np.int64)
        batch = Batch(tables, shapes.tolist())
        blocks_at = self._blocks_at(len(tables))
        num_bytes = blocks_at + batch.size
        here = self._communicator.rank, self._current
        if here not in self._spaces or self._spaces[here].size < num_bytes:
            self._grow(num_bytes)
        self._spaces[here][: shapes.nbytes] = shapes.reshape(-1).view(np.uint8)
        for block, each in zip(batch.over(self._spaces[here][blocks_at:]), shares):
            block.write(each)

    def meet(self) -> None:
        """Wait until all ranks of the host have come here."""
        self._communicator.barrier(self._host)
        space = self._current
        grown = [r for r in self._host if self._numbers(r, space)["generation"] != self._seen[r, space]]
        for rank in grown:
            self._map(rank)
        if grown:
            self._communicator.barrier(self._host)
            if self._arena is not None:
                self._arena.close()
                self._arena = None
        self._current = (space + 1) % SPACES

    def read(self, tables: Sequence[Table], rank: int) -> list[Block]:
        """Return the blocks that a rank has written for this round, as they lie there.

        They stay until this rank waits in the next round. Who has written nothing must not be asked.
        """
        memory = self._spaces[rank, (self._current - 1) % SPACES]
        shapes = memory[: len(tables) * _SHAPE_BYTES].view(np.int64).reshape(-1, 2)
        return Batch(tables, shapes.tolist()).over(memory[self._blocks_at(len(tables)) :])

    @staticmethod
    def _blocks_at(num_tables: int) -> int:
        """Return where blocks begin, behind their shapes."""
        return -(-num_tables * _SHAPE_BYTES // ALIGNMENT) * ALIGNMENT

    # --- spaces ---

    def _numbers(self, rank: int, space: int) -> Any:
        return self._notes[rank][space, : _NUMBERS.itemsize].view(_NUMBERS)[0]

    def _grow(self, num_bytes: int) -> None:
        """Replace the own space by one with room for more than is needed now."""
        rank, space = self._communicator.rank, self._current
        self._arena = Arena()
        memory = self._arena.allocate(max(LEAST_BYTES, num_bytes + num_bytes // 2), np.dtype(np.uint8))
        place = np.frombuffer(msgspec.msgpack.encode(self._arena.place(memory)), np.uint8)
        self._spaces[rank, space] = memory
        self._notes[rank][space, _NUMBERS.itemsize :][: place.size] = place
        numbers = self._numbers(rank, space)
        numbers["place_bytes"] = place.size
        numbers["generation"] += 1

    def _map(self, rank: int) -> None:
        """Map the new space of a rank."""
        space = self._current
        numbers = self._numbers(rank, space)
        self._seen[rank, space] = int(numbers["generation"])
        if rank == self._communicator.rank:
            return
        told = self._notes[rank][space, _NUMBERS.itemsize :][: numbers["place_bytes"]].tobytes()
        view = Directory().open(Place(*msgspec.msgpack.decode(told)))
        if view is None:
            raise PeerError(
                f"rank {rank} of this client has memory for rows of tables that cannot be mapped here; "
                "look at the limits on memory and open files of this host, or choose --collective mpi"
            )
        self._spaces[rank, space] = np.frombuffer(view, np.uint8)


def connect(driver: Driver, hosts: Sequence[Sequence[int]]) -> RowMemory | None:
    """Return what ranks share on this host, or nothing if any of any host cannot; all ranks call it."""
    arena, notes = Arena(), np.empty(0, np.uint8)
    # Who is refused memory says so like all others, which then send messages, too.
    with contextlib.suppress(OSError):
        if Arena.available():
            notes = arena.allocate(SPACES * _NOTE_BYTES, np.dtype(np.uint8))  # all zero
    reached = driver.map_peers(hosts, Directory(), arena.place(notes))
    arena.close()
    views = {rank: np.frombuffer(view, np.uint8) for rank, view in reached.items()}
    return RowMemory(driver.communicator, views) if views else None
