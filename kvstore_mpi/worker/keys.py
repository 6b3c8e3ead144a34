"""The stores and keys of a worker: where a key's slices are, and on which terms they are pushed.

Pure. This file must not know what is under way.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.p3.slicing import deal_to_ranks, deal_to_ranks_near
from kvstore_mpi.records import Key, KeySpec, Mode, NodeId, Role, Shard, Slice, StoreTerms, Topology
from kvstore_mpi.values.base import ClientBase, ClientResidual
from kvstore_mpi.values.coding import numbered, shortens
from kvstore_mpi.worker.lookups import askers
from kvstore_mpi.worker.records import KeyState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.wire import messages as m


class KeyCounts(NamedTuple):
    """What keys have counted.

    Attributes:
        steps: Pushes of the one that is pushed most: those of frozen layers, or of another phase, stay
            behind.
        sent: Bytes of values to servers.
        received: Bytes of values from servers.
    """

    steps: int = 0
    sent: int = 0
    received: int = 0

    def with_key(self, key: KeyState) -> KeyCounts:
        """Return these with those of one more key."""
        sent, received = key.sent, key.returned + key.pulled
        if key.table is not None:
            sent, received = sent + key.table.count.sent, received + key.table.count.received
        return KeyCounts(max(self.steps, key.pushes), self.sent + sent, self.received + received)


class WorkerKeys:
    """The keys of one worker.

    Attributes:
        by_name: The keys by the number of their store and their name.
        by_id: The keys that have their place, by the number that all processes know.
        tables_elsewhere: Keys, as those by name, that are dense here, and of which another worker of an
            asynchronous store pushes rows.
    """

    def __init__(
        self,
        config: NodeConfig,
        topology: Topology,
        hosts: Sequence[Sequence[int]],
        *,
        mpi_rank: int,
        num_pushers: int,
    ) -> None:
        """Start without stores.

        Args:
            config: Says how keys are cut, and whether copies of values are kept.
            topology: The shape of the job.
            hosts: The ranks of the client on each host.
            mpi_rank: Rank of this worker in its client.
            num_pushers: How many ranks of a client push slices.
        """
        self._hosts = hosts
        self._topology = topology
        self._mpi_rank = mpi_rank
        self._pushes = mpi_rank < num_pushers
        self._num_pushers = num_pushers
        self._slice_elements = config.largest_slice
        self._in_slices = Schedule(config.schedule).in_slices
        self.has_snapshots = bool(config.snapshot_dir)
        self._keep_values = config.keep_values and not self.has_snapshots
        self._modes: dict[int, Mode] = {}
        self._needless_before: set[Role] = set()  # when a store was closed
        self._terms: dict[int, StoreTerms] = {}
        self.by_name: dict[tuple[int, Key], KeyState] = {}
        self.by_id: dict[int, KeyState] = {}
        # By what the script calls them: it may know them as dense only.
        self.tables_elsewhere: set[tuple[int, Key]] = set()
        self._removed_pushes = 0
        self._counted_before = KeyCounts()  # of keys that are gone

    # --- stores ---

    def open_store(self, store: int, mode: Mode) -> None:
        """Note a store's mode."""
        # Before its first key: what a key does depends on it from the beginning.
        self._modes[store] = mode

    def take_terms(self, store: int, terms: StoreTerms) -> None:
        """From now on the store's servers take pushes like this, as its optimizer needs."""
        # Kept for the keys that come after the optimizer, as well as given to those that are here.
        self._terms[store] = terms
        for key in self:
            if key.spec.store == store:
                self._apply_terms(key)

    def _apply_terms(self, key: KeyState) -> None:
        key.waits_for_all = self.waits_for_all(key.spec.store)
        terms = self._terms.get(key.spec.store)
        if terms is None:
            return
        is_float = key.spec.dtype.startswith("float")
        # Parameters are averaged over the ranks of a client, gradients are summed. Integers are not
        # averaged: their mean would be rounded.
        key.divisor = self._topology.client_size if terms.params and is_float else 1
        # Only exchanges of parameters are answered again, and only they pay for remembering what was
        # answered.
        key.answered = set() if terms.params else None
        if key.table is not None:
            key.table.take_coding(terms.compress)
        # Anew with each optimizer, as on the servers (``ShardStore.set_optimizer``): a difference to
        # what the former one has sent would be decoded with another base, to wrong values.
        key.base = None
        saves = bool(terms.compress) and shortens(terms.compress, np.dtype(key.spec.dtype))
        if saves and self._pushes and key.table is None:
            if numbered(terms.compress).gradients:
                key.base = ClientResidual(key.buffer, terms.compress)
            else:
                key.base = ClientBase(key.buffer, terms.compress, before=terms.before)

    def waits_for_all(self, store: int) -> bool:
        """Return whether the store's rounds need a push of every worker of the job."""
        # With a quorum a worker may push more often than another without ever waiting for it.
        return self._modes[store] is Mode.SYNC and not self.has_quorum(store)

    def terms_of(self, store: int) -> StoreTerms:
        """Return on which terms the store's servers take pushes."""
        return self._terms.get(store, StoreTerms())

    def is_whole(self, store: int) -> bool:
        """Return whether the store's optimizer needs whole tensors."""
        return self.terms_of(store).whole

    def has_quorum(self, store: int) -> bool:
        """Return whether the store's rounds do not wait for all clients."""
        return self.terms_of(store).quorum > 0

    def goes_on_without(self, gone: m.PeerGone) -> bool:
        """Return whether training can go on without somebody; before the first store, until he returns."""
        role = NodeId.parse(gone.name).role
        if self._modes:
            return role in self._needless()
        # Between two stores whoever was not needed in the first one is not missed, either.
        return gone.returns or role in self._needless_before

    def _needless(self) -> set[Role]:
        """Return of which processes one may be missing in the stores that there are."""
        needless = set()
        # A synchronous round has the pushes of all clients in the server's memory, and with it they are
        # lost; a quorum does not help, because it is about clients.
        if Mode.SYNC not in self._modes.values():
            needless.add(Role.SERVER)
        # Rounds with a quorum are closed without the client that has gone; all others would wait for
        # its pushes.
        if not any(map(self.waits_for_all, self._modes)):
            needless.add(Role.WORKER)
        return needless

    def travelled(self, store: int, key: Key) -> float | None:
        """Return the bytes of a step of a dense key between this client and the servers, if any is known.

        Any thread may ask. Rank 0 of a client knows those that it pushes a part of.
        """
        known = self.by_name.get((store, key))
        return None if known is None or self._mpi_rank else known.travelled(self._topology.client_size)

    def close(self, store: int) -> list[KeyState]:
        """No worker uses a store any more: forget it, and return the keys that it had."""
        self._needless_before = self._needless()
        # Begun anew by a client that is alone in its job, the store has another rule, or none.
        self._terms.pop(store, None)
        # Of this one nobody is waited for, so that it does not count where somebody is lost.
        del self._modes[store]
        self.tables_elsewhere = {name for name in self.tables_elsewhere if name[0] != store}
        return [self.remove(*name) for name in [*self.by_name] if name[0] == store]

    # --- keys ---

    def __iter__(self) -> Iterator[KeyState]:
        """Go over the keys, in the order in which they came."""
        return iter(self.by_name.values())

    def sends_source(self, store: int, key: Key) -> bool:
        """Return whether what is pushed of a key may be sent from elsewhere than its buffer.

        Any thread may ask; the answer may change.
        """
        known = self.by_name.get((store, key))
        # Ranks of a client sum in their buffers: what lies elsewhere has to be brought there first.
        return known is not None and self._topology.client_size == 1 and known.sends_source

    def add(self, spec: KeySpec, buffer: Any, raw: Any) -> None:
        """Add a key of which the place is not known yet."""
        mode = self._modes[spec.store]
        on_servers = self._topology.num_servers > 0 and mode is not Mode.CLIENT
        key = KeyState(spec, buffer, raw, mode=mode, on_servers=on_servers)
        key.alone = self._topology.client_size == 1 or spec.apart
        # Asked once for each key: it is looked at at the end of every operation.
        key.keeps = self._keeps(key)
        if key.table is not None and key.alone:
            # One list for both: nothing is asked for other ranks.
            key.table.together = key.table.known
        self.by_name[spec.store, spec.key] = key
        self._apply_terms(key)

    def spec_of(self, key_id: int) -> KeySpec | None:
        """Return what a key is, if it is here."""
        key = self.by_id.get(key_id)
        return None if key is None else key.spec

    def remove(self, store: int, key: Key) -> KeyState:
        """Forget a key that has nothing under way."""
        known = self.by_name.pop((store, key))
        del self.by_id[known.key_id]
        self._removed_pushes += known.pushes if known.spec.apart else 0
        # What is told of this worker never falls.
        self._counted_before = self._counted_before.with_key(known)
        return known

    @property
    def counts(self) -> KeyCounts:
        """What all keys have counted so far; any thread may ask."""
        # A copy, in one step that no other thread can come between: the I/O thread adds keys meanwhile.
        return reduce(KeyCounts.with_key, list(self.by_name.values()), self._counted_before)

    def note_shared(self, key_id: int, server: NodeId) -> None:
        """A server has mapped the buffer of a key: what is pushed from now on need not travel."""
        # It may say so late, of a key whose store is over: a server that holds up its answer to this holds
        # up no operation.
        if key_id in self.by_id:
            self.by_id[key_id].shared.add(server)

    @property
    def pushes_apart(self) -> int:
        """How many pushes this rank has made for itself, where the others of its client do so, too."""
        # With those of keys that are gone: another rank may not have come to their end.
        return self._removed_pushes + sum(key.pushes for key in self if key.spec.apart)

    def keep_values(self) -> None:
        """From now on keep copies of values: a server cannot save them any more."""
        self._keep_values = True
        for key in self:
            key.keeps = self._keeps(key)

    def _keeps(self, key: KeyState) -> bool:
        # Only where a server can be lost without the job (see ``goes_on_without``), because it costs a copy
        # of every value, and on the ranks that push, because they are who a server asks.
        wanted = self._keep_values and self._pushes and key.table is None
        return wanted and key.mode is Mode.ASYNC and key.on_servers

    def place(self, message: m.Placed) -> tuple[KeyState, list[Shard]]:
        """A key has its number and its place; cut it into slices."""
        key = self.by_name[message.store, message.key]
        shards = [Shard(*shard) for shard in message.shards]
        key.place(message.key_id, shards, self._slice_elements)
        # By number and position alone: every rank comes to the same without a word, and none pushes a slice
        # twice or leaves it to nobody.
        key.pushers = deal_to_ranks(key.key_id, len(key.slices), self._num_pushers)
        if key.table is not None and self._topology.num_servers:
            servers = [server.index for server, _ in key.slices]
            key.pushers = deal_to_ranks_near(
                key.key_id, servers, self._topology.num_servers, self._num_pushers
            )
            key.askers = askers(self._hosts, self._mpi_rank, key.pushers)
        self.by_id[key.key_id] = key
        return key, shards

    def on(self, server: NodeId) -> list[KeyState]:
        """Return the keys of which a server has a part."""
        # Also keys whose operations have all ended: their values may be lost as well.
        return [key for key in self if key.on_servers and server in key.servers]

    def units(self, store: int) -> list[tuple[KeyState, NodeId, Slice]]:
        """Return what a store's servers update together, where: slices, or all that one has of a key.

        In order of keys and elements.
        """
        # By number, which is the same on all workers: names may be of different types, which cannot be
        # sorted.
        keys = [key for _, key in sorted(self.by_id.items()) if key.spec.store == store]
        in_slices = self._in_slices and not self.is_whole(store)
        units: list[tuple[KeyState, NodeId, Slice]] = []
        for key in keys:
            if in_slices or key.table is not None:  # pieces of a table are updated one by one
                units += ((key, server, slice_) for server, slice_ in key.slices)
                continue
            for server, slices in key.by_server().items():
                units.append((key, server, Slice(key.key_id, slices[0].lo, slices[-1].hi)))
        return units
