"""When the round of a unit is closed, by which pushes, and who is answered then.

Pure. A round of a synchronous store is closed when all clients have pushed the unit; with a quorum, when
enough of them have and the quorum wait is over; that of an asynchronous store by every push.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import KVStoreError, MismatchError, UsageError
from kvstore_mpi.records import Mode, NodeId, Topology
from kvstore_mpi.server.failures import fail_round, failure, stranded
from kvstore_mpi.server.held_steps import HeldSteps
from kvstore_mpi.server.late_rounds import LateRounds
from kvstore_mpi.server.pulls import note_answered, ready_pulls
from kvstore_mpi.server.records import (
    Answer,
    Asker,
    Closed,
    Contribution,
    Entry,
    Hold,
    Instruction,
    Instructions,
    KeyRecord,
    Remember,
    Unit,
    Update,
)
from kvstore_mpi.values.coding import RAW, Coded
from kvstore_mpi.values.dense import merge
from kvstore_mpi.values.row_payloads import request_in
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping


class Rounds:
    """The rounds under way on one server, and the clients that will not push any more.

    Attributes:
        held: What has been summed and waits for the rest of its step.
        under_way: Rounds to which somebody has pushed, in the order in which they began.
        closed: How many rounds have been closed.
        stale: Of asynchronous stores, updates since each push's client had pushed before, added up.
    """

    def __init__(
        self,
        topology: Topology,
        keys: dict[int, KeyRecord],
        too_early: Callable[[NodeId, m.Push, Entry, bool], Instructions],
        *,
        warn_after: float,
        step_timeout: float,
    ) -> None:
        """Start without rounds, with all clients there.

        Args:
            topology: The shape of the job.
            keys: Those of the server, by number.
            too_early: Takes a push of a key that has no value here.
            warn_after: Seconds after which a round that waits is logged.
            step_timeout: Seconds after which it fails.
        """
        self._topology = topology
        self._keys = keys
        self._too_early = too_early
        self._warn_after = warn_after
        self._step_timeout = step_timeout
        self.under_way: dict[Unit, None] = {}
        self.closed = self.stale = 0
        self.held = HeldSteps(keys)
        self._late = LateRounds(self.held.awaited)
        self._departed: dict[int, KVStoreError] = {}  # client -> why its pushes will never come
        self._quorum_waits: dict[Unit, float] = {}  # rounds with their quorum -> when they are closed

    # --- pushes ---

    def push(self, peer: NodeId, message: m.Push, payloads: list[Any], now: float) -> Instructions:
        """A client pushes slices: count each once, and close the rounds that are complete by them."""
        out: Instructions = []
        for entry, payload, (record, units) in zip(message.entries, payloads, self._runs(message)):
            key_id, lo, hi, sequence, wants_value = entry
            if record is None:
                out += self._too_early(peer, message, (key_id, lo, hi, sequence), wants_value)
                continue
            # One for all slices of the run: they are answered alike, each when its own round is closed.
            asker = Asker(peer, wants_value, message.shared, message.priority)
            if record.is_table:
                asker = asker._replace(request=request_in(payload))
            pusher = peer.index // record.pusher_size
            for unit, position in units:
                contribution = unit.contributions.get(pusher)
                # A unit of several slices is counted in ``pushed`` when it is whole; until then a slice of
                # it is recognised by its place. Without the second test a repetition, which nobody has to
                # repeat with the same content, would replace what was counted.
                if sequence <= unit.pushed[pusher] or (contribution and position in contribution.payloads):
                    out += _repeated(unit, pusher, sequence, {position: asker})
                    continue
                # Only now: what has been counted is answered even if nothing new can be.
                problem = self._problem(unit, pusher)
                if problem is not None:
                    out.append(failure(peer, problem, record))
                    continue
                if contribution is None:
                    contribution = self._begin(unit, pusher, sequence, now)
                # A view: what is pushed stays in the receive buffer until its round is closed. What is
                # coded is one slice's, and is not cut.
                contribution.payloads[position] = (
                    record.layout.part(payload, lo, *unit.slices[position][1:])
                    if message.coding == RAW
                    else Coded(payload, message.coding)
                )
                contribution.askers[position] = asker
                # The numbers as they are when the push comes, not when its round is closed: rank 0 may have
                # changed them since, for the pushes that follow its own.
                contribution.hyper = record.store.hyper
                if len(contribution.payloads) == len(unit.slices):
                    # Before the round advances: a quorum counts who has pushed as often as this client.
                    unit.pushed[pusher] = sequence
                    out += _carried(self._advance(unit, pusher, now))
        return out

    def _runs(self, message: m.Push) -> list[tuple[KeyRecord | None, list[tuple[Unit, int]]]]:
        """Return of each entry the key, if it has a value here, with the units of its slices."""
        # Before any counts: after an error at a later one, rounds would be closed that nobody carries out.
        runs: list[tuple[KeyRecord | None, list[tuple[Unit, int]]]] = []
        for key_id, lo, hi, *_ in message.entries:
            record = self._keys.get(key_id)
            is_away = record is None or record.filled < len(record.slices)
            runs.append((None, []) if is_away or record is None else (record, [*_units(record, lo, hi)]))
        return runs

    def _problem(self, unit: Unit, pusher: int) -> KVStoreError | None:
        """Return why a pusher's push cannot be taken, or its round not be closed, if that is so."""
        store = unit.key.store
        if store.mode is Mode.ASYNC:
            # Without a rule the sum becomes the value: the weights would be replaced by a gradient of one
            # client, and by the next client's after that.
            if not store.has_optimizer:
                return UsageError(
                    f"push of key {unit.key.key!r} to an async store without an optimizer: "
                    "call set_optimizer before the first push"
                )
            return None
        # A quorum does without any client, so that no departure strands its rounds.
        if store.terms.quorum:
            return None
        # A client that has left may have pushed this round before it did: only then can it be closed.
        for departed, error in self._departed.items():
            missing = set(unit.key.pushers_of(departed)).difference(unit.contributions, [pusher])
            if missing:
                return stranded(unit, missing, error)
        return None

    def _begin(self, unit: Unit, pusher: int, sequence: int, now: float) -> Contribution:
        """Return what a pusher is going to contribute to the round; the first one begins it."""
        contribution = unit.contributions[pusher] = Contribution(sequence)
        # It is there already if another one has pushed: the round is as old as its first push.
        if unit not in self.under_way:
            self.under_way[unit] = None
            unit.since = now
        return contribution

    def _advance(self, unit: Unit, pusher: int, now: float) -> Closed | Hold | None:
        """A pusher has pushed the whole unit: close the round if it is complete."""
        store = unit.key.store
        if store.mode is Mode.ASYNC:
            # This client alone: of a unit of several slices others may have pushed a part, which stays.
            return self._close(unit, [pusher], now)
        if store.terms.quorum:
            return self._advance_quorum(unit, now)
        # A contribution counts when it has all slices: half a tensor must not be updated.
        # They are summed in the order of pushers and not of arrival: a float sum depends on its order, and
        # the same job would give other bits each time.
        complete = len(_whole(unit)) == unit.key.num_pushers
        # With a bound on the norm of all gradients none can be applied before the last one is here.
        if complete and store.terms.clip_norm and self.held.awaits(unit):
            return Hold(unit)
        return self._close(unit, sorted(unit.contributions), now) if complete else None

    def release(self, units: Iterable[Unit], now: float) -> Iterator[Instruction]:
        """The norm of a step is known, and in the numbers of its units: close their rounds."""
        for unit in units:
            yield from _carried(self._close(unit, sorted(unit.contributions), now))

    def _advance_quorum(self, unit: Unit, now: float, *, late: bool = False) -> Closed | None:
        """Close a round for which nobody is missing, or that has waited long enough (``late``).

        With a quorum a round is closed when all clients that are alive have pushed, or when the quorum has
        and ``quorum_wait`` has passed since then; who comes later takes part in the next round. The scheme
        is that of Decoupled DiLoCo's synchroniser (arXiv 2604.21428) with a fixed window.

        A client that comes late opens the next round, and waits for ``quorum_wait`` at most, too.
        """
        # In the order of clients, as without a quorum: a float sum depends on it.
        here = sorted(_whole(unit))
        # Who has departed is not waited for. If nobody is left who could push, what is here closes it.
        gone = (pusher for client in self._departed for pusher in unit.key.pushers_of(client))
        missing = set(range(unit.key.num_pushers)).difference(here, gone)
        if here and (late or not missing):
            # Or the end of this wait would close the next round as soon as somebody has pushed to it.
            self._quorum_waits.pop(unit, None)
            return self._close(unit, here, now)
        if unit.has_quorum(here):
            # Not moved by the next push with the quorum: clients that come often would keep it open.
            self._quorum_waits.setdefault(unit, now + unit.key.store.terms.quorum_wait)
        return None

    def _close(self, unit: Unit, clients: list[int], now: float) -> Closed:
        """Update a unit with what some clients, or other pushers, have pushed, and answer them.

        A contribution that is not whole stays for the next round.
        """
        contributions = [unit.contributions.pop(client) for client in clients]
        terms, is_async = unit.key.store.terms, unit.key.store.mode is Mode.ASYNC
        self.closed += 1
        # Before the count moves: ``seen`` is of the value that this client has computed with.
        late = unit.updates - unit.seen[clients[0]]
        stale = late if terms.staleness else 0
        self.stale += late if is_async else 0
        unit.updates += 1
        scheduled = unit.key.store.note_updates(unit.updates) if is_async else unit.updates
        # What is left waits for the next round, which begins here; without any none is late, or fails.
        unit.since = now
        if not unit.contributions:
            self.under_way.pop(unit, None)  # not there if it had waited too long
        # The numbers of the first client: in a synchronous round rank 0's, which all others follow.
        hyper, summed, unit.summed = contributions[0].hyper, unit.summed, None
        takers = _takers(unit, contributions)
        update = Update(unit, contributions, hyper, unit.updates, clients, stale, summed, takers, scheduled)
        out: list[Answer | Remember | Send] = []
        for who, contribution in zip(clients, contributions):
            # Before ``ready_pulls`` looks: a pull after this push finds it in the value.
            unit.applied[who] = contribution.sequence
            out += answers(unit, contribution.askers, contribution.sequence, written=bool(takers))
            if terms.bases or terms.staleness:
                out += note_answered(unit, who, contribution)
            elif is_async:
                unit.seen[who] = unit.updates
        return Closed(update, [*out, *ready_pulls(unit, self._topology)] if unit.pulls else out)

    # --- time ---

    def close_due(self, now: float) -> Instructions:
        """Close the rounds whose quorum wait is over."""
        out: Instructions = []
        # Listed first: a round that is closed goes out of the table.
        for unit in [unit for unit, due in self._quorum_waits.items() if due <= now]:
            out += _carried(self._advance_quorum(unit, now, late=True))
        return out

    def next_deadline(self) -> float | None:
        """Return when ``close_due`` has something to do, if it has."""
        return min(self._quorum_waits.values(), default=None)

    def tick(self, now: float) -> Instructions:
        """Say which rounds wait for whom, and fail those that have waited too long."""
        out: Instructions = []
        # A step that is whole here waits for other servers, which say for what.
        waiting = [unit for unit in self.under_way if not self.held.is_complete(unit)]
        overdue = [unit for unit in waiting if now - unit.since > self._step_timeout]
        for unit, error in self._late.errors(overdue, waiting, now):
            out += fail_round(unit, error)
            # Failed once, and not at each tick. What was pushed stays counted: a late push finds its round.
            del self.under_way[unit]
        late = [unit for unit in waiting if unit in self.under_way and now - unit.since > self._warn_after]
        return [*out, *self._late.tell(late, now)]

    # --- clients that go and come back ---

    def depart(self, client: int, error: KVStoreError, now: float) -> Instructions:
        """A client pushes nothing more for now: close the rounds that wait for it alone, or fail them."""
        # Before the rounds are looked at: who has departed is not waited for.
        self._departed[client] = error
        out: Instructions = []
        for unit in list(self.under_way):
            store = unit.key.store
            if store.terms.quorum:
                # It may have been the last one that the round waited for.
                out += _carried(self._advance_quorum(unit, now))
            # A round to which it has pushed needs nothing more of it, and is closed by the others.
            elif store.mode is Mode.SYNC:
                missing = set(unit.key.pushers_of(client)).difference(unit.contributions)
                out += fail_round(unit, stranded(unit, missing, error)) if missing else []
        return out

    def come_back(self, client: int) -> None:
        """A client that was restarted, or comes late, pushes."""
        self._departed.pop(client, None)

    def close(self, stores: Iterable[int], keys: Container[int]) -> None:
        """Some stores are over, of which these were the keys: nobody waits for their rounds any more."""
        # There are some where a client was lost in the middle of a push.
        for rounds in (self.under_way, self._quorum_waits):
            for unit in [unit for unit in rounds if unit.key.key_id in keys]:
                del rounds[unit]
        self.held.close(stores)

    def forget(self, unit: Unit, client: int, members: set[NodeId]) -> None:
        """Drop what a client that was restarted had under way with a unit."""
        unit.forget(client, members)
        # A round without pushes is none: left here it would keep its age, and the next push would soon
        # fail. And a wait that nobody ends would be over at each look, and the I/O loop never sleep.
        if not unit.contributions:
            self.under_way.pop(unit, None)
        # What is left may be fewer than the quorum; the end of the wait would close the round with them.
        if not unit.has_quorum(_whole(unit)):
            self._quorum_waits.pop(unit, None)


def _units(record: KeyRecord, lo: int, hi: int) -> Iterator[tuple[Unit, int]]:
    """Yield the units, and the positions in them, of the slices that make up a run.

    Raises:
        MismatchError: No slice of this key begins there, or one goes on after the run: the peer cuts keys
            in another way.
    """
    while True:
        found = record.units.get(lo)
        end = -1 if found is None else found[0].slices[found[1]].hi
        if found is None or end > hi:
            text = f"key {record.key!r} has no slice from element {lo} on that ends by element {hi}"
            raise MismatchError(f"{text}; slice_elements must be the same on all processes")
        yield found
        lo = end
        # At the end, not before: an empty key has one empty slice, which is pushed like any other.
        if lo >= hi:
            return


def _whole(unit: Unit) -> list[int]:
    """Return the clients that have pushed all slices of a unit."""
    num_slices = len(unit.slices)
    return [client for client, each in unit.contributions.items() if len(each.payloads) == num_slices]


def _repeated(unit: Unit, client: int, sequence: int, askers: dict[int, Asker]) -> list[Answer | Send]:
    """A push came that has been counted before: it must not be applied twice.

    Only an exchange of parameters is repeated by its client, which then waits for its answer once more.
    """
    # If its round is open still, the answer is to come. If a later push of the client is in, it has had its
    # answer, and the value of that push must not be sent as the answer to this one.
    if unit.key.store.terms.params and sequence == unit.applied[client]:
        return answers(unit, askers, sequence)
    return []


# --- answers ---


def _takers(unit: Unit, contributions: Iterable[Contribution]) -> list[NodeId]:
    """Return in whose buffers a unit's new value is written at once: it must stay until they are told."""
    store = unit.key.store
    # Of several slices a peer may have pushed some only; rows of a table go as they are asked for.
    if not store.stable or store.terms.bases or unit.key.is_table or len(unit.slices) > 1:
        return []
    askers = (asker for contribution in contributions for asker in contribution.askers.values())
    return [asker.peer for asker in askers if asker.wants_value and asker.shared]


def answers(
    unit: Unit, askers: Mapping[int, Asker], sequence: int, *, written: bool = False
) -> list[Answer | Send]:
    """Answer a client's push of slices of a unit; who wants no value is told that the push is applied.

    Args:
        unit: The unit.
        askers: Who has pushed which slice, by its position.
        sequence: Of the push.
        written: Who shares a buffer has the value in it.
    """
    store = unit.key.store
    stable, base = store.stable, store.terms.bases
    slices = unit.slices
    out: list[Answer | Send] = [
        Answer(peer, (*slices[position], sequence), stable, shared, priority, base, request, written)
        for position, (peer, wants_value, shared, priority, request) in askers.items()
        if wants_value
    ]
    # Nearly always all want a value. Each rank of a client is told of its own slices: only it waits for
    # them.
    if len(out) < len(askers):
        applied: dict[NodeId, list[Entry]] = {}
        for position, asker in askers.items():
            if not asker.wants_value:
                applied.setdefault(asker.peer, []).append((*slices[position], sequence))
        out += [Send(peer, m.Applied(merge(entries))) for peer, entries in applied.items()]
    return out


def _carried(closed: Closed | Hold | None) -> Instructions:
    if isinstance(closed, Closed):
        return [closed.update, *closed.answers]
    return [] if closed is None else [closed]
