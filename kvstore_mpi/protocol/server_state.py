"""A server's decisions: when a round is complete, who is answered, what must wait.

Pure: payloads pass through untouched and the arrays are in ``store.py``. The unit of updating is a
*unit*: one slice of a key under an element-wise optimizer, all slices of the key under one that needs the
whole tensor. Per unit each client has at most one push under way, counted by its sequence.
"""

from __future__ import annotations

import logging
from typing import Any, Iterable, Protocol, Sequence

from ..errors import DeadlineError, InternalError, KVStoreError, MismatchError, PeerLostError, UsageError
from ..p3.schedule import Schedule
from ..records import Mode, NodeId, Role, Slice, Topology
from . import messages as m
from .grace import GracePeriods
from .instructions import Log, Send
from .placement import cut
from .runs import merge
from .server_records import (
    PLAIN,
    Allocate,
    Answers,
    Contribution,
    Fill,
    Instructions,
    KeyRecord,
    Policy,
    Remember,
    Reply,
    StoreRecord,
    Unit,
    Update,
)


class SavedUnit(Protocol):
    """What a snapshot has counted for a unit; see ``server_records.Unit``."""

    @property
    def pushed(self) -> list[int]: ...  # noqa: D102
    @property
    def applied(self) -> list[int]: ...  # noqa: D102
    @property
    def updates(self) -> int: ...  # noqa: D102


class ServerState:
    """The rounds of all keys on one server."""

    def __init__(
        self,
        topology: Topology,
        *,
        slice_elements: int,
        warn_after: float,
        step_timeout: float,
        schedule: Schedule = Schedule.P3,
    ) -> None:
        """Start without keys.

        Args:
            topology: The shape of the job.
            slice_elements: Largest number of elements in a slice; the same on all processes.
            warn_after: Seconds after which a round that waits is logged.
            step_timeout: Seconds after which it fails.
            schedule: Whether slices are updated one by one.
        """
        self._topology = topology
        self._slice_elements = slice_elements
        self._warn_after = warn_after
        self._step_timeout = step_timeout
        self._in_slices = schedule.in_slices
        self._stores: dict[int, StoreRecord] = {}
        self._keys: dict[int, KeyRecord] = {}
        self._early_pulls: dict[int, list[tuple[NodeId, tuple[int, int, int, int], int]]] = {}
        self._open: dict[Unit, bool] = {}  # rounds under way -> already warned about
        self._departed: dict[int, KVStoreError] = {}  # client -> why its pushes will never come
        self._grace = GracePeriods()
        self._early: dict[int, tuple[Any, bool, Policy]] = {}  # optimizer before the store's first key
        self._awaiting: list[tuple[NodeId, m.AwaitOptimizer]] = []
        self._without_rank_0: m.PeerGone | None = None
        self.lives: dict[int, int] = {}  # how often a client has been restarted
        self._counts: dict[int, dict[int, int]] = {}  # pushes before this server was, by client and key

    # --- keys ---

    def create(self, peer: NodeId, message: m.Create, payloads: list[Any]) -> Instructions:
        """Rank 0 creates (more slices of) a key; its buffer is its own again when that is done."""
        out: Instructions = []
        record = self._keys.get(message.key_id)
        if record is not None and record.is_filled:
            return [] if message.seed else self._adopt(peer, message, record)
        if record is None:
            record = self._make(message)
            out.append(Allocate(message))
        if record.creator not in (None, peer):
            return self._wait_for_creator(peer, message)
        record.creator = peer
        for (lo, hi), payload in zip(message.runs, payloads):
            record.filled += len(record.pieces(lo, hi))
            out.append(Fill(Slice(message.key_id, lo, hi), payload))
        if not message.seed:
            out.append(Send(peer, m.Applied([(message.key_id, lo, hi, 0) for lo, hi in message.runs])))
        if record.is_filled:
            for waiting, entry, priority in self._early_pulls.pop(message.key_id, ()):
                out += self.pull(waiting, m.Pull([entry], priority))
        return out

    def _wait_for_creator(self, peer: NodeId, message: m.Create) -> Instructions:
        """Somebody else is giving this key its value after a restart; the first one counts."""
        if not message.seed:
            wanted = [(peer, (message.key_id, lo, hi, 0), 0) for lo, hi in message.runs]
            self._early_pulls.setdefault(message.key_id, []).extend(wanted)
        return []

    def _make(self, message: m.Create) -> KeyRecord:
        record = self._keys[message.key_id] = KeyRecord(message)
        self._store(message.store, Mode(message.mode))
        record.slices = [s for _, s in cut(message.key_id, [record.shard], self._slice_elements)]
        self._form_units(record)
        return record

    def _adopt(self, peer: NodeId, message: m.Create, record: KeyRecord) -> Instructions:
        """The key has a value: a restarted rank 0 takes that instead of giving its own."""
        asked = (message.key, message.shape, message.dtype, tuple(message.shard))
        known = (record.key, record.shape, record.dtype, (record.shard.lo, record.shard.hi))
        if asked != known:
            text = (
                f"key number {message.key_id} is {message.key!r} {message.shape} {message.dtype} with "
                f"elements {list(message.shard)} here, but the snapshot has {record.key!r} {record.shape} "
                f"{record.dtype} with elements {list(known[3])}; a job is resumed with the same model, the "
                "keys in the same order"
            )
            return [_failure(peer, MismatchError(text), record)]
        entries = [(*piece, 0) for lo, hi in message.runs for piece in record.pieces(lo, hi)]
        return [Reply(peer, entries, stable=False)]

    def _store(self, number: int, mode: Mode) -> StoreRecord:
        store = self._stores.get(number)
        if store is None:
            store = self._stores[number] = StoreRecord(mode)
            if number in self._early:
                live, whole, policy = self._early.pop(number)
                store.take(live, whole=whole, policy=policy)
                store.optimizer = True
        return store

    def _form_units(self, record: KeyRecord) -> None:
        """Group a key's slices into units as its store's optimizer, or the schedule, needs them."""
        whole = self._stores[record.store].whole or not self._in_slices
        groups = [record.slices] if whole else [[piece] for piece in record.slices]
        old = next(iter(record.units.values()))[0] if record.units else None
        record.units = {}
        for parts in groups:
            unit = Unit(record, parts, self._topology.num_clients)
            for client, counts in self._counts.items():
                unit.skip_to(client, counts.get(record.key_id, 0))
            if old is not None:
                unit.applied, unit.pushed = list(old.applied), list(old.pushed)
            for position, piece in enumerate(parts):
                record.units[piece.lo] = (unit, position)

    # --- optimizer ---

    def has_optimizer(self, number: int) -> bool:
        """Return whether a store has an optimizer."""
        return number in self._early or (number in self._stores and self._stores[number].optimizer)

    def check_optimizer(self, number: int, *, whole: bool, policy: Policy = PLAIN) -> None:
        """Raise where a store cannot take an optimizer.

        Other clients than rank 0's may have pushed already: their rounds wait for it.

        Raises:
            UsageError: Pushes are under way that the change would affect, the optimizer needs whole
                tensors and a key of the store is already spread over servers, or it takes parameters and
                the one before it gradients.
        """
        store = self._stores.get(number)
        if store is not None and store.optimizer and store.policy.params != policy.params:
            raise UsageError(
                "the optimizer of a store takes either gradients or parameters, and cannot be replaced by "
                "one of the other kind; create a store for each"
            )
        for record in self._keys.values():
            if record.store != number:
                continue
            regroup = self._stores[number].whole != whole
            if any(u.contributions and (regroup or 0 in u.contributions) for u, _ in record.units.values()):
                raise UsageError(
                    f"set_optimizer while a push of key {record.key!r} is under way; wait for it first"
                )
            if whole and not self._stores[number].whole and self._topology.num_servers > 1:
                raise UsageError(
                    f"this optimizer needs whole tensors, but key {record.key!r} was initialised before "
                    "set_optimizer and may be spread over servers; call set_optimizer first"
                )

    def set_optimizer(self, number: int, live: Any, *, whole: bool, policy: Policy = PLAIN) -> Instructions:
        """Note that a store now has an optimizer (``check_optimizer`` came first)."""
        store = self._stores.get(number)
        if store is None:
            self._early[number] = (live, whole, policy)
        else:
            self._replace_optimizer(number, store, live, whole=whole, policy=policy)
        ready = [(peer, wait) for peer, wait in self._awaiting if wait.store == number]
        self._awaiting = [waiting for waiting in self._awaiting if waiting not in ready]
        return [Send(peer, m.Ok(wait.request, policy.spec)) for peer, wait in ready]

    def _replace_optimizer(
        self, number: int, store: StoreRecord, live: Any, *, whole: bool, policy: Policy
    ) -> None:
        regroup = store.whole != whole
        store.optimizer = True
        store.take(live, whole=whole, policy=policy)
        for record in self._keys.values():
            if record.store == number:
                if regroup:
                    self._form_units(record)
                for unit, _ in record.units.values():
                    unit.updates = 0

    def await_optimizer(self, peer: NodeId, message: m.AwaitOptimizer) -> Instructions:
        """Answer once rank 0's optimizer is here, so that no push of an async store comes before it."""
        store = self._stores.get(message.store)
        if message.store in self._early:
            return [Send(peer, m.Ok(message.request, self._early[message.store][2].spec))]
        if store is not None and store.optimizer:
            return [Send(peer, m.Ok(message.request, store.policy.spec))]
        self._awaiting.append((peer, message))
        return self._give_up_on_rank_0()

    def set_live(self, number: int, live: Any) -> None:
        """Change the live numbers for pushes that arrive from now on."""
        if number in self._stores:
            self._stores[number].live = live
        elif number in self._early:
            self._early[number] = (live, *self._early[number][1:])

    def units(self, number: int) -> Iterable[Unit]:
        """Return the units of a store's keys, in order of keys and elements."""
        for key_id in sorted(self._keys):
            record = self._keys[key_id]
            if record.store == number:
                yield from dict.fromkeys(unit for unit, _ in record.units.values())

    def unit(self, key_id: int, lo: int) -> Unit | None:
        """Return the unit that a slice belongs to, if this server has it."""
        record = self._keys.get(key_id)
        found = record.units.get(lo) if record else None
        return found[0] if found else None

    # --- push ---

    def push(self, peer: NodeId, message: m.Push, payloads: list[Any], now: float) -> Instructions:
        """A client's leader pushes slices."""
        client = self._topology.client_of(peer.index)
        out: Instructions = []
        answers: Answers = {}
        stable = True
        for (key_id, lo, hi, sequence, wants_value), payload in zip(message.entries, payloads):
            record = self._keys.get(key_id)
            if record is None or not record.is_filled:
                out += self._push_too_early(peer, message, (key_id, lo, hi, sequence), wants_value)
                continue
            store = self._stores[record.store]
            stable = stable and store.stable
            for piece in record.pieces(lo, hi):
                unit, position = record.units[piece.lo]
                if sequence <= unit.pushed[client] or unit.has(client, position):
                    # A repetition of what was counted before.
                    if store.policy.params and sequence == unit.applied[client]:
                        reply = (peer, piece.lo, wants_value, message.shared, message.priority)
                        out += self._settle(unit, [reply], sequence, answers, base=store.policy.bases)
                    continue
                problem = self._problem(unit, store, client)
                if problem is not None:
                    out.append(_failure(peer, problem, record))
                    continue
                contribution = self._contribution(unit, client, sequence, now)
                contribution.payloads[position] = record.part(piece, lo, payload, message.bits)
                contribution.replies.append((peer, piece.lo, wants_value, message.shared, message.priority))
                contribution.live = store.live
                if unit.is_whole(contribution):
                    unit.pushed[client] = sequence
                    out += self._advance(unit, store, client, answers, now)
        for (who, shared, priority, base), replies in answers.items():
            out.append(Reply(who, replies, stable, shared, priority, base))
        return out

    def _push_too_early(
        self, peer: NodeId, message: m.Push, entry: tuple[int, int, int, int], wants_value: bool
    ) -> Instructions:
        """This server was restarted without the key: the push is lost, its value comes when it has one."""
        key_id, _, _, sequence = entry
        self._counts.setdefault(self._topology.client_of(peer.index), {})[key_id] = sequence
        if not wants_value:
            return [Send(peer, m.Applied([entry]))]
        self._early_pulls.setdefault(key_id, []).append((peer, entry, message.priority))
        return []

    def _contribution(self, unit: Unit, client: int, sequence: int, now: float) -> Contribution:
        contribution = unit.contributions.get(client)
        if contribution is None:
            contribution = unit.contributions[client] = Contribution(sequence)
            if unit not in self._open:
                self._open[unit] = False
                unit.since = now
        return contribution

    def _problem(self, unit: Unit, store: StoreRecord, client: int) -> KVStoreError | None:
        if store.mode is Mode.ASYNC:
            if not store.optimizer:
                return UsageError(
                    f"push of key {unit.key.key!r} to an async store without an optimizer: "
                    "call set_optimizer before the first push"
                )
            return None
        if store.policy.quorum:
            return None
        for departed, error in self._departed.items():
            if departed != client and departed not in unit.contributions:
                return self._stranded(unit, departed, error)
        return None

    def _stranded(self, unit: Unit, client: int, error: KVStoreError) -> KVStoreError:
        text = f"{error}; it has pushed key {unit.key.key!r} {unit.pushed[client]} times"
        return type(error)(text)

    def _advance(
        self, unit: Unit, store: StoreRecord, client: int, answers: Answers, now: float
    ) -> Instructions:
        """Carry out the update if the round is complete, and collect the answers."""
        if store.mode is Mode.ASYNC:
            return self._close(unit, store, [client], answers, now)
        if store.policy.quorum:
            return self._advance_quorum(unit, store, answers, now)
        complete = len(unit.contributions) == self._topology.num_clients and all(
            map(unit.is_whole, unit.contributions.values())
        )
        return self._close(unit, store, sorted(unit.contributions), answers, now) if complete else []

    def _advance_quorum(
        self, unit: Unit, store: StoreRecord, answers: Answers, now: float, *, late: bool = False
    ) -> Instructions:
        """Close a round for which nobody is missing, or that has waited long enough (``late``).

        A client that comes late opens the next round, for which the others may have nothing yet, or never
        will: they have pushed as often already, and count for the quorum. So it waits for ``grace``, too.
        """
        here = sorted(c for c, contribution in unit.contributions.items() if unit.is_whole(contribution))
        missing = set(range(self._topology.num_clients)).difference(here, self._departed)
        if here and (late or not missing):
            self._grace.end(unit)
            return self._close(unit, store, here, answers, now)
        if here:
            behind = min(unit.contributions[client].sequence for client in here)
            if sum(pushed >= behind for pushed in unit.pushed) >= store.policy.quorum:
                self._grace.begin(unit, now + store.policy.grace)
        return []

    def close_rounds(self, now: float) -> Instructions:
        """Close the rounds whose grace period is over."""
        out: Instructions = []
        for unit in self._grace.over(now):
            out += self._close_if_ready(unit, now, late=True)
        return out

    def _close_if_ready(self, unit: Unit, now: float, *, late: bool = False) -> Instructions:
        store = self._stores[unit.key.store]
        answers: Answers = {}
        out = self._advance_quorum(unit, store, answers, now, late=late)
        for (who, shared, priority, base), replies in answers.items():
            out.append(Reply(who, replies, store.stable, shared, priority, base))
        return out

    def next_deadline(self) -> float | None:
        """Return when ``close_rounds`` has something to do, if it has."""
        return self._grace.next()

    def _close(
        self, unit: Unit, store: StoreRecord, clients: list[int], answers: Answers, now: float
    ) -> Instructions:
        """Update a unit with what some clients have pushed, and collect their answers."""
        contributions = [unit.contributions.pop(client) for client in clients]
        policy = store.policy
        stale = unit.updates - unit.seen[clients[0]] if policy.staleness else 0
        unit.updates += 1
        unit.since = now
        if not unit.contributions:
            self._open.pop(unit, None)  # not there if it had waited too long
        out: Instructions = [
            Update(unit, contributions, contributions[0].live, unit.updates, clients, stale)
        ]
        for who, contribution in zip(clients, contributions):
            unit.applied[who] = contribution.sequence
            out += self._settle(
                unit, contribution.replies, contribution.sequence, answers, base=policy.bases
            )
            if policy.bases or policy.staleness:
                out += self._sent(unit, policy, who, contribution)
        return out + self._ready_pulls(unit)

    def _sent(self, unit: Unit, policy: Policy, client: int, contribution: Contribution) -> Instructions:
        """Note what a client is answered with; a rule that takes parameters sets the base by itself."""
        entries = [
            (*unit.parts[unit.key.units[lo][1]], contribution.sequence)
            for _, lo, wants_value, _, _ in contribution.replies
            if wants_value
        ]
        if not entries:
            return []
        unit.seen[client] = unit.updates
        return [Remember(client, entries)] if policy.bases and not policy.params else []

    def _settle(
        self,
        unit: Unit,
        replies: list[tuple[NodeId, int, bool, bool, int]],
        sequence: int,
        answers: Answers,
        *,
        base: bool,
    ) -> Instructions:
        applied: dict[NodeId, list[tuple[int, int, int, int]]] = {}
        for peer, lo, wants_value, shared, priority in replies:
            piece = unit.parts[unit.key.units[lo][1]]
            entry = (*piece, sequence)
            if wants_value:
                answers.setdefault((peer, shared, priority, base), []).append(entry)
            else:
                applied.setdefault(peer, []).append(entry)
        return [Send(peer, m.Applied(merge(entries))) for peer, entries in applied.items()]

    # --- pull ---

    def pull(self, peer: NodeId, message: m.Pull) -> Instructions:
        """A worker asks for values; those that are not there yet are answered when they are."""
        client = self._topology.client_of(peer.index)
        ready = []
        out: Instructions = []
        for entry in message.entries:
            key_id, lo, hi, after = entry
            record = self._keys.get(key_id)
            if record is None or not record.is_filled:
                self._early_pulls.setdefault(key_id, []).append((peer, entry, message.priority))
                out += self._give_up_on_rank_0()
                continue
            for piece in record.pieces(lo, hi):
                unit, _ = record.units[piece.lo]
                if unit.applied[client] >= after:
                    ready.append((*piece, after))
                else:
                    unit.pulls.append((peer, piece, after, message.priority))
        return [*out, *self._pulled(peer, client, ready, message.priority)] if ready else out

    def _pulled(
        self, peer: NodeId, client: int, ready: list[tuple[int, int, int, int]], priority: int
    ) -> Instructions:
        """Answer a pull; under a rule that looks at what clients have seen, note that this one has."""
        remembered: Instructions = []
        for entry in ready:
            record = self._keys[entry[0]]
            policy = self._stores[record.store].policy
            if policy.staleness:
                unit, _ = record.units[entry[1]]
                unit.seen[client] = unit.updates
            if policy.pulls:
                remembered.append(Remember(client, [entry]))
        return [*remembered, Reply(peer, ready, stable=False, priority=priority)]

    def _ready_pulls(self, unit: Unit) -> Instructions:
        if not unit.pulls:
            return []
        waiting, unit.pulls = unit.pulls, []
        out: Instructions = []
        for peer, piece, after, priority in waiting:
            client = self._topology.client_of(peer.index)
            if unit.applied[client] >= after:
                out += self._pulled(peer, client, [(*piece, after)], priority)
            else:
                unit.pulls.append((peer, piece, after, priority))
        return out

    # --- snapshots ---

    def whole_keys(self) -> list[KeyRecord]:
        """Return the keys that have their initial value."""
        return [record for record in self._keys.values() if record.is_filled]

    def mode_of(self, record: KeyRecord) -> Mode:
        """Return the mode of a key's store."""
        return self._stores[record.store].mode

    def live_of(self, number: int) -> Any:
        """Return the newest numbers of a store's update rule, if it has keys."""
        return self._stores[number].live if number in self._stores else None

    def restore(self, message: m.Create, units: Sequence[SavedUnit], *, counts: bool) -> None:
        """Take up a key from a snapshot, after its store's update rule; with what its clients counted."""
        record = self._make(message)
        record.filled = len(record.slices)
        for unit, was in zip(record.distinct_units, units):
            unit.updates = was.updates
            unit.seen = [was.updates] * self._topology.num_clients
            if counts:
                unit.pushed, unit.applied = list(was.pushed), list(was.applied)

    # --- departures and time ---

    def resume(self, peer: NodeId, message: m.Resume) -> Instructions:
        """A client has noticed that this server was restarted, and does not repeat what it has pushed."""
        client = self._topology.client_of(peer.index)
        self._counts[client] = dict(message.keys)
        out: Instructions = []
        missing = []
        for key_id, pushes in message.keys:
            record = self._keys.get(key_id)
            if record is None or not record.is_filled:
                missing.append(key_id)
                continue
            for unit in record.distinct_units:
                unit.skip_to(client, pushes)
                out += self._ready_pulls(unit)
        return [*out, Send(peer, m.Missing(missing))] if missing else out

    def begins(self, peer: NodeId, incarnation: int) -> list[Send] | None:
        """A worker has connected; ``None`` unless its client was restarted, and so counts from the start.

        What an earlier run has pushed completely stays in the values; the rest is dropped.
        """
        client = self._topology.client_of(peer.index)
        if incarnation <= self.lives.get(client, 0):
            return None
        self.lives[client] = incarnation
        self._counts.pop(client, None)
        self._departed.pop(client, None)
        members = {NodeId(Role.WORKER, rank) for rank in self._topology.members_of(client)}
        if NodeId(Role.WORKER, 0) in members:
            self._without_rank_0 = None
        unfinished = [
            key_id for key_id, record in self._keys.items() if self._forget(record, client, members)
        ]
        for key_id, pulls in list(self._early_pulls.items()):
            self._early_pulls[key_id] = [pull for pull in pulls if pull[0] not in members]
        self._awaiting = [each for each in self._awaiting if each[0] not in members]
        others = [self._topology.leader_of(each) for each in self._counts] if unfinished else []
        return [Send(leader, m.Missing(unfinished)) for leader in others]

    def _forget(self, record: KeyRecord, client: int, members: set[NodeId]) -> bool:
        """Return whether the client died while it gave the key its value, so that somebody has to again."""
        unfinished = record.creator in members and not record.is_filled
        if unfinished:
            record.filled, record.creator = 0, None
        for unit in record.distinct_units:
            unit.forget(client, members)
            if not unit.contributions:
                self._open.pop(unit, None)
        return unfinished

    def gone(self, message: m.PeerGone, now: float) -> Instructions:
        """The scheduler says that a worker has left or died: fail the rounds that need its client."""
        node = NodeId.parse(message.name)
        if node.role is not Role.WORKER:
            return []
        client = self._topology.client_of(node.index)
        if message.orderly:
            error: KVStoreError = MismatchError(
                f"{message.reason} while others still push: the workers ran unequal numbers of batches"
            )
        else:
            error = PeerLostError(message.reason)
        self._departed[client] = error
        if not message.returns and (node.index == 0 or (client == 0 and not message.orderly)):
            self._without_rank_0 = message
        out: Instructions = []
        for unit in list(self._open):
            store = self._stores[unit.key.store]
            if store.policy.quorum:
                out += self._close_if_ready(unit, now)
            elif client not in unit.contributions and store.mode is Mode.SYNC:
                out += self._fail(unit, self._stranded(unit, client, error))
        return [*out, *self._give_up_on_rank_0()]

    def _give_up_on_rank_0(self) -> Instructions:
        """Fail what waits for something that only rank 0 gives, if it is gone."""
        gone = self._without_rank_0
        if gone is None:
            return []
        error = MismatchError.__name__ if gone.orderly else PeerLostError.__name__
        text = f"{gone.reason} without having given {{}} to the servers".format
        pulling = dict.fromkeys(peer for pulls in self._early_pulls.values() for peer, *_ in pulls)
        lost = [Send(peer, m.Failure(error, text("the initial value of a key"))) for peer in pulling]
        for peer, wait in self._awaiting:
            lost.append(Send(peer, m.Failure(error, text("an optimizer"), request=wait.request)))
        self._early_pulls.clear()
        self._awaiting.clear()
        return [*lost]

    def _fail(self, unit: Unit, error: KVStoreError) -> Instructions:
        peers = dict.fromkeys(peer for c in unit.contributions.values() for peer, *_ in c.replies)
        peers.update(dict.fromkeys(peer for peer, *_ in unit.pulls))
        return [_failure(peer, error, unit.key) for peer in peers]

    def tick(self, now: float) -> Instructions:
        """Say which rounds wait for whom, and fail those that have waited too long."""
        out: Instructions = []
        for unit, warned in list(self._open.items()):
            waited = now - unit.since
            if waited > self._step_timeout:
                out += self._fail(unit, DeadlineError(self._waiting(unit, waited)))
                del self._open[unit]
            elif waited > self._warn_after and not warned:
                self._open[unit] = True
                out.append(Log(logging.WARNING, self._waiting(unit, waited)))
        return out

    def _waiting(self, unit: Unit, waited: float) -> str:
        here = sorted(unit.contributions)
        missing = [c for c in range(self._topology.num_clients) if c not in unit.contributions]
        return (
            f"key {unit.key.key!r}: round {max(unit.pushed)} has waited {waited:.0f} s for the push of "
            f"client {_listed(missing)}; client {_listed(here)} has pushed"
        )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _failure(peer: NodeId, error: KVStoreError, key: KeyRecord) -> Send:
    if isinstance(error, InternalError):
        raise error
    return Send(peer, m.Failure(type(error).__name__, str(error), key.store, key.key))
