"""The stores and keys of a server: which update rule they have, and what is updated together.

Pure. This file must not know of rounds, or who is answered.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.records import Mode, Topology, parameter_of
from kvstore_mpi.server.records import KeyRecord, StoreRecord, Unit
from kvstore_mpi.server.retired_keys import RetiredKeys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvstore_mpi.p3.schedule import Schedule
    from kvstore_mpi.records import Slice, StoreTerms
    from kvstore_mpi.wire import messages as m


class SavedUnit(Protocol):
    """What a snapshot has counted for a unit; see ``records.Unit``."""

    @property
    def lo(self) -> int: ...  # noqa: D102
    @property
    def pushed(self) -> list[int]: ...  # noqa: D102
    @property
    def applied(self) -> list[int]: ...  # noqa: D102
    @property
    def updates(self) -> int: ...  # noqa: D102


class ServerKeys:
    """The keys of one server.

    Attributes:
        by_id: The keys by their number, with a value or not yet.
        pushed_before: How often clients had pushed a key before it was here, by client and key number; for
            a server that was started again.
        retired: The keys that nobody uses any more.
    """

    def __init__(
        self, topology: Topology, *, slice_elements: int, schedule: Schedule, keep_retired: float = 0.0
    ) -> None:
        """Start without keys.

        Args:
            topology: The shape of the job.
            slice_elements: Largest number of elements in a slice; the same on all processes.
            schedule: Whether slices are updated one by one.
            keep_retired: See ``ServerState``.
        """
        self._topology = topology
        self._slice_elements = slice_elements
        self._in_slices = schedule.in_slices
        self._stores: dict[int, StoreRecord] = {}
        # Shared with ``Rounds``, which looks up every run in it: it is changed, and never replaced.
        self.by_id: dict[int, KeyRecord] = {}
        self.pushed_before: dict[int, dict[int, int]] = {}
        self.retired = RetiredKeys(keep_retired)

    # --- keys ---

    def __iter__(self) -> Iterator[KeyRecord]:
        """Go over the keys, with a value or not yet."""
        return iter(self.by_id.values())

    def get(self, key_id: int) -> KeyRecord | None:
        """Return a key, if it is known here."""
        return self.by_id.get(key_id)

    def filled(self, key_id: int) -> KeyRecord | None:
        """Return a key, if it has its initial value."""
        record = self.by_id.get(key_id)
        # A part of a value is none: a client would begin with a mixture of it and of what memory held.
        return record if record is not None and record.is_filled else None

    def all_filled(self) -> list[KeyRecord]:
        """Return the keys that have their initial value."""
        return [record for record in self.by_id.values() if record.is_filled]

    def add(self, message: m.Create) -> KeyRecord:
        """Add a key, without a value yet.

        Raises:
            UsageError: The store's optimizer needs whole tensors, and only a part of the key will be here.
        """
        store = self._store(message.spec.store)
        # The first key tells the mode: an optimizer may be given before any, and says nothing of it.
        store.set_mode(Mode(message.mode))
        record = self.by_id[message.key_id] = self._record(message, store)
        self._form_units(record)
        return record

    def former(self, message: m.Create) -> KeyRecord | None:
        """Return the table whose place one that grows takes, with all rows that are here; or nothing."""
        spec = message.spec
        # Tables of other kinds get their rows from a worker.
        if spec.growth is None:
            return None
        named = (record for record in self.by_id.values() if record.spec.growth is not None)
        same = (spec.store, parameter_of(spec.key))
        found = (each for each in named if (each.spec.store, parameter_of(each.key)) == same)
        # Of several the newest: those before it are kept for snapshots alone.
        return max(found, key=lambda each: each.key_id, default=None)

    def retire(self, key_id: int, now: float) -> list[int]:
        """Nobody uses a key any more; return the numbers of those that are forgotten at once."""
        self.retired.put(key_id, now)
        return self.free_retired(now)

    def close(self, stores: Iterable[int], keys: Iterable[int]) -> list[KeyRecord]:
        """No worker uses some stores any more: forget their keys; return those that were here."""
        # Its number may be that of another one later, where the only client begins again: with this record
        # that would begin with the rule, and the count of updates, of a training that is over.
        for store in stores:
            self._stores.pop(store, None)
        for counts in self.pushed_before.values():
            for key_id in keys:
                counts.pop(key_id, None)
        self.retired.close(keys)
        return [self.by_id.pop(key_id) for key_id in keys if key_id in self.by_id]

    def free_retired(self, now: float) -> list[int]:
        """Forget the keys that have been kept long enough after their end; return their numbers."""
        # A server that was started again may not have a key, and be told of its end all the same.
        return [key_id for key_id in self.retired.due(now) if self.by_id.pop(key_id, None) is not None]

    def restore(self, message: m.Create, saved: Sequence[SavedUnit], *, counts: bool) -> list[Unit]:
        """Take up a key from a snapshot, after its store's update rule; with what its clients counted.

        Raises:
            ConfigurationError: Other elements of it were updated together.
        """
        record = self.add(message)
        # Counts and states belong to units: with other units of the same slices, some would be updated
        # with the state of others.
        units = record.distinct_units
        if [unit.slices[0].lo for unit in units] != [was.lo for was in saved]:
            raise ConfigurationError(
                f"key {record.key!r} has {len(saved)} parts that were updated together, and {len(units)} "
                "here; give the same --set schedule"
            )
        # Whole: a key that had a part of its value is in no snapshot.
        record.filled = len(record.slices)
        for unit, was in zip(units, saved):
            # Nobody has been sent anything since, and so nobody is late: what a client computes with now
            # is the value of the snapshot.
            unit.count_from(was.updates)
            # Counts of another job are of other clients: theirs begin at 1, and would count as
            # repetitions.
            if counts:
                unit.pushed, unit.applied = list(was.pushed), list(was.applied)
        return units

    def units_of(self, message: m.Create) -> list[tuple[int, int]]:
        """Return what of a key that is not here yet will be updated together.

        Raises:
            UsageError: The store's optimizer needs whole tensors, and only a part of the key will be here.
        """
        record = self._record(message, self._store(message.spec.store))
        return [(slices[0].lo, slices[-1].hi) for slices in self._groups(record)]

    def _record(self, message: m.Create, store: StoreRecord) -> KeyRecord:
        record = KeyRecord(message, store, self._topology, self._slice_elements)
        whole = store.terms.whole and not record.is_table
        # A job of one server takes such an optimizer also after its keys. Here each server would take its
        # own part for the tensor, and nobody would notice but by what is learned. Asked of each key: an
        # optimizer that comes while keys are still being placed finds none here.
        if whole and tuple(message.shard) != (0, math.prod(message.spec.shape)):
            raise UsageError(
                f"the optimizer needs whole tensors, but key {record.key!r} was initialised before "
                "set_optimizer and is spread over servers; call set_optimizer first, or give --servers 1"
            )
        return record

    def _store(self, number: int) -> StoreRecord:
        return self._stores.setdefault(number, StoreRecord(number))

    def _groups(self, record: KeyRecord) -> list[list[Slice]]:
        """Return a key's slices in the groups that its store's optimizer, or the schedule, needs."""
        # Whole tensors are one unit: a rule that looks at norms would otherwise see those of slices.
        # Pieces of a table have nothing in common but their name.
        whole = (record.store.terms.whole or not self._in_slices) and not record.is_table
        return [record.slices] if whole else [[slice_] for slice_ in record.slices]

    def _form_units(self, record: KeyRecord) -> None:
        """Group a key's slices into units."""
        # Any unit will do: no push is under way, so all units of the key have been pushed as often.
        old = next(iter(record.units.values()))[0] if record.units else None
        record.units = {}
        for slices in self._groups(record):
            unit = Unit(record, slices)
            # A client that pushed the key before it was here goes on counting; see ``ServerState.resume``.
            for client, counts in self.pushed_before.items():
                unit.skip_to(client, counts.get(record.key_id, 0))
            if old is not None:
                # Copies: with one list, units would count for each other, and drop pushes as repetitions.
                unit.applied, unit.pushed = list(old.applied), list(old.pushed)
            for position, slice_ in enumerate(slices):
                record.units[slice_.lo] = (unit, position)

    def units(self, number: int) -> Iterable[Unit]:
        """Return the units of a store's keys, in order of keys and elements."""
        for _, record in sorted(self.by_id.items()):
            if record.store.number == number:
                yield from record.distinct_units

    def unit(self, key_id: int, lo: int) -> Unit | None:
        """Return the unit that a slice belongs to, if this server has it."""
        record = self.by_id.get(key_id)
        found = record.units.get(lo) if record else None
        return found[0] if found else None

    # --- optimizers ---

    def spec_of(self, number: int, given: int = 1) -> Any:
        """Return the description of a store's optimizer, if it has one, the ``given``-th or a later one."""
        store = self._stores.get(number)
        return None if store is None or store.given < given else store.spec

    def check_optimizer(self, number: int, terms: StoreTerms) -> None:
        """Raise where a store cannot take an optimizer.

        Other clients than rank 0's may have pushed already: their rounds wait for it.

        Raises:
            UsageError: Pushes are under way that the change would affect, the optimizer needs whole
                tensors and a key of the store is already spread over servers, or it takes parameters and
                the one before it gradients.
        """
        store = self._stores.get(number)
        if store is None:
            return
        if store.has_optimizer and store.terms.params != terms.params:
            raise UsageError(
                "the optimizer of a store takes either gradients or parameters, and cannot be replaced by "
                "one of the other kind; create a store for each"
            )
        # Units are made anew then, without contributions: a push that is under way would be lost with its
        # unit, and its client wait for ever.
        regroup = store.terms.whole != terms.whole
        for record in self._of(store):
            # A contribution of client 0 was given with the old numbers by the same rank that now brings
            # new ones; those of others merely wait for it, as rank 0 sets the optimizer before it pushes.
            if any(u.contributions and (regroup or 0 in u.contributions) for u, _ in record.units.values()):
                raise UsageError(
                    f"set_optimizer while a push of key {record.key!r} is under way; wait for it first"
                )
            if terms.whole and regroup and self._topology.num_servers > 1 and not record.is_table:
                raise UsageError(
                    f"this optimizer needs whole tensors, but key {record.key!r} was initialised before "
                    "set_optimizer and may be spread over servers; call set_optimizer first"
                )

    def set_optimizer(self, number: int, spec: Any, hyper: Any, terms: StoreTerms, given: int) -> None:
        """Note that a store now has its ``given``-th optimizer (``check_optimizer`` came first)."""
        store = self._store(number)
        self.note_given(number, given)
        regroup = store.terms.whole != terms.whole
        # Terms first: units are formed by them.
        store.set_optimizer(spec, hyper, terms)
        for record in self._of(store):
            if regroup:
                self._form_units(record)
            # Adam counts from its own first update, or its bias correction would be that of a run it has
            # not seen.
            for unit, _ in record.units.values():
                unit.count_from(0)

    def note_given(self, number: int, given: int) -> None:
        """Rank 0 has given a store its ``given``-th optimizer, whether it could have it or not."""
        store = self._store(number)
        # Never less: a rank 0 that was started again counts from 1, and nobody waits for a rule twice.
        store.given = max(store.given, given)

    def _of(self, store: StoreRecord) -> list[KeyRecord]:
        return [record for record in self.by_id.values() if record.store is store]

    def set_hyper(self, number: int, hyper: Any) -> None:
        """Change the hyper-parameters for pushes that arrive from now on."""
        # A server that was started again may not have the store yet; the numbers come again with its
        # optimizer.
        if number in self._stores:
            self._stores[number].hyper = hyper

    def hyper_of(self, number: int) -> Any:
        """Return the newest hyper-parameters of a store's optimizer, if it has one."""
        return self._stores[number].hyper if number in self._stores else None
