"""What a snapshot says of itself: of which server and job, its keys, and the arrays that follow. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from kvstore_mpi.records import KeySpec

if TYPE_CHECKING:
    from collections.abc import Container

    from kvstore_mpi.records import Topology

Array = np.ndarray[Any, Any]

# Below 0, as the arrays of a state are numbered from 0.
VALUE = -3
"""Instead of the number of a state's array (cf. ``state_parts.MASTER``): the key's value."""

UPDATES, PLACES, LAST_USED, USES = range(-7, -3)
"""Likewise, of a piece of a table that grows: how often it was updated, and of each row that is there, or
waits to be admitted, its place, its last update and their number. A link of a chain has ``PLACES`` of other
tables as well: those of the rows that it has."""

# In links alone, so that it tells them from bases: places are in both, of tables that grow.
GONE = -8
"""Likewise, in a link of a chain: the places of rows that went since the link before."""


class Layout(NamedTuple):
    """What a server must have in common with the one whose snapshot it takes up.

    Attributes:
        server: Its number.
        servers: How many there are.
        clients: How many there are.
        client_size: Workers in each.
        slice_elements: Largest number of elements in a slice.
    """

    # The number of servers decides where keys lie, and ``slice_elements`` where slices begin: counts and
    # states would be those of other elements. Counts are lists by client.
    server: int
    servers: int
    clients: int
    client_size: int
    slice_elements: int

    @classmethod
    def of(cls, server: int, topology: Topology, slice_elements: int) -> Layout:
        """Return the layout of a server of a job."""
        return cls(server, topology.num_servers, topology.num_clients, topology.client_size, slice_elements)

    def __str__(self) -> str:
        """Return the layout as people read it."""
        return (
            f"server {self.server} of {self.servers} with {self.clients} clients of {self.client_size} "
            f"workers and slices of {self.slice_elements} elements"
        )


class ArrayRecord(msgspec.Struct, frozen=True):
    """One array: which of the key's arrays (see ``shards.Place``), its elements' type and number."""

    index: int
    lo: int
    # A name that is checked, and no type of NumPy's: whatever a file says is read as text first.
    dtype: str
    size: int


class UnitRecord(msgspec.Struct, frozen=True):
    """What has been counted for the slices that are updated together, from element ``lo`` on."""

    lo: int
    pushed: list[int]
    applied: list[int]
    # By unit and not by key: between two rounds of a key its slices have had unequal numbers of updates.
    updates: int


class KeyRecord(msgspec.Struct, frozen=True):
    """One key, as rank 0 created it on this server."""

    spec: KeySpec
    # A name and not a ``Mode``: one that is unknown is refused by the check, which says which key's it is.
    mode: str
    key_id: int
    shard: tuple[int, int]
    # In the order of their elements, in which the server that takes them up forms its own.
    units: list[UnitRecord]
    arrays: list[ArrayRecord]


class Header(msgspec.Struct, frozen=True):
    """What a snapshot is of.

    Attributes:
        job: Name of the job that wrote it.
        layout: What must be equal where it is read.
        incarnations: How often each client had been restarted.
        specs: The update rule of each store, with its newest numbers.
        keys: The keys; their arrays follow in this order.
        chain: Name of the base and all links that follow it.
        link: 0 of a base, which has everything; a link has of tables what has changed since the one before.
        retired: Numbers of keys that something else has taken the place of; some may be there still.
        waits: Numbers of keys of the job that was resumed which the script had not created yet.
        left: In a base, parts of such keys as that job had them, whose arrays follow those of ``keys``.
            They may have been parts of other servers, and there may be several of a key.
    """

    job: str
    layout: Layout
    # Without them a client that was restarted before the snapshot would pass for one that restarts now, and
    # its counts would begin anew under its pushes.
    incarnations: dict[int, int]
    # Descriptions, never objects: nothing that is read here can be run.
    specs: dict[int, dict[str, Any]]
    keys: list[KeyRecord]
    # Defaults, for snapshots of versions without chains: each of them is a base.
    chain: str = ""
    link: int = 0
    # Also of those that were freed: another server's snapshot may be of an earlier moment, and have them
    # still.
    retired: list[int] = []
    waits: list[int] = []
    # Apart from the keys, with which they have nothing in common but the file: how they were cut is not how
    # this job's keys are.
    left: list[KeyRecord] = []


class Snapshot(NamedTuple):
    """A header and the arrays that it describes, in its order."""

    header: Header
    arrays: list[Array]


def is_link_part(spec: KeySpec, indices: Container[int]) -> bool:
    """Return whether what there is of a piece is what has changed, by the numbers of its arrays."""
    return spec.partitions > 0 and (PLACES if spec.growth is None else GONE) in indices
