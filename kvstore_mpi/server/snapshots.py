"""Snapshots of one server: takes them between two messages, writes them beside its work, and restores one.

Every key is copied at one moment, so that its values, its optimizer state and its counts belong together;
between two keys the server goes on with its messages, as snapshots of different servers are not of one
moment either. A thread writes the copy out.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from kvstore_mpi.errors import ConfigurationError, KVStoreError
from kvstore_mpi.server import snapshot_file as file
from kvstore_mpi.server import snapshot_records as saved
from kvstore_mpi.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.server.records import KeyRecord
    from kvstore_mpi.server.shards import ShardStore
    from kvstore_mpi.server.state import ServerState

log = logging.getLogger("kvstore_mpi.snapshots")


class _Copy:
    """A copy of a shard that is made key by key."""

    def __init__(self, state: ServerState, store: ShardStore) -> None:
        """Begin with nothing."""
        self._state = state
        self._store = store
        self._begin()

    def _begin(self) -> None:
        # As they are now: ``go_on`` compares, and begins anew if a client or a rule was replaced under
        # way.
        self._incarnations = dict(self._state.incarnations)
        self._specs = dict(self._store.specs())
        # A key whose value is half given is left out: its client gives it again after a restart.
        # Reversed, because ``pop`` takes the last one and moves no others.
        self._left = self._state.keys.all_filled()[::-1]
        self._keys: list[saved.KeyRecord] = []
        self._arrays: list[file.Array] = []

    def go_on(self, num_bytes: float) -> bool:
        """Copy keys until it is ``num_bytes``, one at least; return whether all are there.

        What a client has counted belongs to one incarnation of it, and the states to one rule: if either
        was replaced meanwhile, the copy begins anew.
        """
        if self._incarnations != self._state.incarnations or self._specs != dict(self._store.specs()):
            self._begin()
        # One key at least, however large: its values and counts belong to one moment.
        while self._left and num_bytes > 0:
            num_bytes -= self._take(self._left.pop())
        return not self._left

    def _take(self, record: KeyRecord) -> int:
        contents = self._store.contents(record.key_id)
        # Copied between two messages, so that no update can change a value whose counts have been taken.
        self._arrays += [array for _, array in contents]
        self._keys.append(
            saved.KeyRecord(
                record.spec,
                record.store.mode.value,
                record.key_id,
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
        return sum(array.nbytes for _, array in contents)

    def snapshot(self, job: str, layout: saved.Layout) -> file.Snapshot:
        """Return the copy, once it is whole."""
        specs = {
            # With the newest learning rate: a job that is resumed begins where a schedule was, also if
            # its script says nothing.
            number: msgspec.structs.replace(
                spec, hyper=self._state.keys.hyper_of(number) or spec.hyper
            ).to_dict()
            for number, spec in self._specs.items()
        }
        return file.Snapshot(saved.Header(job, layout, self._incarnations, specs, self._keys), self._arrays)


class Snapshots:
    """When a server's shard is saved, and where."""

    copy_bytes: ClassVar[int] = 4 << 20
    """So much, and one key at least, is copied between two messages: some milliseconds."""

    def __init__(self, folder: str, every: float, *, job: str, layout: saved.Layout, now: float) -> None:
        """Begin to save.

        Args:
            folder: Where the snapshots of all servers of the job are.
            every: Seconds from one to the next.
            job: Name of the job.
            layout: Of this server and its job.
            now: The time.
        """
        self._path = file.path_of(folder, layout[0])
        self._every = every
        self._job = job
        self._layout = layout
        self._due = now  # the first one as soon as there is something
        self._copy: _Copy | None = None
        self._writer: threading.Thread | None = None
        self._failures = 0

    @property
    def failing(self) -> bool:
        """Whether the last snapshot could not be written."""
        return self._failures > 0

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being taken, so that ``go_on`` has something to do."""
        return self._copy is not None

    def save_if_due(self, now: float, state: ServerState, store: ShardStore) -> None:
        """Begin to take a snapshot, unless the last one is young or still being taken or written."""
        # A disk that is slower than ``every`` makes snapshots rarer; it must not make them pile up in
        # memory.
        writing = self._writer is not None and self._writer.is_alive()
        if now < self._due or self.busy or writing or not (state.keys.all_filled() or dict(store.specs())):
            return
        # From now, not from when it was due: after a long write several would follow each other.
        self._due = now + self._every
        # Nothing is copied yet: a tick, like a message, must not last as long as a whole shard.
        self._copy = _Copy(state, store)

    def go_on(self) -> None:
        """Copy some more of the snapshot that is being taken; when all is there it is written."""
        if self._copy is not None and self._copy.go_on(self.copy_bytes):
            # By a thread, with copies alone: a slow disk must not hold up the rounds.
            self._start_to_write(self._copy.snapshot(self._job, self._layout))
            self._copy = None

    def save(self, state: ServerState, store: ShardStore) -> None:
        """Take a snapshot and wait until it is written: the job is over."""
        # Two writers would have one draft each, and the older one might be renamed last.
        if self._writer is not None:
            self._writer.join()
        # Anew, although one may be under way: that is of an earlier moment, and may lack the last pushes.
        copy = _Copy(state, store)
        # In one go: no message comes any more that would have to wait.
        copy.go_on(math.inf)
        self._write(copy.snapshot(self._job, self._layout))

    def _start_to_write(self, snapshot: file.Snapshot) -> None:
        self._writer = threading.Thread(
            # A daemon: a disk that hangs must not keep a server that was told to end.
            target=self._write,
            args=(snapshot,),
            name="kvstore-snapshot",
            daemon=True,
        )
        self._writer.start()

    def _read(self) -> file.Snapshot | None:
        return file.read(self._path)

    def _write(self, snapshot: file.Snapshot) -> None:
        try:
            file.write(self._path, snapshot)
            # The disk has room again: if it fills up once more, that is news.
            self._failures = 0
        # Training is worth more than its snapshot: what fails here is told, and ends nothing.
        except OSError as error:
            # By this thread alone, and there is one at a time; the loop reads it at its next tick.
            self._failures += 1
            # Once: a full disk stays full, and every minute of a night would be a line.
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            text = "no snapshot could be written to %s: %s; training goes on"
            log.log(level, text, self._path, error.strerror)

    def restore(
        self,
        state: ServerState,
        store: ShardStore,
        give_optimizer: Callable[[int, dict[str, Any]], None],
        *,
        resume: bool,
        needed: bool,
    ) -> bool:
        """Take up the newest snapshot; say whether there was one.

        Args:
            state: Without keys.
            store: Without keys.
            give_optimizer: Gives a store an update rule, of which this is the description.
            resume: It is another job that wrote it, whose clients counted for themselves. Otherwise one of
                another job counts as none.
            needed: Without one this server cannot begin.

        Raises:
            ConfigurationError: There is none although one is needed, or it does not fit.
        """
        snapshot = self._read()
        # A server that died before its own first snapshot finds here what an earlier job has left in the
        # folder: values of another training.
        if snapshot is None or (snapshot.header.job != self._job and not resume):
            if needed:
                raise ConfigurationError(
                    f"there is no snapshot {self._path} to resume from; give --snapshot-dir the folder of "
                    "the job that is to go on, or leave out --resume"
                )
            return False
        try:
            self._take_up(snapshot, state, store, give_optimizer)
        except KVStoreError as error:
            raise ConfigurationError(f"the snapshot {self._path} cannot be taken up: {error}") from error
        log.info("took up %d keys from %s", len(snapshot.header.keys), self._path)
        return True

    def _take_up(
        self,
        snapshot: file.Snapshot,
        state: ServerState,
        store: ShardStore,
        give_optimizer: Callable[[int, dict[str, Any]], None],
    ) -> None:
        header = snapshot.header
        if header.layout != self._layout:
            raise ConfigurationError(
                f"it is of {header.layout}, and this is {self._layout}; "
                "give the same --servers, --clients, --workers and --set slice_elements"
            )
        # Rules before keys: units are formed by them, and saved states compared with what they begin with.
        for number, spec in header.specs.items():
            give_optimizer(number, spec)
        own = header.job == self._job
        # Clients of another job count their restarts from 0: one that is restarted would pass for known
        # here, and its first pushes for repetitions.
        if own:
            state.incarnations.update(header.incarnations)
        # In the order in which the keys name them; the file's checksum covers both.
        arrays = iter(snapshot.arrays)
        for key in header.keys:
            message = m.Create(key.spec, key.mode, key.key_id, key.shard, [])
            units = state.keys.restore(message, key.units, counts=own)
            # Units before arrays: each state is compared with the elements of its unit.
            store.restore(message, [((each.index, each.lo), next(arrays)) for each in key.arrays], units)
