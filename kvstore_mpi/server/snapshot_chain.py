"""A base and the links after it: when a snapshot may be a link, and what a chain comes to. Pure.

A base has everything. A link has of tables the rows that have changed since the one before it, and the
places of those that went; of other keys it has everything as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.server import snapshot_records as saved
from kvstore_mpi.server.link_rows import joined

if TYPE_CHECKING:
    from kvstore_mpi.records import KeySpec
    from kvstore_mpi.server.changed_rows import Marks


_Part = Mapping[int, saved.Array]
"""The arrays of a piece, by their numbers."""


class Copied(NamedTuple):
    """A snapshot, and what the chain is to know once it is written.

    Attributes:
        snapshot: It.
        marks: Of each table, what stands for its rows as they are in it.
        sizes: Bytes of each key's arrays.
    """

    snapshot: saved.Snapshot
    marks: dict[int, Marks]
    sizes: dict[int, int]


class Chain:
    """What this server has written since it was started: nothing, or a base and links.

    Attributes:
        name: Of the chain.
        links: How many there are.
        marks: Of each table, what stands for its rows as they are in the last link.
        sizes: Bytes of each key's arrays in the base.
    """

    most_links: ClassVar[int] = 64
    """Each is a file that is open while a job is resumed, in all of its servers."""

    def __init__(self) -> None:
        """Start with nothing: a server that is started again begins with a base."""
        self.name = ""
        self.links = 0
        self.marks: dict[int, Marks] = {}
        self.sizes: dict[int, int] = {}
        self._link_bytes = 0

    def takes(self, num_bytes: int) -> bool:
        """Return whether a snapshot may be a link, which would have about ``num_bytes``.

        All links together are no larger than the base, so that at most twice the shard is on the disk and
        read; and one that is half as large as a base saves too little for what it makes the others wait.
        """
        base_bytes = sum(self.sizes.values())
        return (
            # Not without a base of this very process: one that was started again knows of no row when it
            # changed last.
            bool(self.name)
            and self.links < self.most_links
            # Also not of nothing: a server without keys writes an empty base.
            and 2 * num_bytes < base_bytes
            and self._link_bytes + num_bytes <= base_bytes
        )

    def next(self, *, link: bool) -> tuple[str, int]:
        """Return the chain and number of the next snapshot."""
        # By chance: links that an earlier base has left beside this one must not pass for its own.
        return (self.name, self.links + 1) if link else (secrets.token_hex(8), 0)

    def written(self, copied: Copied) -> None:
        """A snapshot is on the disk."""
        header = copied.snapshot.header
        self.name, self.links, self.marks = header.chain, header.link, copied.marks
        if header.link:
            self._link_bytes += sum(copied.sizes.values())
        else:
            # Of the base alone: it is what links are measured by, and what they may come to altogether.
            self.sizes, self._link_bytes = copied.sizes, 0

    def failed(self, copied: Copied) -> None:
        """A snapshot could not be written; the disk may have it, or the one before it."""
        # A link that is there after all is replaced by the next one, which has the same number and more
        # rows. A base may have taken the place of the one that links would follow.
        if not copied.snapshot.header.link:
            self.name = ""


def fold(chain: Sequence[saved.Snapshot]) -> saved.Snapshot:
    """Return what a base and its links come to, as a base.

    Raises:
        ConfigurationError: A link does not go with what is before it.
    """
    if len(chain) == 1:
        return chain[0]
    parts: dict[int, dict[int, list[_Part]]] = {}  # key number -> lo -> what there is of it
    cuts: dict[int, tuple[KeySpec, tuple[int, int]]] = {}
    for snapshot in chain:
        arrays = iter(snapshot.arrays)
        for key in snapshot.header.keys:
            found: dict[int, dict[int, saved.Array]] = {}
            for each in key.arrays:
                found.setdefault(each.lo, {})[each.index] = next(arrays)
            # A key that was cut anew between the two has nothing of what it was before.
            if cuts.get(key.key_id) != (key.spec, key.shard):
                parts[key.key_id] = {}
            cuts[key.key_id] = (key.spec, key.shard)
            _add(key, parts[key.key_id], found)
    return _as_base(chain[-1].header, parts)


def _add(key: saved.KeyRecord, before: dict[int, list[_Part]], found: Mapping[int, _Part]) -> None:
    for lo, part in found.items():
        if not saved.is_link_part(key.spec, part):
            # All of it is here, and what earlier snapshots say of it is out of date.
            before[lo] = [part]
        elif lo in before:
            before[lo].append(part)
        else:
            raise ConfigurationError(f"of key {key.spec.key!r} piece {lo // 2} is in no snapshot before")


def _as_base(header: saved.Header, parts: dict[int, dict[int, list[_Part]]]) -> saved.Snapshot:
    keys, arrays = [], []
    # By the newest header: a key that it lacks was given up since, or is being given anew.
    for key in header.keys:
        records = []
        # In the order of the file, in which arrays of the value, master and states are told apart.
        for lo in dict.fromkeys(each.lo for each in key.arrays):
            for index, array in joined(key.spec, lo, parts[key.key_id][lo]).items():
                records.append(saved.ArrayRecord(index, lo, array.dtype.name, array.size))
                arrays.append(array)
        keys.append(msgspec.structs.replace(key, arrays=records))
    # Marked as a base, as which it is checked once more: rows without those before them would be refused.
    return saved.Snapshot(msgspec.structs.replace(header, keys=keys, link=0), arrays)
