"""The copy of a server's shard that a snapshot is written from, made key by key between messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.server import snapshot_records as saved
from kvstore_mpi.server.snapshot_chain import Copied

if TYPE_CHECKING:
    from kvstore_mpi.server.changed_rows import Marks
    from kvstore_mpi.server.records import KeyRecord
    from kvstore_mpi.server.shards import ShardStore
    from kvstore_mpi.server.snapshot_chain import Chain
    from kvstore_mpi.server.state import ServerState


class Copy:
    """A copy of a shard that is made key by key; of tables only what has changed, if a chain takes that."""

    def __init__(self, state: ServerState, store: ShardStore, chain: Chain) -> None:
        """Begin with nothing; ``chain``: what has been written before."""
        self._state = state
        self._store = store
        self._chain = chain
        self._begin()

    def _begin(self) -> None:
        # As they are now: ``go_on`` compares, and begins anew if a client or a rule was replaced under
        # way.
        self._incarnations = dict(self._state.incarnations)
        self._specs = dict(self._store.specs())
        # A key whose value is half given is left out: its client gives it again after a restart.
        # Reversed, because ``pop`` takes the last one and moves no others.
        self._left = [each for each in self._state.keys.all_filled()[::-1] if not each.spec.scratch]
        self._keys: list[saved.KeyRecord] = []
        self._arrays: list[saved.Array] = []
        # Of this copy alone. The chain takes them over once it is on the disk: rows since the marks of one
        # that was never written would be in no file.
        self._marks: dict[int, Marks] = {}
        self._sizes: dict[int, int] = {}
        # Looked at once: what is pushed while the copy is made adds little.
        self._is_link = self._chain.takes(sum(map(self._link_bytes, self._left)))

    def _link_bytes(self, record: KeyRecord) -> int:
        """Return about how many bytes a link would have of a key."""
        table = self._store.tables.get(record.key_id)
        if table is None:
            # A link has all of it, as the base has.
            return self._chain.sizes.get(record.key_id, 0)
        return table.num_bytes(self._chain.marks.get(record.key_id, {}))

    def go_on(self, num_bytes: float) -> bool:
        """Copy keys until it is ``num_bytes``, one at least; return whether all are there.

        What a client has counted belongs to one incarnation of it, and the states to one rule: if either
        was replaced meanwhile, the copy begins anew.
        """
        if self._incarnations != self._state.incarnations or self._specs != dict(self._store.specs()):
            self._begin()
        # One key at least, however large: its values and counts belong to one moment.
        while self._left and num_bytes > 0:
            record = self._left.pop()
            # It may have been freed since the copy was begun.
            if self._state.keys.get(record.key_id) is record:
                num_bytes -= self._take(record)
        return not self._left

    def _take(self, record: KeyRecord) -> int:
        key_id = record.key_id
        # Without a mark everything: a table that the base has not is in a link as a whole.
        contents = self._store.contents(key_id, self._chain.marks.get(key_id) if self._is_link else None)
        # At the same moment: what is pushed from now on is the next one's.
        if key_id in self._store.tables:
            self._marks[key_id] = self._store.tables[key_id].mark()
        # Copied between two messages, so that no update can change a value whose counts have been taken.
        self._arrays += [array for _, array in contents]
        self._keys.append(
            saved.KeyRecord(
                record.spec,
                record.store.mode.value,
                key_id,
                (record.shard.lo, record.shard.hi),
                [
                    # Copies of the counts: they go on while the thread writes.
                    saved.UnitRecord(unit.slices[0].lo, [*unit.pushed], [*unit.applied], unit.updates)
                    for unit in record.distinct_units
                ],
                [
                    saved.ArrayRecord(index, lo, array.dtype.name, array.size)
                    for (index, lo), array in contents
                ],
            )
        )
        self._sizes[key_id] = sum(array.nbytes for _, array in contents)
        return self._sizes[key_id]

    def copied(self, job: str, layout: saved.Layout, waits: list[int]) -> Copied:
        """Return the copy, once it is whole; ``waits``: of the header."""
        specs = {
            # With the newest learning rate: a job that is resumed begins where a schedule was, also if
            # its script says nothing.
            number: msgspec.structs.replace(
                spec, hyper=self._state.keys.hyper_of(number) or spec.hyper
            ).to_dict()
            for number, spec in self._specs.items()
        }
        place = self._chain.next(link=self._is_link)
        # A copy of the list: keys are given up while the thread writes.
        retired = list(self._state.keys.retired.numbers)
        header = saved.Header(job, layout, self._incarnations, specs, self._keys, *place, retired, waits)
        return Copied(saved.Snapshot(header, self._arrays), self._marks, self._sizes)
