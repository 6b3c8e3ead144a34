"""The ranks of one client: sum rows of a table, and spread them.

The MPI thread alone uses it. On two levels: what the ranks of one host have is summed in memory that they
share, and messages go between hosts; where no memory is shared, every rank is a host by itself.
Sums are made in the order of ranks on a host, then in that of hosts, whatever way the rows take, so that
all ways lead to the same bits.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.records import Rows
from kvstore_mpi.tensor_collectives import row_cuts, row_memory
from kvstore_mpi.tensor_collectives.row_blocks import Block, PartialSums, Share, id_type, no_rows, row_bytes
from kvstore_mpi.tensor_collectives.row_messages import RowMessages
from kvstore_mpi.values.rows import sum_type

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from kvstore_mpi.tensor_collectives.driver import Driver
    from kvstore_mpi.tensor_collectives.row_blocks import DealtTable, Table
    from kvstore_mpi.tensor_collectives.row_memory import RowMemory
    from kvstore_mpi.values.rows import RowMerger

Array = np.ndarray[Any, Any]


class _Places(NamedTuple):
    """Where the ranks are.

    Attributes:
        hosts: The ranks of each host, in order.
        own: Those of this rank's.
        memory: What the ranks of a host share, if it has several.
    """

    hosts: tuple[tuple[int, ...], ...]
    own: tuple[int, ...]
    memory: RowMemory | None

    def agent(self, host: tuple[int, ...], owner: int) -> int:
        """Return the rank that sums what a host has for an owner of pieces."""
        return owner if owner in host else host[owner % len(host)]


class RowCollectives:
    """Sums and spreads rows, blocking; all ranks call the same methods in the same order.

    What is given must not change until a method returns; what it returns belongs to the caller.
    """

    def __init__(self, driver: Driver, merger: RowMerger, *, shares: bool = True) -> None:
        """Use the driver of the ranks and a merger, which nobody else uses meanwhile.

        Args:
            driver: Owned by somebody else.
            merger: Sums rows.
            shares: Ranks of a host may share memory.
        """
        self._driver = driver
        self._rank, self._size = driver.rank, driver.size
        self._messages = RowMessages(driver.communicator)
        self._merger = merger
        self._shares = shares
        self._known_places: _Places | None = None
        self._overlap: dict[Hashable, float] = {}

    @property
    def _places(self) -> _Places:
        """Where the ranks are; the first time all of them find that out together."""
        if self._known_places is None:
            self._known_places = self._find_places()
        return self._known_places

    def _find_places(self) -> _Places:
        hosts = self._driver.communicator.hosts()
        together = self._shares and any(len(host) > 1 for host in hosts)
        memory = row_memory.connect(self._driver, hosts) if together else None
        if memory is None:
            hosts = [[rank] for rank in range(self._size)]
        [own] = [host for host in hosts if self._rank in host]
        return _Places(tuple(map(tuple, hosts)), tuple(own), memory)

    # --- sums for the ranks that push ---

    def reduce(self, rows: Rows, table: DealtTable, owners: Sequence[int]) -> Rows:
        """Sum the rows of all ranks; return those of the pieces that this rank owns.

        Args:
            rows: Of this rank; they are what is returned if there is no other.
            table: What they are rows of.
            owners: The rank that gets the rows of each piece.
        """
        if self._size == 1:
            return rows
        shares = _deal(rows, table, owners)
        memory = self._places.memory
        if memory is None:
            parts = {owner: [share.taken()] for owner, share in shares.items()}
        else:
            parts = self._share(memory, shares, table)
        if len(self._places.hosts) > 1:
            parts = self._gather(parts, owners, table)
        return self._sum(parts[self._rank], table) if self._rank in parts else no_rows(table)

    def _share(self, memory: RowMemory, shares: Mapping[int, Share], table: Table) -> dict[int, list[Rows]]:
        """Return what the ranks of this host have for those owners for whom this one sums."""
        _, own, _ = self._places
        mine = {owner: self._places.agent(own, owner) == self._rank for owner in shares}
        nothing = Share(no_rows(table))
        memory.write(table, [nothing if mine[owner] else share for owner, share in shares.items()])
        memory.meet()
        return {
            owner: [
                share.taken() if rank == self._rank else memory.read(table, rank).part(index)
                for rank in own
            ]
            for index, (owner, share) in enumerate(shares.items())
            if mine[owner]
        }

    def _gather(
        self, parts: Mapping[int, list[Rows]], owners: Sequence[int], table: Table
    ) -> dict[int, list[Rows]]:
        """Send what is summed of this host to the owners; return what hosts have for this rank, if any."""
        hosts, own, _ = self._places
        partial = self._partial(table)
        sums = {owner: self._sum_of_host(each, partial) for owner, each in parts.items()}
        mine = sums.pop(self._rank, None)
        wanted = self._rank in owners
        agents = [self._places.agent(host, self._rank) for host in hosts if host != own] if wanted else []
        came = self._swap(sums, agents, partial)
        if mine is None:
            return {}
        return {
            self._rank: [
                mine if host == own else came[self._places.agent(host, self._rank)] for host in hosts
            ]
        }

    # --- sums for all ranks ---

    def allreduce(self, rows: Rows, table: Table, key: Hashable) -> Rows:
        """Sum the rows of all ranks; return the union, which has the same bits on all.

        Args:
            rows: Of this rank; they are what is returned if there is no other.
            table: What they are rows of.
            key: Names it; the overlap of the hosts' ids is taken to be about that of the last time.
        """
        if self._size == 1:
            return rows
        hosts, own, memory = self._places
        if memory is None:
            return self._allreduce_between(rows, table, key)
        memory.write(table, [Share(rows)])
        memory.meet()
        if len(hosts) == 1:
            return self._sum(self._written(memory, rows, table), table)
        leader, union = own[0], no_rows(table)
        if self._rank == leader:
            partial = self._sum(self._written(memory, rows, table), self._partial(table))
            union = self._allreduce_between(partial, table, key)
            memory.write(table, [Share(union)])
        memory.meet()
        return union if self._rank == leader else memory.read(table, leader).copy().part(0)

    def _written(self, memory: RowMemory, rows: Rows, table: Table) -> list[Rows]:
        """Return the rows of all ranks of this host."""
        # Each rank sums them all where they lie. If each summed a range of the ids and wrote that, to be
        # copied by all, 8 ranks would need 0.87 of the processor time for 20,000 rows of 64 elements, but
        # 1.7 times as much for 2,000 rows, and two ranks more in any case.
        ranks = self._places.own
        return [rows if rank == self._rank else memory.read(table, rank).part(0) for rank in ranks]

    def _allreduce_between(self, rows: Rows, table: Table, key: Hashable) -> Rows:
        """Sum the rows of the first rank of each host; all of these call it."""
        leaders = [host[0] for host in self._places.hosts]
        others = [rank for rank in leaders if rank != self._rank]
        partial = self._partial(table)
        mine = row_cuts.sample(rows.ids, len(leaders))
        told = self._messages.tell(dict.fromkeys(others, mine), others, mine.size)
        samples = [told.get(rank, mine) for rank in leaders]
        num_rows = sum(int(each[0]) for each in samples)
        overlap = self._overlap.get(key, 1.0)
        if row_cuts.merges_first(num_rows, row_bytes(partial), len(leaders), overlap):
            parts = dict(zip(leaders, _ranges(rows, row_cuts.cuts(samples, table.num_rows))))
            own = parts.pop(self._rank)
            came = {**self._swap(parts, others, partial), self._rank: own}
            union = self._join_between(self._sum([came[rank] for rank in leaders], table), table)
        else:
            counts = {rank: int(told[rank][0]) for rank in others}
            came = {**self._messages.swap(dict.fromkeys(others, rows), counts, partial), self._rank: rows}
            union = self._sum([came[rank] for rank in leaders], table)
        if num_rows:
            self._overlap[key] = union.ids.size / num_rows
        return union

    def _join_between(self, part: Rows, table: Table) -> Rows:
        """Return what the first ranks of all hosts have, one behind the other."""
        leaders = [host[0] for host in self._places.hosts]
        others = [rank for rank in leaders if rank != self._rank]
        told = self._messages.tell(dict.fromkeys(others, _number(part)), others, 1)
        counts = {rank: int(told[rank][0]) if rank in told else part.ids.size for rank in leaders}
        num_rows = sum(counts.values())
        space = Rows(np.empty(num_rows, id_type(table)), np.empty((num_rows, table.width), table.dtype))
        self._messages.fill(dict.fromkeys(counts, part), counts, space, table)
        return Rows(space.ids.astype(np.int64), space.values)

    # --- spreading ---

    def broadcast(self, parts: Sequence[Rows] | None, table: Table, root: int) -> list[Rows]:
        """Return the root's parts on every rank.

        Args:
            parts: The root's, of any number; the root gets these back.
            table: What they are rows of.
            root: The rank that has them.
        """
        here = list(parts or ())
        if self._size == 1:
            return here
        hosts, _, memory = self._places
        if memory is None or len(hosts) > 1:
            return self._broadcast_between(here, table, root)
        if self._rank == root:
            memory.write(table, [Share(rows) for rows in here])
        memory.meet()
        return here if self._rank == root else memory.read(table, root).copy().parts()

    def _broadcast_between(self, parts: list[Rows], table: Table, root: int) -> list[Rows]:
        """Let the communicator do it, which knows hosts, too."""
        shape = np.array([len(parts), sum(rows.ids.size for rows in parts)], np.int64)
        self._messages.broadcast(shape, root)
        num_parts, num_rows = map(int, shape)
        num_bytes = Block.size(table, num_parts, num_rows)
        memory = self._messages.room(num_bytes) if self._rank == root else np.empty(num_bytes, np.uint8)
        block = Block.over(memory, table, num_parts, num_rows)
        if self._rank == root:
            block.write([Share(rows) for rows in parts])
        self._messages.broadcast(memory, root)
        return parts if self._rank == root else block.parts()

    def broadcast_value(self, value: Array, root: int) -> None:
        """Overwrite a whole table with the root's."""
        self._messages.broadcast(value.reshape(-1), root)

    # --- both ---

    def _partial(self, table: Table) -> Table:
        """Return what a host's sums are rows of, which are rounded when they are complete."""
        if self._places.memory is None:
            return table
        return PartialSums(table.num_rows, table.width, sum_type(table.dtype))

    def _sum_of_host(self, parts: Sequence[Rows], partial: Table) -> Rows:
        """Sum what the ranks of this host have; what is of one rank alone needs no sum."""
        return parts[0] if self._places.memory is None else self._sum(parts, partial)

    def _swap(self, parts: Mapping[int, Rows], sources: Sequence[int], table: Table) -> dict[int, Rows]:
        """Send rows to ranks that do not know how many, and return those of others."""
        told = self._messages.tell({rank: _number(part) for rank, part in parts.items()}, sources, 1)
        return self._messages.swap(parts, {rank: int(told[rank][0]) for rank in sources}, table)

    def _sum(self, parts: Sequence[Rows], table: Table) -> Rows:
        """Sum rows in the order in which they are given."""
        filled = [part for part in parts if part.ids.size]
        if not filled:
            return no_rows(table)
        if len(filled) == 1:
            # A sum of others begins with a zero, so that this does: -0.0 would become 0.0 or not, depending
            # on whether another rank has any rows within the same range.
            [(ids, values)] = filled
            return Rows(ids.copy(), (values + values.dtype.type(0)).astype(table.dtype, copy=False))
        return self._merger.merge(filled, table.num_rows, dtype=table.dtype, own=True)


def _deal(rows: Rows, table: DealtTable, owners: Sequence[int]) -> dict[int, Share]:
    """Return what there is for each owner of pieces."""
    receivers = sorted(set(owners))
    if len(receivers) == 1:
        return {receivers[0]: Share(rows)}
    # Numbers this short are sorted by their digits, four times faster than others.
    ranks = np.array(owners, np.uint16)[table.pieces_of(rows.ids)]
    order = np.argsort(ranks, kind="stable")
    bounds = np.searchsorted(ranks, [*receivers, receivers[-1] + 1], sorter=order).tolist()
    return {
        rank: Share(rows, order[lo:hi]) for rank, (lo, hi) in zip(receivers, itertools.pairwise(bounds))
    }


def _ranges(rows: Rows, starts: Array) -> list[Rows]:
    """Cut rows at ids."""
    bounds = np.searchsorted(rows.ids, starts).tolist()
    return [Rows(rows.ids[lo:hi], rows.values[lo:hi]) for lo, hi in itertools.pairwise(bounds)]


def _number(rows: Rows) -> Array:
    """Return what others are told of a part."""
    return np.array([rows.ids.size], np.int64)
