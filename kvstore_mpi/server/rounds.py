"""When the round of a unit is closed: by which pushes, without whom, and how long it may wait.

Pure. A round of a synchronous store is closed when all clients have pushed the unit; with a quorum, when
enough of them have and the quorum wait is over; that of an asynchronous store by every push.
"""

from __future__ import annotations

import logging

from kvstore_mpi.errors import DeadlineError, KVStoreError, UsageError
from kvstore_mpi.records import Mode, NodeId, Topology
from kvstore_mpi.server.answers import Answers, failure, note_sent, ready_pulls
from kvstore_mpi.server.records import Contribution, Instructions, Unit, Update
from kvstore_mpi.wire.instructions import Log


class Rounds:
    """The rounds under way on one server, and the clients that will not push any more."""

    def __init__(self, topology: Topology, *, warn_after: float, step_timeout: float) -> None:
        """Start without rounds, with all clients there.

        Args:
            topology: The shape of the job.
            warn_after: Seconds after which a round that waits is logged.
            step_timeout: Seconds after which it fails.
        """
        self._topology = topology
        self._warn_after = warn_after
        self._step_timeout = step_timeout
        self._open: dict[Unit, bool] = {}  # rounds under way -> already warned about
        self._departed: dict[int, KVStoreError] = {}  # client -> why its pushes will never come
        self._quorum_waits: dict[Unit, float] = {}  # rounds with their quorum -> when they are closed

    # --- pushes ---

    def problem(self, unit: Unit, client: int) -> KVStoreError | None:
        """Return why a client's push cannot be taken, or its round not be closed, if that is so."""
        store = unit.key.store
        if store.mode is Mode.ASYNC:
            if not store.has_optimizer:
                return UsageError(
                    f"push of key {unit.key.key!r} to an async store without an optimizer: "
                    "call set_optimizer before the first push"
                )
            return None
        if store.terms.quorum:
            return None
        for departed, error in self._departed.items():
            if departed != client and departed not in unit.contributions:
                return _stranded(unit, departed, error)
        return None

    def contribution(self, unit: Unit, client: int, sequence: int, now: float) -> Contribution:
        """Return what a client contributes to the round; the first one begins it."""
        contribution = unit.contributions.get(client)
        if contribution is None:
            contribution = unit.contributions[client] = Contribution(sequence)
            if unit not in self._open:
                self._open[unit] = False
                unit.since = now
        return contribution

    def advance(self, unit: Unit, client: int, answers: Answers, now: float) -> Instructions:
        """A client has pushed the whole unit: update it if the round is complete, and collect answers."""
        store = unit.key.store
        if store.mode is Mode.ASYNC:
            return self._close(unit, [client], answers, now)
        if store.terms.quorum:
            return self._advance_quorum(unit, answers, now)
        complete = len(unit.contributions) == self._topology.num_clients and all(
            map(unit.is_whole, unit.contributions.values())
        )
        return self._close(unit, sorted(unit.contributions), answers, now) if complete else []

    def _advance_quorum(
        self, unit: Unit, answers: Answers, now: float, *, late: bool = False
    ) -> Instructions:
        """Close a round for which nobody is missing, or that has waited long enough (``late``).

        A client that comes late opens the next round, for which the others may have nothing yet, or never
        will: they have pushed as often already, and count for the quorum. So it waits for ``quorum_wait``,
        too; were they not counted, a client that is one round behind at the end would wait for ever.
        """
        here = sorted(c for c, contribution in unit.contributions.items() if unit.is_whole(contribution))
        missing = set(range(self._topology.num_clients)).difference(here, self._departed)
        if here and (late or not missing):
            self._quorum_waits.pop(unit, None)
            return self._close(unit, here, answers, now)
        if here:
            terms = unit.key.store.terms
            behind = min(unit.contributions[client].sequence for client in here)
            if sum(pushed >= behind for pushed in unit.pushed) >= terms.quorum:
                self._begin_wait(unit, now + terms.quorum_wait)
        return []

    def _begin_wait(self, unit: Unit, due: float) -> None:
        """Close a round at ``due`` at the latest; a moment that was set before stays.

        Every push with the quorum comes here: if each moved the moment, clients that come often enough
        would keep the round open.
        """
        self._quorum_waits.setdefault(unit, due)

    def _close(self, unit: Unit, clients: list[int], answers: Answers, now: float) -> Instructions:
        """Update a unit with what some clients have pushed, and collect their answers."""
        contributions = [unit.contributions.pop(client) for client in clients]
        terms = unit.key.store.terms
        stale = unit.updates - unit.seen[clients[0]] if terms.staleness else 0
        unit.updates += 1
        unit.since = now
        if not unit.contributions:
            self._open.pop(unit, None)  # not there if it had waited too long
        out: Instructions = [
            Update(unit, contributions, contributions[0].hyper, unit.updates, clients, stale)
        ]
        for who, contribution in zip(clients, contributions):
            unit.applied[who] = contribution.sequence
            out += answers.settle(unit, contribution.replies, contribution.sequence)
            if terms.bases or terms.staleness:
                out += note_sent(unit, who, contribution)
        return out + ready_pulls(unit, self._topology)

    # --- time ---

    def close_due(self, now: float) -> Instructions:
        """Close the rounds whose quorum wait is over."""
        out: Instructions = []
        for unit in [unit for unit, due in self._quorum_waits.items() if due <= now]:
            out += self._close_if_ready(unit, now, late=True)
        return out

    def _close_if_ready(self, unit: Unit, now: float, *, late: bool = False) -> Instructions:
        answers = Answers()
        out = self._advance_quorum(unit, answers, now, late=late)
        return [*out, *answers.replies(stable=unit.key.store.stable)]

    def next_deadline(self) -> float | None:
        """Return when ``close_due`` has something to do, if it has."""
        return min(self._quorum_waits.values(), default=None)

    def tick(self, now: float) -> Instructions:
        """Say which rounds wait for whom, and fail those that have waited too long."""
        out: Instructions = []
        for unit, warned in list(self._open.items()):
            waited = now - unit.since
            if waited > self._step_timeout:
                out += _fail(unit, DeadlineError(self._waiting(unit, waited)))
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

    # --- clients that go and come back ---

    def depart(self, client: int, error: KVStoreError, now: float) -> Instructions:
        """A client pushes nothing more for now: close the rounds that wait for it alone, or fail them."""
        self._departed[client] = error
        out: Instructions = []
        for unit in list(self._open):
            store = unit.key.store
            if store.terms.quorum:
                out += self._close_if_ready(unit, now)
            elif client not in unit.contributions and store.mode is Mode.SYNC:
                out += _fail(unit, _stranded(unit, client, error))
        return out

    def come_back(self, client: int) -> None:
        """A client that was restarted, or comes late, pushes."""
        self._departed.pop(client, None)

    def forget(self, unit: Unit, client: int, members: set[NodeId]) -> None:
        """Drop what a client that was restarted had under way with a unit."""
        unit.forget(client, members)
        if not unit.contributions:
            self._open.pop(unit, None)


def _stranded(unit: Unit, client: int, error: KVStoreError) -> KVStoreError:
    text = f"{error}; it has pushed key {unit.key.key!r} {unit.pushed[client]} times"
    return type(error)(text)


def _fail(unit: Unit, error: KVStoreError) -> Instructions:
    """Tell everybody who waits for a unit."""
    peers = dict.fromkeys(peer for c in unit.contributions.values() for peer, *_ in c.replies)
    peers.update(dict.fromkeys(peer for peer, *_ in unit.pulls))
    return [failure(peer, error, unit.key) for peer in peers]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
