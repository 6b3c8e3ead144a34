"""The ranks of one client: sum rows of a table, and spread them.

The MPI thread alone uses it. On two levels: what the ranks of one host have is summed in memory that they
share, and messages go between hosts; where no memory is shared, every rank is a host by itself.
Sums are made in the order of ranks on a host, then in that of hosts, whatever way the rows take, so that
all ways lead to the same bits.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.records import Rows
from kvstore_mpi.tensor_collectives import row_memory
from kvstore_mpi.tensor_collectives.row_blocks import Batch, Share, no_rows
from kvstore_mpi.tensor_collectives.row_dealing import deal
from kvstore_mpi.tensor_collectives.row_lookups import RowLookups
from kvstore_mpi.tensor_collectives.row_messages import RowMessages
from kvstore_mpi.tensor_collectives.row_sums import RowSums, partial_sums
from kvstore_mpi.tensor_collectives.row_unions import Summed, Unions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


class Pushed(NamedTuple):
    """What a rank pushes of a table.

    Attributes:
        rows: Of this rank.
        table: What they are rows of.
        owners: The rank that gets the rows of each piece.
    """

    rows: Rows
    table: DealtTable
    owners: Sequence[int]


class RowCollectives:
    """Sums and spreads rows of some tables, blocking; all ranks call the same methods in the same order.

    What is given of several tables shares messages, and a wait for the others. That changes no bit.

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
        self._sums = RowSums(merger)
        self._shares = shares
        self._known_places: _Places | None = None

    @property
    def _places(self) -> _Places:
        """Where the ranks are; the first time all of them find that out together."""
        if self._known_places is None:
            self._known_places = self._find_places()
        return self._known_places

    @cached_property
    def _unions(self) -> Unions:
        """What the first ranks of all hosts do with sums for all ranks."""
        leaders = [host[0] for host in self._places.hosts]
        wide = self._places.memory is not None
        return Unions(self._messages, leaders, self._rank, self._sums, wide=wide)

    @cached_property
    def lookups(self) -> RowLookups:
        """What the ranks of this host look up together; they share a link, whether memory or not."""
        [host] = [host for host in self._driver.communicator.hosts() if self._rank in host]
        return RowLookups(self._messages, host, self._rank)

    def _find_places(self) -> _Places:
        hosts = self._driver.communicator.hosts()
        together = self._shares and any(len(host) > 1 for host in hosts)
        memory = row_memory.connect(self._driver, hosts) if together else None
        if memory is None:
            hosts = [[rank] for rank in range(self._size)]
        [own] = [host for host in hosts if self._rank in host]
        return _Places(tuple(map(tuple, hosts)), tuple(own), memory)

    # --- sums for the ranks that push ---

    def reduce(self, pushes: Sequence[Pushed]) -> list[Rows]:
        """Sum the rows of all ranks; return those of the pieces that this rank owns, of each table.

        Args:
            pushes: Of this rank, of each table; their rows are what is returned if there is no other rank.
        """
        if self._size == 1:
            return [push.rows for push in pushes]
        shares = [_deal(*push) for push in pushes]
        memory = self._places.memory
        if memory is None:
            parts = [{owner: [share.taken()] for owner, share in each.items()} for each in shares]
        else:
            parts = self._share(memory, shares, [push.table for push in pushes])
        if len(self._places.hosts) > 1:
            parts = self._gather(parts, pushes)
        return [
            self._sums.of(each[self._rank], push.table) if self._rank in each else no_rows(push.table)
            for each, push in zip(parts, pushes)
        ]

    def _share(
        self, memory: RowMemory, shares: Sequence[Mapping[int, Share]], tables: Sequence[Table]
    ) -> list[dict[int, list[Rows]]]:
        """Return what the ranks of this host have for those owners for whom this one sums."""
        own = self._places.own

        def sums_for(owner: int) -> bool:
            return self._places.agent(own, owner) == self._rank

        blank = [Share(no_rows(table)) for table in tables]
        memory.write(
            tables,
            [
                [nothing if sums_for(owner) else share for owner, share in each.items()]
                for nothing, each in zip(blank, shares)
            ],
        )
        memory.meet()
        written = {rank: memory.read(tables, rank) for rank in own if rank != self._rank}
        return [
            {
                owner: [
                    share.taken() if rank == self._rank else written[rank][number].part(index)
                    for rank in own
                ]
                for index, (owner, share) in enumerate(each.items())
                if sums_for(owner)
            }
            for number, each in enumerate(shares)
        ]

    def _gather(
        self, parts: Sequence[Mapping[int, list[Rows]]], pushes: Sequence[Pushed]
    ) -> list[dict[int, list[Rows]]]:
        """Send what is summed of this host to the owners; return what hosts have for this rank, if any."""
        hosts, own, _ = self._places
        partials = [self._partial(push.table) for push in pushes]
        sums = [
            {owner: self._sum_of_host(each, partial) for owner, each in of_owners.items()}
            for of_owners, partial in zip(parts, partials)
        ]
        wanted = [self._rank in push.owners for push in pushes]
        agents = [self._places.agent(host, self._rank) for host in hosts if host != own]
        # An owner of pieces of some of the tables is sent no rows of the others.
        targets = sorted({owner for each in sums for owner in each if owner != self._rank})
        sends = {
            target: [each.get(target) or no_rows(partial) for each, partial in zip(sums, partials)]
            for target in targets
        }
        came = self._messages.swap_untold(sends, agents if any(wanted) else [], partials)
        places = [None if host == own else self._places.agent(host, self._rank) for host in hosts]
        return [
            {self._rank: [each[self._rank] if at is None else came[at][number] for at in places]}
            if wants
            else {}
            for number, (each, wants) in enumerate(zip(sums, wanted))
        ]

    # --- sums for all ranks ---

    def allreduce(self, sums: Sequence[Summed]) -> list[Rows]:
        """Sum the rows of all ranks; return the union of each table, which has the same bits on all.

        Args:
            sums: Of this rank, of each table; their rows are what is returned if there is no other rank.
        """
        if self._size == 1:
            return [each.rows for each in sums]
        hosts, own, memory = self._places
        if memory is None:
            return self._unions.of(sums)
        tables = [each.table for each in sums]
        memory.write(tables, [[Share(each.rows)] for each in sums])
        memory.meet()
        if len(hosts) == 1:
            return self._sum_written(memory, sums, tables)
        leader, unions = own[0], []
        if self._rank == leader:
            partials = self._sum_written(memory, sums, [self._partial(table) for table in tables])
            unions = self._unions.of([each._replace(rows=rows) for each, rows in zip(sums, partials)])
            memory.write(tables, [[Share(union)] for union in unions])
        memory.meet()
        if self._rank == leader:
            return unions
        return [block.copy().part(0) for block in memory.read(tables, leader)]

    def _sum_written(self, memory: RowMemory, sums: Sequence[Summed], into: Sequence[Table]) -> list[Rows]:
        """Sum the rows of all ranks of this host."""
        # Each rank sums them all where they lie. If each summed a range of the ids and wrote that, to be
        # copied by all, 8 ranks would need 0.87 of the processor time for 20,000 rows of 64 elements, but
        # 1.7 times as much for 2,000 rows, and two ranks more in any case.
        ranks, tables = self._places.own, [each.table for each in sums]
        written = {rank: memory.read(tables, rank) for rank in ranks if rank != self._rank}
        return [
            self._sums.of(
                [each.rows if rank == self._rank else written[rank][number].part(0) for rank in ranks],
                table,
            )
            for number, (each, table) in enumerate(zip(sums, into))
        ]

    # --- spreading ---

    def broadcast(
        self, parts: Sequence[Sequence[Rows] | None], tables: Sequence[Table], root: int
    ) -> list[list[Rows]]:
        """Return the root's parts of each table on every rank.

        Args:
            parts: Of each table the root's, of any number; the root gets these back.
            tables: What they are rows of.
            root: The rank that has them.
        """
        here = [list(each or ()) for each in parts]
        if self._size == 1:
            return here
        hosts, _, memory = self._places
        if memory is None or len(hosts) > 1:
            return self._broadcast_between(here, tables, root)
        if self._rank == root:
            memory.write(tables, [[Share(rows) for rows in each] for each in here])
        memory.meet()
        if self._rank == root:
            return here
        return [block.copy().parts() for block in memory.read(tables, root)]

    def _broadcast_between(
        self, parts: list[list[Rows]], tables: Sequence[Table], root: int
    ) -> list[list[Rows]]:
        """Let the communicator do it, which knows hosts, too."""
        shapes = np.array([(len(each), sum(rows.ids.size for rows in each)) for each in parts], np.int64)
        self._messages.broadcast(shapes.reshape(-1), root)
        batch = Batch(tables, shapes.tolist())
        memory = self._messages.room(batch.size) if self._rank == root else np.empty(batch.size, np.uint8)
        blocks = batch.over(memory)
        if self._rank == root:
            for block, each in zip(blocks, parts):
                block.write([Share(rows) for rows in each])
        self._messages.broadcast(memory, root)
        return parts if self._rank == root else [block.parts() for block in blocks]

    def broadcast_value(self, value: Array, root: int) -> None:
        """Overwrite a whole table with the root's."""
        self._messages.broadcast(value.reshape(-1), root)

    # --- both ---

    def _partial(self, table: Table) -> Table:
        """Return what a host's sums are rows of, which are rounded when they are complete."""
        return partial_sums(table) if self._places.memory is not None else table

    def _sum_of_host(self, parts: Sequence[Rows], partial: Table) -> Rows:
        """Sum what the ranks of this host have; what is of one rank alone needs no sum."""
        return parts[0] if self._places.memory is None else self._sums.of(parts, partial)


def _deal(rows: Rows, table: DealtTable, owners: Sequence[int]) -> dict[int, Share]:
    """Return what there is for each owner of pieces."""
    receivers = sorted(set(owners))
    if len(receivers) == 1:
        return {receivers[0]: Share(rows)}
    ranks = np.array(owners, np.uint16)[table.pieces_of(rows.ids)]
    return dict(zip(receivers, deal(rows, ranks, receivers)))
