"""Keys that a job goes on with, whose servers may have been of another number, and cut them otherwise.

Where the parts of a key are to be is known only when the script creates it. Until then the files of all
servers of the former job are open here, and each server reads from them the elements or rows that are its
own. Keys that are no tables lie where they were if there are as many servers, and are taken up at once.

Keys that the script has not created go along in the snapshots of this job, cut as they were: each server
keeps what one or several of the former ones had.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from kvstore_mpi.errors import ConfigurationError, MismatchError
from kvstore_mpi.records import parameter_of
from kvstore_mpi.server.dense_recut import DenseRecut
from kvstore_mpi.server.recut import Recut
from kvstore_mpi.server.snapshot_records import Snapshot, UnitRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from kvstore_mpi.records import Key
    from kvstore_mpi.server.snapshot_file import SavedChain
    from kvstore_mpi.server.snapshot_records import KeyRecord, Layout
    from kvstore_mpi.wire import messages as m

Array = np.ndarray[Any, Any]

log = logging.getLogger("kvstore_mpi.snapshots")


class Taken(NamedTuple):
    """A key as this server goes on with it."""

    units: list[UnitRecord]
    arrays: list[tuple[tuple[int, int], Array]]


class _Part(NamedTuple):
    """What a server of the former job had of a key.

    Attributes:
        chain: Number of its files.
        key: What these say of it.
        left: That server had it of the job before: its place in ``SavedChain.left``.
    """

    chain: int
    key: KeyRecord
    left: int | None = None


class Resumption:
    """The keys of a former job that this one has not taken up yet."""

    def __init__(
        self, chains: Sequence[SavedChain], layout: Layout, waits: Collection[int] | None = None
    ) -> None:
        """Take over the open files of all servers of the former job.

        Args:
            chains: In the order of the servers.
            layout: Of this server.
            waits: What a server that is started again has not taken up, by number. ``None``: it is the
                first time.

        Raises:
            ConfigurationError: They are of a job of another kind.
        """
        # All of them stay open. Former files are removed as soon as each new server has written its own,
        # and a script may create a key long after that.
        self._chains = chains
        self._new: list[str] = []  # keys to be told of
        self._new_before = 0  # how many these were a tick before
        self._has_told_of_left = False
        self._layout = layout
        for index, chain in enumerate(chains):
            # Counts are lists by client: with others they would be those of other workers. Slices may be
            # others, as they are where the job has moved to more hosts, but the same on all servers.
            slices = chains[0].header.layout.slice_elements
            expected = layout._replace(server=index, servers=len(chains), slice_elements=slices)
            if chain.header.layout != expected:
                raise ConfigurationError(
                    f"the snapshot {chain.path} is of {chain.header.layout}, and here it would be of "
                    f"{expected}; give the same --clients and --workers, and each file its own name"
                )
        self._parts = _parts_of(chains)
        # By name: numbers are those of the order in this script, which may have more keys than that one.
        self._names = {_name(parts[0].key) for parts in self._parts.values()}
        # What a server has of a key is what says how it was cut; it may be that not all have some.
        self._keys: dict[int, KeyRecord] = {}
        self._sums: frozenset[int] = frozenset()
        if waits is not None:
            # Others may have taken up more since: what this server has itself, it has from its own file.
            self._keys = {number: self._parts[number][0].key for number in waits if number in self._parts}
            return
        # Of any server: what one of them knows to be given up is so for all, however old the others'
        # snapshots are.
        self._retired = {number for chain in chains for number in chain.header.retired}
        # Apart from other keys: one that was cut anew while the job ran is there under several numbers.
        tables: dict[int, list[KeyRecord]] = {}
        for number, parts in self._parts.items():
            if parts[0].key.spec.partitions:
                tables[number] = [part.key for part in parts]
            elif self._is_cut_anew or any(part.left is not None for part in parts):
                self._keys[number] = parts[0].key
        self._keys = {number: key for number, key in self._keys.items() if number not in self._retired}
        self._keys |= {number: tables[number][0] for number in _that_count(tables, self._retired)}
        self._leave_out_sums()

    def _leave_out_sums(self) -> None:
        """Leave out what was pushed to a store without an update rule: the last sum, and no parameter.

        Integers stay, which no rule takes: what was added up is their value.

        Raises:
            ConfigurationError: There is nothing else.
        """
        # Of any server: one that died before it was given the rule has the keys all the same.
        ruled = {store for chain in self._chains for store in chain.header.specs}
        sums = {
            key.key_id: key
            for chain in self._chains
            for key in chain.header.keys
            if key.spec.store not in ruled
            and key.key_id not in self._retired
            and np.dtype(key.spec.dtype).kind == "f"
            and any(unit.updates for unit in key.units)
        }
        # Taken up they would be weights to which a Trainer adds its next updates, and nobody would notice
        # but by what is learned.
        self._sums = frozenset(sums)
        for number in sums:
            self._keys.pop(number, None)
        if not sums:
            return
        names = ", ".join(sorted(repr(key.spec.key) for key in sums.values()))
        if not ruled:
            raise ConfigurationError(
                f"the snapshot {self._chains[0].path} has no parameters to go on with: of the keys {names} "
                "it has the last sums, of gradients that workers applied themselves (a Trainer with "
                "update_on_kvstore=False, or an optimizer that servers do not have)"
            )
        # No error beside parameters: a store without a rule is where scripts add up what they measure.
        log.warning(
            "the keys %s begin as the script has them: snapshots have their last sums, as their store had "
            "no optimizer",
            names,
        )

    @property
    def _is_cut_anew(self) -> bool:
        saved = self._chains[0].header.layout
        return (saved.servers, saved.slice_elements) != (self._layout.servers, self._layout.slice_elements)

    def own(self) -> Snapshot:
        """Return the update rules, and of the keys that are no tables those that lie where they were."""
        if self._is_cut_anew:
            return self._chains[0].load(frozenset())  # the rules, which all servers have
        # Their places follow from their order and the number of servers, so that they need not wait for the
        # script.
        chain = self._chains[self._layout.server]
        dense = {key.key_id for key in chain.header.keys if not key.spec.partitions}
        return chain.load(dense - self._retired - self._sums - self._keys.keys())

    @property
    def waits(self) -> list[int]:
        """The keys that are not taken up yet, by number."""
        return [*self._keys]

    def with_left(self, snapshot: Snapshot, numbers: Iterable[int]) -> Snapshot:
        """Return a base with the parts of some keys that this server keeps for a job after this one.

        It reads files, beside other methods.

        Raises:
            ConfigurationError: Files have become shorter, or do not go together.
        """
        left, arrays = [], [*snapshot.arrays]
        for part in (part for number in numbers for part in self._parts[number]):
            # Each part has one server, and it does not matter which: all of them are read.
            if part.chain % self._layout.servers == self._layout.server:
                key, loaded = self._load(part)
                left.append(key)
                arrays += loaded
        return Snapshot(msgspec.structs.replace(snapshot.header, left=left), arrays)

    def tell_of_left(self) -> None:
        """Say once which keys are not taken up, as a snapshot is taken."""
        # By one server for all, each of which hears of every key.
        if not self._keys or self._has_told_of_left or self._layout.server:
            return
        self._has_told_of_left = True
        log.warning(
            "the job that is resumed had the keys %s, which this script has not created so far; they go "
            "along in its snapshots as they were",
            ", ".join(repr(key.spec.key) for key in self._keys.values()),
        )

    def take(self, message: m.Create, units: Sequence[tuple[int, int]]) -> Taken | None:
        """Return what this server is to have of a key; ``None`` if that is nothing, or the key is new.

        Args:
            message: Creates the key.
            units: What of it will be updated together here.

        Raises:
            MismatchError: The former job had another one in its place.
            ConfigurationError: A part of it is missing, or cannot be cut.
        """
        number = self._number_of(message)
        was = self._keys.get(number)
        if was is None:
            self._note_new(message)
            return None
        # Before anything is read: two keys of one size look alike, and with one key more or less in the
        # script each would take the value of its neighbour.
        _check_same(message, was)
        taken = self._recut(message, was, units) if message.runs else None
        # Also of which nothing is to be here: it is waited for no more.
        del self._keys[number]
        return taken

    def _note_new(self, message: m.Create) -> None:
        """Note a key that begins as the script has it, if nobody else says so."""
        spec = message.spec
        # A worker has told of it after this server's restart, before which it was noted.
        if message.seed and message.runs:
            return
        name = spec.store, parameter_of(spec.key)
        # Sums have been told of; and a table that takes a key's place while the job runs has its value.
        if spec.scratch or name[1] != spec.key or message.key_id in self._sums:
            return
        # The first server hears of all keys. Of those that other servers' snapshots have, each server
        # knows for itself whether its own part is missing.
        is_told_here = message.runs if name in self._names else self._layout.server == 0
        if is_told_here:
            self._new.append(repr(spec.key))

    def tell_of_new(self, *, over: bool = False) -> None:
        """Warn of keys that the snapshots lack: one line for all, once no more come or all is ``over``."""
        # A warning and no error: a script may have got a layer more, of which it knows.
        is_quiet = over or len(self._new) == self._new_before
        if self._new and is_quiet:
            log.warning(
                "the keys %s begin as the script has them: the snapshots of the job that is resumed do not "
                "have them",
                ", ".join(self._new),
            )
            self._new.clear()
        self._new_before = len(self._new)

    def _recut(self, message: m.Create, was: KeyRecord, units: Sequence[tuple[int, int]]) -> Taken:
        recut: Recut | DenseRecut
        if message.spec.partitions:
            recut = Recut(message.spec, was.spec, message.shard)
        else:
            recut = DenseRecut(message.spec, message.shard, units)
        # One after the other: of the others' no more than a server's part is ever in memory.
        for part in self._parts[was.key_id]:
            # Nor read: a large key may be on many servers.
            if recut.wants(part.key):
                recut.add(*self._load(part))
        # All of them, before the server has anything of the key: what is missing is told now, and not when
        # half of the key is there.
        arrays = list(recut.arrays())
        nobody = [0] * self._layout.clients  # clients of another job have pushed nothing yet
        return Taken([UnitRecord(lo, nobody, nobody, count) for lo, count in recut.updates], arrays)

    def _load(self, part: _Part) -> tuple[KeyRecord, list[Array]]:
        """Read a part; return it as a base would have it."""
        chain = self._chains[part.chain]
        # Of the base alone: links have what has changed since, and this has not.
        if part.left is not None:
            return part.key, chain.load_left(part.left)
        snapshot = chain.load({part.key.key_id})
        return snapshot.header.keys[0], snapshot.arrays

    def _number_of(self, message: m.Create) -> int:
        """Return the number that a key of the script had last in the former job."""
        was = self._keys.get(message.key_id)
        # A table that was made of it later has its name, and does not stand for it: also where a dense key
        # has been taken up already, or lies on other servers.
        if not message.spec.partitions or (was is not None and not was.spec.partitions):
            return message.key_id
        # Tables have the numbers of their order in the script, unless they were cut anew while it ran.
        name = (message.spec.store, parameter_of(message.spec.key))
        for number, key in self._keys.items():
            if number > message.key_id and _name(key) == name and key.spec.key != message.spec.key:
                return number
        return message.key_id


def _check_same(message: m.Create, was: KeyRecord) -> None:
    """Raise where a key is not the one that was in its place."""
    asked = message.spec
    # Of a table, only how it is cut may differ, and what it has been called since.
    if asked.partitions and was.spec.partitions:
        same = parameter_of(asked.key) == parameter_of(was.spec.key)
        known = was.spec.key if same else asked.key
        cut = {name: getattr(was.spec, name) for name in ("layout", "partitions", "homes")}
        # Who pushes it follows from the hosts, and these from the job.
        asked = replace(asked, key=known, apart=was.spec.apart, **cut)
    if (asked, message.mode) != (was.spec, was.mode):
        raise MismatchError(
            f"key number {message.key_id} is {message.spec.describe()} in a store of the mode "
            f"{message.mode} here, but the snapshots have {was.spec.describe()} in one of the mode "
            f"{was.mode}; a job is resumed with the same model, the keys in the same order"
        )


def _parts_of(chains: Sequence[SavedChain]) -> dict[int, list[_Part]]:
    """Return by number the parts of each key that a job goes on with."""
    taken: dict[int, list[_Part]] = {}
    left: dict[int, list[_Part]] = {}
    for index, chain in enumerate(chains):
        for key in chain.header.keys:
            taken.setdefault(key.key_id, []).append(_Part(index, key))
        for number, key in enumerate(chain.left):
            left.setdefault(key.key_id, []).append(_Part(index, key, number))
    return {
        number: _newest_parts(taken.get(number, []), left.get(number, [])) for number in {**taken, **left}
    }


def _newest_parts(taken: list[_Part], left: list[_Part]) -> list[_Part]:
    """Return those of a key's parts that come to all of it, rather of the former job than of one before."""
    # A server that had not saved the key since it was created has what it was before instead. Cut alike,
    # both make one key, somewhat apart as snapshots are.
    beside = [part for part in left if not any(_have_common(part.key, each.key) for each in taken)]
    together = [*taken, *beside]
    if _is_whole(part.key for part in together) or not _is_whole(part.key for part in left):
        return together
    # Cut otherwise, parts of both would leave gaps. What was pushed in the seconds between two servers'
    # snapshots is lost, and no more.
    return left


def _have_common(one: KeyRecord, other: KeyRecord) -> bool:
    """Return whether two parts have elements in common, or cannot be parts of one key."""
    begin, end = max(one.shard[0], other.shard[0]), min(one.shard[1], other.shard[1])
    return one.spec != other.spec or begin < end


def _name(key: KeyRecord) -> tuple[int, Key]:
    return key.spec.store, parameter_of(key.spec.key)


def _that_count(tables: dict[int, list[KeyRecord]], retired: set[int]) -> list[int]:
    """Return the numbers of the tables to go on with: of those that took each other's place, one.

    Args:
        tables: By number, what each server has.
        retired: Numbers of those whose place was taken.
    """
    by_name: dict[tuple[int, Key], list[int]] = {}
    for number in sorted(tables, reverse=True):
        by_name.setdefault(_name(tables[number][0]), []).append(number)
    # Of a table that went to the workers none.
    return [
        _newest_whole([tables[number] for number in numbers])[0].key_id
        for numbers in by_name.values()
        if numbers[0] not in retired
    ]


def _newest_whole(tables: list[list[KeyRecord]]) -> list[KeyRecord]:
    """Return the newest of the tables of a parameter that all servers have with all that belongs to it."""
    for position, keys in enumerate(tables):
        # Values come first and states later: until then nothing has been updated, as far as a piece knows.
        # Without states momentum would begin anew, and nobody would notice but by what is learned.
        was_updated = any(unit.updates for former in tables[position + 1 :] for unit in _units(former))
        if _is_whole(keys) and (all(unit.updates for unit in _units(keys)) or not was_updated):
            return keys
    return tables[0]


def _units(keys: Sequence[KeyRecord]) -> list[UnitRecord]:
    return [unit for key in keys for unit in key.units]


def _is_whole(parts: Iterable[KeyRecord]) -> bool:
    # Snapshots of servers may be of different moments. Pieces have two numbers each, and no two servers
    # have the same one.
    keys = [*parts]
    return bool(keys) and sum(key.shard[1] - key.shard[0] for key in keys) >= (
        2 * keys[0].spec.partitions or math.prod(keys[0].spec.shape)
    )
