"""Snapshots of one server: takes them between two messages, writes them beside its work, and restores one.

Every key is copied at one moment, so that its values, its optimizer state and its counts belong together;
between two keys the server goes on with its messages, as snapshots of different servers are not of one
moment either. A thread writes the copy out.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from kvstore_mpi.errors import ConfigurationError, KVStoreError, NotSavedError
from kvstore_mpi.server import snapshot_file as file
from kvstore_mpi.server import snapshot_sets as sets
from kvstore_mpi.server.resumption import Resumption
from kvstore_mpi.server.snapshot_chain import Chain
from kvstore_mpi.server.snapshot_copy import Copy
from kvstore_mpi.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvstore_mpi.server.records import KeyRecord
    from kvstore_mpi.server.shards import ShardStore
    from kvstore_mpi.server.snapshot_chain import Copied
    from kvstore_mpi.server.snapshot_records import Layout, Snapshot
    from kvstore_mpi.server.state import ServerState

log = logging.getLogger("kvstore_mpi.snapshots")


class Snapshots:
    """When a server's shard is saved, and where."""

    copy_bytes: ClassVar[int] = 4 << 20
    """So much, and one key at least, is copied between two messages: some milliseconds."""

    def __init__(self, folder: str, every: float, *, job: str, layout: Layout, now: float) -> None:
        """Begin to save.

        Args:
            folder: Where the snapshots of all servers of the job are.
            every: Seconds from one to the next.
            job: Name of the job.
            layout: Of this server and its job.
            now: The time.
        """
        self._folder = folder
        self._path = sets.path_of(folder, layout.server, layout.servers)
        self._every = every
        self._job = job
        self._layout = layout
        self._due = now  # the first one as soon as there is something
        self._keys: set[int] = set()  # that the last one has, by number
        self._seen = 0  # number of keys when this was looked at last
        self._begun = self._saved = now
        self._chain = Chain()
        self._copy: Copy | None = None
        self._writer: threading.Thread | None = None
        self._failures = 0
        self._resumption: Resumption | None = None
        self._waits: list[int] = []  # keys that were not taken up when the last one was begun
        self._left: list[int] = []  # keys of which the next base keeps what the former job had

    @property
    def failing(self) -> bool:
        """Whether the last snapshot could not be written."""
        return self._failures > 0

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being taken, so that ``go_on`` has something to do."""
        return self._copy is not None

    def age(self, now: float) -> float:
        """Return the seconds since the last snapshot that is on the disk was begun, or since the start."""
        return now - self._saved

    def save_if_due(self, now: float, state: ServerState, store: ShardStore) -> None:
        """Begin to take a snapshot, unless the last one is young or still being taken or written."""
        if self._resumption is not None:
            self._resumption.tell_of_new()
        # A disk that is slower than ``every`` makes snapshots rarer; it must not make them pile up in
        # memory.
        writing = self._writer is not None and self._writer.is_alive()
        has_news = self._has_news(state)
        if self.busy or writing or not (has_news or now >= self._due):
            return
        if not (state.keys.all_filled() or dict(store.specs())):
            return
        # From now, not from when it was due: after a long write several would follow each other.
        self._due = now + self._every
        self._begun = now
        self._keys = {key.key_id for key in state.keys.all_filled()}
        # Nothing is copied yet: a tick, like a message, must not last as long as a whole shard.
        self._copy = self._new_copy(state, store)

    def _has_news(self, state: ServerState) -> bool:
        """Return whether there are keys that the last snapshot does not have, and all have their values."""
        # Not only when one is due: the first is often of a moment when the script has made some of its
        # keys, and a server that dies without the others ends the job, as nobody else keeps their values.
        # But not while more keys come, or each would be written once with every other.
        filled = state.keys.all_filled()
        is_quiet, self._seen = len(filled) == self._seen, len(filled)
        # Nor while keys of a former job are left, before the first is due: its files have all there is, and
        # what is about to be created would be written twice.
        if not self._keys and self._resumption is not None and self._resumption.waits:
            return False
        return is_quiet and any(key.key_id not in self._keys for key in filled)

    def _new_copy(self, state: ServerState, store: ShardStore) -> Copy:
        """Begin a copy, and note what goes along with it."""
        if self._resumption is not None:
            self._resumption.tell_of_left()
            waits = self._resumption.waits
            # Also what has been taken up since the one before: other servers may not have saved it yet, and
            # a job that ends now has it from all of them as it was.
            self._left, self._waits = sorted({*self._waits, *waits}), waits
        return Copy(state, store, self._chain)

    def take_up(self, keys: Iterable[m.Create], state: ServerState, store: ShardStore) -> list[KeyRecord]:
        """Keys are created, or workers have them: take up and return those that wait in the resumed job.

        Raises:
            KVStoreError: That job had another one in its place, or it is not whole, or cannot be cut.
        """
        taken = [key.key_id for key in keys if self._take_up_key(key, state, store)]
        return [state.keys.by_id[key_id] for key_id in taken]

    def _take_up_key(self, message: m.Create, state: ServerState, store: ShardStore) -> bool:
        # A large key comes in several messages, of which only the first finds nothing here.
        if self._resumption is None or state.keys.get(message.key_id) is not None:
            return False
        # Its store may be over: then nobody needs it, and what a former job's files have of it stays there.
        # (A worker that has not heard of that may still name it, as it does to every server that is back.)
        if message.key_id in state.keys.retired.closed:
            return False
        # Before files are read: a rule for whole tensors refuses a part of a key at once.
        units = state.keys.units_of(message) if message.runs else []
        taken = self._resumption.take(message, units)
        if taken is None:
            return False
        store.restore(message, taken.arrays, state.keys.restore(message, taken.units, counts=False))
        return True

    def go_on(self) -> None:
        """Copy some more of the snapshot that is being taken; when all is there it is written."""
        if self._copy is not None and self._copy.go_on(self.copy_bytes):
            # By a thread, with copies alone: a slow disk must not hold up the rounds.
            self._start_to_write(self._copied(self._copy))
            self._copy = None

    def save(self, state: ServerState, store: ShardStore) -> None:
        """Take a snapshot and wait until it is written: the job is over.

        Raises:
            NotSavedError: It cannot be written.
        """
        if self._resumption is not None:
            self._resumption.tell_of_new(over=True)
        # Two writers would have one draft each, and the older one might be renamed last.
        if self._writer is not None:
            self._writer.join()
        # Anew, although one may be under way: that is of an earlier moment, and may lack the last pushes.
        copy = self._new_copy(state, store)
        # In one go: no message comes any more that would have to wait.
        copy.go_on(math.inf)
        self._write(self._copied(copy), is_last=True)

    def _copied(self, copy: Copy) -> Copied:
        return copy.copied(self._job, self._layout, self._waits)

    def _start_to_write(self, copied: Copied) -> None:
        self._writer = threading.Thread(
            # A daemon: a disk that hangs must not keep a server that was told to end.
            target=self._write,
            args=(copied,),
            name="kvstore-snapshot",
            daemon=True,
        )
        self._writer.start()

    def _read(self) -> Snapshot | None:
        return file.read(self._path)

    def _put(self, snapshot: Snapshot) -> None:
        # A link is of the own chain, with whose base all this was done.
        if snapshot.header.link:
            file.write(self._path, snapshot)
            return
        if self._resumption is not None:
            # Read here, beside the server's work: it may be as much as a shard, and nothing changes it.
            snapshot = self._resumption.with_left(snapshot, self._left)
        file.write(self._path, snapshot)
        sets.remove_older(self._folder, self._layout.servers)

    def _write(self, copied: Copied, *, is_last: bool = False) -> None:
        try:
            self._put(copied.snapshot)
            # The loop does not look at the chain before this thread has ended.
            self._chain.written(copied)
            # The disk has room again: if it fills up once more, that is news.
            self._failures = 0
            self._saved = self._begun  # no other is begun while one is written
        # Training is worth more than its snapshot: what fails here, be it for want of memory, is told, and
        # ends nothing.
        except Exception as error:
            self._chain.failed(copied)
            # By this thread alone, and there is one at a time; the loop reads it at its next tick.
            self._failures += 1
            reason = _reason(error)
            # No warning: who goes on from what is there would learn only then what is lost.
            if is_last:
                raise self._not_saved(reason) from error
            # Once: a full disk stays full, and every minute of a night would be a line.
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            log.log(level, "no snapshot could be written to %s: %s; training goes on", self._path, reason)

    def _not_saved(self, reason: object) -> NotSavedError:
        # As --resume will look for it: one whole set of all servers' files, or nothing.
        whole = sets.newest(self._folder)
        older = f"that before it is whole ({whole[0]})" if whole else "there is no whole one before it"
        return NotSavedError(
            f"server{self._layout.server}: the last snapshot could not be written to {self._path}: "
            f"{reason}; {older}"
        )

    def _check_folder(self) -> None:
        """Raise where another job has left snapshots, which those of this one would take the place of.

        Raises:
            ConfigurationError: It has, or a file cannot be read.
        """
        # Those of another number of servers are removed as soon as all of this job's have written theirs.
        path = self._path if self._path.exists() else next(iter(sets.newest(self._folder)), self._path)
        chain = file.open_chain(path)
        if chain is None:
            return
        with contextlib.closing(chain):
            job = chain.header.job
        # Of this job another server may have saved already, as all begin when they like.
        if job != self._job:
            raise ConfigurationError(
                f"{path} is of another job, and this one's snapshots would take its place; go on from it "
                "with --resume, give --snapshot-dir another folder, or remove the former one's files"
            )

    def restore(
        self,
        state: ServerState,
        store: ShardStore,
        give_optimizer: Callable[[int, dict[str, Any]], None],
        *,
        resume: bool,
        first: bool,
    ) -> bool:
        """Take up the newest snapshot, where this server goes on from one; say whether it did.

        Args:
            state: Without keys.
            store: Without keys.
            give_optimizer: Gives a store an update rule, of which this is the description.
            resume: It is another job that wrote it, whose clients counted for themselves. Otherwise one of
                another job counts as none.
            first: The server is started for the first time, and goes on only from another job, without
                whose snapshot it cannot begin. Tables are then taken up as the script creates them, from
                the snapshots of all servers, and all keys if there were more or fewer servers. A server
                that is started again before it has saved anything does the same with what workers tell it;
                it is given the workers' values if there is none.

        Raises:
            ConfigurationError: There is none although one is needed, or it does not fit, or there is one of
                another job although this one does not go on from it.
        """
        # Before the first snapshot is due: whoever has forgotten to say that the job goes on would lose
        # what it was to go on from.
        if first and not resume:
            self._check_folder()
            return False
        # A server that is started again goes on from its own: servers of the former job may have been more
        # or fewer, and what they have saved is older.
        snapshot = None if first else self._read()
        # A server that died before its own first snapshot finds here what an earlier job has left in the
        # folder: values of another training, or those that this job began with, which may be cut otherwise.
        if snapshot is None or snapshot.header.job != self._job:
            return resume and self._resume(state, store, give_optimizer, first=first)
        try:
            self._check_layout(snapshot)
            self._take_up(snapshot, state, store, give_optimizer)
        except KVStoreError as error:
            raise ConfigurationError(f"the snapshot {self._path} cannot be taken up: {error}") from error
        # A key that came while the copy was made is in both lists, and its value is here.
        waits = {*snapshot.header.waits} - {key.key_id for key in snapshot.header.keys}
        if waits:
            self._resumption = Resumption(self._newest(), self._layout, waits)
        log.info("took up %d keys from %s", len(snapshot.header.keys), self._path)
        return True

    def _check_layout(self, snapshot: Snapshot) -> None:
        if snapshot.header.layout != self._layout:
            raise ConfigurationError(f"it is of {snapshot.header.layout}, and this is {self._layout}")

    def _resume(
        self,
        state: ServerState,
        store: ShardStore,
        give_optimizer: Callable[[int, dict[str, Any]], None],
        *,
        first: bool,
    ) -> bool:
        """Open what all servers of a job have left; take up what lies where it was, and no tables."""
        chains = self._newest()
        if not chains and first:
            raise self._nothing_to_resume()
        if not chains:
            return False
        self._resumption = Resumption(chains, self._layout)
        if self._resumption.waits:
            self._due += self._every
        own = self._resumption.own()
        try:
            self._take_up(own, state, store, give_optimizer)
        except KVStoreError as error:
            raise ConfigurationError(f"the snapshot {self._path} cannot be taken up: {error}") from error
        log.info(
            "took up %d keys from %s; the script's other keys come from the snapshots of %d servers",
            len(own.header.keys),
            self._folder,
            len(chains),
        )
        return True

    def _newest(self) -> list[file.SavedChain]:
        """Open what all servers of a job have saved: of the whole sets of files the newest."""
        # One whole set or none: files of two sets would be of two trainings.
        return [chain for path in sets.newest(self._folder) if (chain := file.open_chain(path))]

    def _nothing_to_resume(self) -> ConfigurationError:
        remedy = "give --snapshot-dir the folder of the job that is to go on, or leave out --resume"
        gap = sets.first_missing(self._folder)
        if gap is None and (parts := sets.saved_parts(self._folder)):
            # Whoever looks into the folder sees them, and would not believe that there is none.
            return ConfigurationError(
                f"the snapshots in {self._folder} are of a model in {parts} parts, each in a folder "
                f"({sets.folder_of_part(self._folder, 0)} and so on): give --model-parallel {parts}, as "
                "that job had, or leave out --resume"
            )
        if gap is None:
            return ConfigurationError(f"there is no snapshot in {self._folder} to resume from; {remedy}")
        missing, there = gap
        return ConfigurationError(
            f"there is no snapshot {missing}, although {there} is there, and a job goes on from those of "
            f"all servers; put it back, {remedy}"
        )

    def _take_up(
        self,
        snapshot: Snapshot,
        state: ServerState,
        store: ShardStore,
        give_optimizer: Callable[[int, dict[str, Any]], None],
    ) -> None:
        header = snapshot.header
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


def _reason(error: Exception) -> object:
    """Return why a snapshot could not be written, as people are told it."""
    if isinstance(error, OSError):
        return error.strerror
    return error if isinstance(error, ConfigurationError) else repr(error)
