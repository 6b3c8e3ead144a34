"""A server's decisions, message by message: what is done, who is answered, what must wait.

Pure: payloads pass through untouched and the arrays are in ``shards.py``. The unit of updating is a
*unit*: one slice of a key under an element-wise optimizer, all slices of the key under one that needs the
whole tensor. Per unit each client has at most one push under way, counted by its sequence. Which units
there are is in ``keys.py``, when one is updated in ``rounds.py``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import KVStoreError, MismatchError, PeerLostError
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.records import NodeId, Role, Slice, StoreTerms, Topology
from kvstore_mpi.server.deferred import DeferredRequests
from kvstore_mpi.server.failures import FailedUpdates, failure
from kvstore_mpi.server.keys import ServerKeys
from kvstore_mpi.server.pulls import note_pulled, ready_pulls
from kvstore_mpi.server.records import (
    Allocate,
    Answer,
    Entry,
    Fill,
    Instructions,
    KeyRecord,
    WaitingPull,
)
from kvstore_mpi.server.rounds import Rounds
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Sequence


class ServerState:
    """What one server has, and what is under way on it.

    Attributes:
        keys: The stores and keys.
        rounds: The rounds under way, which take the pushes.
        incarnations: How often a client has been restarted.
        failed: The updates that could not be made.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        slice_elements: int,
        warn_after: float,
        step_timeout: float,
        schedule: Schedule = Schedule.P3,
        keep_retired: float = 0.0,
    ) -> None:
        """Start without keys.

        Args:
            topology: The shape of the job.
            slice_elements: Largest number of elements in a slice; the same on all processes.
            warn_after: Seconds after which a round that waits is logged.
            step_timeout: Seconds after which it fails.
            schedule: Whether slices are updated one by one.
            keep_retired: Seconds for which a key stays that nobody uses any more.
        """
        self._topology = topology
        self.keys = ServerKeys(
            topology, slice_elements=slice_elements, schedule=schedule, keep_retired=keep_retired
        )
        # By client, not by rank: its ranks die together, and an old one that still speaks must not be
        # taken for the new.
        self.incarnations: dict[int, int] = {}
        self._awaited: set[int] = set()  # clients that are not there, and will be
        self.rounds = Rounds(
            topology,
            self.keys.by_id,
            # Handed in: rounds know nothing of what waits for rank 0.
            self._push_too_early,
            warn_after=warn_after,
            step_timeout=step_timeout,
        )
        # Apart from the rounds: what waits here waits for rank 0 and not for clients, and fails for
        # another reason.
        self._deferred = DeferredRequests()
        self.failed = FailedUpdates()

    # --- rank 0 gives keys and optimizers ---

    def create(self, peer: NodeId, message: m.Create, payloads: list[Any]) -> Instructions:
        """Rank 0 creates (more slices of) a key; its buffer is its own again when that is done."""
        if not message.runs:  # a key of which nothing is here: see ``Servers.tell_others``
            return [*self.rounds.held.note_elsewhere(message)]
        out: Instructions = []
        record = self.keys.get(message.key_id)
        if record is not None and record.is_filled:
            # Somebody has given the value before. A seed is given unasked, so nobody waits for an answer to
            # it.
            adopted = [] if message.seed else _adopt(peer, message, record)
            # Those of a key that was taken up just now, as the script creates it.
            return [*adopted, *self._answer_deferred(message.key_id)]
        if record is None:
            former = self.keys.former(message)
            record = self.keys.add(message)
            out.append(Allocate(message, None if former is None else former.key_id))
            if former is not None:
                # Nobody pushes it any more: all workers had come to the end of its last round.
                updates = max(unit.updates for unit in former.distinct_units)
                for unit in record.distinct_units:
                    unit.count_from(updates)
        # Half of one value and half of another would be neither: until this one is whole, or its giver is
        # restarted, no other is taken.
        if record.creator not in (None, peer):
            return self._wait_for_creator(peer, message)
        record.creator = peer
        for (lo, hi), payload in zip(message.runs, payloads):
            record.filled += len(record.run(lo, hi))
            out.append(Fill(Slice(message.key_id, lo, hi), payload))
        if not message.seed:
            # The creator waits for each of its messages: its buffer is read where it lies, and is its own
            # again only now.
            out.append(Send(peer, m.Applied([(message.key_id, lo, hi, 0) for lo, hi in message.runs])))
        if record.is_filled:
            # Behind the ``Fill`` of this message: what is carried out first is what they are answered with.
            out += self._answer_deferred(message.key_id)
        return out

    def _answer_deferred(self, key_id: int) -> Instructions:
        """Answer the pulls of a key that came before it had its value."""
        out: Instructions = []
        # Workers learn of a key from the scheduler, so their pulls may have overtaken the value.
        for pull in self._deferred.take_pulls(key_id):
            requests = [] if pull.request is None else [pull.request]
            out += self.pull(pull.peer, m.Pull([pull.entry], pull.priority), requests)
        return out

    def _wait_for_creator(self, peer: NodeId, message: m.Create) -> Instructions:
        """Somebody else is giving this key its value after a restart; the first one counts."""
        # A seed is given unasked, and is not needed any more. Who creates waits, and takes the value that
        # counts: as after no push of its own.
        if not message.seed:
            for lo, hi in message.runs:
                self._deferred.hold_pull(peer, (message.key_id, lo, hi, 0), 0)
        return []

    def set_optimizer(
        self, number: int, spec: Any, hyper: Any, terms: StoreTerms, given: int = 1
    ) -> list[Send]:
        """A store has its ``given``-th optimizer (``keys.check_optimizer`` came first): tell who waits."""
        # Taken before anybody is told: whom it concerns pushes at once, and counts on the rule.
        self.keys.set_optimizer(number, spec, hyper, terms, given)
        return self._deferred.optimizer_given(number, spec, given)

    def refuse_optimizer(self, number: int, given: int) -> list[Send]:
        """A store cannot have its ``given``-th optimizer: who waits for it goes on with the one before."""
        spec = self.keys.spec_of(number)
        # Of the first one: what counts is what rank 0 gives next, if its script goes on.
        if spec is None:
            return []
        # Also for who asks later, and would wait for a rule that never comes.
        self.keys.note_given(number, given)
        return self._deferred.optimizer_given(number, spec, given)

    def await_optimizer(self, peer: NodeId, message: m.AwaitOptimizer) -> Instructions:
        """Answer once rank 0's optimizer is here, so that no push of an async store comes before it."""
        # The description goes back with the answer: the worker compares it with its own before it pushes
        # what the rule does not take.
        spec = self.keys.spec_of(message.store, message.given)
        if spec is not None:
            return [Send(peer, m.Ok(message.request, spec))]
        # Rank 0 may be gone already, and that is said once: who asks afterwards would wait for ever.
        self._deferred.hold_optimizer(peer, message)
        return [*self._deferred.give_up()]

    def close(self, stores: Sequence[int], keys: frozenset[int]) -> list[KeyRecord]:
        """No worker uses some stores any more: forget them, and return the keys that were here."""
        self.rounds.close(stores, keys)
        return self.keys.close(stores, keys)

    # --- push, pull ---

    def _push_too_early(
        self, peer: NodeId, message: m.Push, entry: Entry, wants_value: bool
    ) -> Instructions:
        """Take a push of a key that is not here, because this server was restarted: it is lost.

        Its value comes when the key has one.
        """
        key_id, _, _, sequence = entry
        # When the key comes, its units must not wait for this push, nor take the next one for it.
        self.keys.pushed_before.setdefault(self._topology.client_of(peer.index), {})[key_id] = sequence
        # Said to be applied although it is lost: its worker waits for that, and has warned its user.
        if not wants_value:
            return [Send(peer, m.Applied([entry]))]
        self._deferred.hold_pull(peer, entry, message.priority)
        return [*self._deferred.give_up()]

    def pull(self, peer: NodeId, message: m.Pull, requests: Sequence[Any] = ()) -> Instructions:
        """A worker asks for values; those that are not there yet are answered when they are.

        Args:
            peer: The worker.
            message: Its message.
            requests: For each entry, if they are of tables, which rows are wanted; otherwise nothing.

        Raises:
            MismatchError: A request is none for rows of its table.
        """
        client = self._topology.client_of(peer.index)
        out: Instructions = []
        for entry, request in zip(message.entries, requests or repeat(None)):
            key_id, lo, hi, after = entry
            record = self.keys.filled(key_id)
            if record is None:
                self._deferred.hold_pull(peer, entry, message.priority, request)
                out += self._deferred.give_up()
                continue
            if request is not None:
                record.layout.check(request, lo, hi)
            # Slice by slice, although a run was asked for as one: each has its own round, and those that
            # are ready must not wait for the others.
            for slice_ in record.run(lo, hi):
                unit, _ = record.units[slice_.lo]
                # A client reads its own pushes. Those of others may be in the value or not.
                if unit.applied[record.pusher(peer.index)] >= after:
                    wanted = (*slice_, after)
                    out += note_pulled(unit, client, wanted)
                    priority = message.priority
                    out.append(Answer(peer, wanted, stable=False, priority=priority, request=request))
                else:
                    unit.pulls.append(WaitingPull(peer, slice_, after, message.priority, request))
        return out

    # --- who goes and comes back ---

    def resume(self, peer: NodeId, message: m.Resume) -> Instructions:
        """A client has noticed that this server was restarted, and does not repeat what it has pushed."""
        client = self._topology.client_of(peer.index)
        # Kept for keys that are not here yet, too: they come with what another client gives, and would
        # wait for pushes that this one counts as done.
        self.keys.pushed_before[client] = {key.key_id: pushes for key, pushes in message.keys}
        out: Instructions = []
        missing = []
        # A key that the snapshot had may be asked for in the same message as one that it had not.
        for key, pushes in message.keys:
            record = self.keys.filled(key.key_id)
            if record is None:
                # Nobody needs those of a store that is over: who asks has not heard of that.
                if key.key_id not in self.keys.retired.closed:
                    missing.append(key.key_id)
                continue
            problem = _difference(key, record)
            if problem is not None:
                out.append(failure(peer, problem, record))
                continue
            # The client does not repeat what it pushed before the restart. Counts from the snapshot may be
            # older than that: a round that waited for those pushes would wait for ever.
            for unit in record.distinct_units:
                unit.skip_to(client, pushes)
                out += ready_pulls(unit, self._topology)
            # It may have been taken up by this message, and asked for before it.
            out += self._answer_deferred(key.key_id)
        return [*out, Send(peer, m.Missing(missing))] if missing else out

    def begins(self, peer: NodeId, incarnation: int) -> list[Send] | None:
        """A worker has connected; ``None`` unless its client was restarted, and so counts from the start.

        What an earlier run has pushed completely stays in the values; the rest is dropped.
        """
        client = self._topology.client_of(peer.index)
        # Before incarnations are compared: a client that merely comes late is in its first one, and would
        # stay departed.
        if client in self._awaited:
            self._awaited.discard(client)
            self.rounds.come_back(client)
        # All ranks of a client connect, each with the client's incarnation; the first one makes the change.
        if incarnation <= self.incarnations.get(client, 0):
            return None
        self.incarnations[client] = incarnation
        # The new run counts from 1. With the old counts its first pushes would pass for repetitions and
        # be dropped.
        self.keys.pushed_before.pop(client, None)
        self.rounds.come_back(client)
        members = {NodeId(Role.WORKER, rank) for rank in self._topology.members_of(client)}
        unfinished = [record.key_id for record in self.keys if self._forget(record, client, members)]
        self._deferred.forget(members)
        if not unfinished:
            return []
        # Who has resumed after this server's own restart may have a value for the key that is half given.
        leaders = map(self._topology.leader_of, self.keys.pushed_before)
        return [Send(leader, m.Missing(unfinished)) for leader in leaders]

    def _forget(self, record: KeyRecord, client: int, members: set[NodeId]) -> bool:
        """Return whether the client died while it gave the key its value, so that somebody has to again."""
        unfinished = record.creator in members and not record.is_filled
        if unfinished:
            # All of it is given again: the next creator may have other values than this one had.
            record.filled, record.creator = 0, None
        # Also of keys that are whole: half a contribution of the old run would make one with half of the
        # new.
        for unit in record.distinct_units:
            self.rounds.forget(unit, client, members)
        return unfinished

    def gone(self, message: m.PeerGone, now: float) -> Instructions:
        """The scheduler says that a worker has left or died: fail the rounds that need its client."""
        node = NodeId.parse(message.name)
        # Rounds and values wait for workers alone; a server that is lost is the shell's matter.
        if node.role is not Role.WORKER:
            return []
        client = self._topology.client_of(node.index)
        # Of a run whose successor has connected before the news came: rounds would miss who is there.
        if message.incarnation < self.incarnations.get(client, 0):
            return []
        if message.orderly:
            error: KVStoreError = MismatchError(
                f"{message.reason} while others still push: the workers ran unequal numbers of batches"
            )
        else:
            error = PeerLostError(message.reason)
        # Rank 0 alone gives values and optimizers. It speaks through client 0, whose other ranks die with
        # it; when one of them has merely finished, rank 0 is still there.
        if not message.returns and (node.index == 0 or (client == 0 and not message.orderly)):
            self._deferred.rank_0_is_gone(message)
        # Its next connection says that it is back; until then its rounds count it as departed.
        if message.returns:
            self._awaited.add(client)
        return [*self.rounds.depart(client, error, now), *self._deferred.give_up()]

    def finished(self, peer: NodeId) -> Instructions:
        """Rank 0's program is over, and the rest of its client may go on: it gives no more optimizers."""
        # Its client is not missed in rounds before all of it leaves, which the scheduler says. But who
        # waits for an optimizer may be of that client, and would keep it from leaving.
        reason = f"{self._topology.describe_worker(peer.index)} has finished"
        self._deferred.rank_0_has_finished(m.PeerGone(str(peer), reason, orderly=True))
        return [*self._deferred.give_up()]


def _adopt(peer: NodeId, message: m.Create, record: KeyRecord) -> Instructions:
    """The key has a value: a restarted rank 0 takes that instead of giving its own."""
    problem = _difference(message, record)
    if problem is not None:
        return [failure(peer, problem, record)]
    # Not stable: others may push, and so change the value, before this has left.
    slices = [slice_ for lo, hi in message.runs for slice_ in record.run(lo, hi)]
    return [Answer(peer, (*slice_, 0), stable=False) for slice_ in slices]


def _difference(message: m.Create, record: KeyRecord) -> MismatchError | None:
    """Return in what a key of a snapshot is not the one that a worker has, if that is so."""
    if message.mode != record.store.mode.value:
        return MismatchError(
            f"key {message.spec.key!r} is in a store of the mode {message.mode} here, but the snapshot "
            f"has it in one of the mode {record.store.mode.value}; a job is resumed with the same stores"
        )
    asked = (replace(message.spec, store=record.spec.store), tuple(message.shard))
    known = (record.spec, (record.shard.lo, record.shard.hi))
    if asked == known:
        return None
    # Numbers of keys are those of their order in the script: with one key more or less, every later one
    # would take the value of another.
    return MismatchError(
        f"key number {message.key_id} is {message.spec.describe()} with elements "
        f"{list(message.shard)} here, but the snapshot has {record.spec.describe()} with elements "
        f"{list(known[1])}; a job is resumed with the same model, the keys in the same order"
    )
