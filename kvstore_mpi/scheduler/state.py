"""The scheduler's decisions: who is there, what the keys are, who waits at a barrier.

Pure: ``handle(sender, message, now)`` returns instructions. In pure MPI rank 0 runs this state beside
its worker's, so that there is one way to agree on keys and barriers.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.errors import (
    DeadlineError,
    KVStoreError,
    LeaseExpiredError,
    MismatchError,
    PeerLostError,
    ToldToEndError,
)
from kvstore_mpi.records import ITEMSIZES, SCHEDULER, Key, Mode, NodeId, Role, Shard, Topology
from kvstore_mpi.scheduler.barriers import Barriers, Opened
from kvstore_mpi.scheduler.placement import Placement
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

Instructions = list[Send | Log | Stop]

_RANK_0 = NodeId(Role.WORKER, 0)


class _Agreed(NamedTuple):
    """A key as rank 0 declared it."""

    declared: m.Declare
    key_id: int
    shards: list[Shard]


class _Parked(NamedTuple):
    """A declaration that waits for rank 0's."""

    worker: NodeId
    declared: m.Declare
    since: float


class SchedulerState:
    """Membership, the schema of keys, barriers and departures of one job."""

    def __init__(
        self,
        topology: Topology,
        *,
        slice_elements: int,
        connect_timeout: float,
        now: float,
        round_robin: bool = False,
        start_with: int = 0,
    ) -> None:
        """Start with nobody there.

        Args:
            topology: The shape of the job.
            slice_elements: Granularity of placement, in elements.
            connect_timeout: Seconds within which everybody must join, and within which rank 0 must
                declare a key that another worker has declared.
            now: Monotonic time in seconds.
            round_robin: Deal slices to servers in turn, not to the least loaded.
            start_with: So many clients, client 0 among them, begin without the others; 0 for all.
        """
        self._topology = topology
        self._connect_timeout = connect_timeout
        self._join_deadline = now + connect_timeout
        self._expected = {NodeId(Role.WORKER, rank) for rank in range(topology.num_workers)}
        self._expected |= {NodeId(Role.SERVER, index) for index in range(topology.num_servers)}
        self._joined: dict[NodeId, m.Join] = {}
        self._left: dict[NodeId, m.PeerGone] = {}
        self._lives: dict[NodeId, int] = {}  # how often a client, by its leader, or a server has restarted
        self._start_with = start_with or topology.num_clients
        self._late: set[NodeId] = set()  # leaders of clients that the others have begun without
        self._started = False  # training has begun
        self._introduced: set[NodeId] = set()  # who knows where the others are
        self._placement = Placement(max(1, topology.num_servers), slice_elements, round_robin=round_robin)
        self._keys: dict[tuple[int, Key], _Agreed] = {}
        self._parked: list[_Parked] = []
        self._barriers = Barriers(node for node in self._expected if node.role is Role.WORKER)
        self._on: dict[type[Any], Callable[..., Instructions]] = {
            m.Join: self._join,
            m.Declare: self._declare,
            m.BarrierArrive: self._arrive,
            m.Leave: self._leave,
            m.Interrupted: self._interrupted,
        }

    def accepts(self, message: m.Message) -> bool:
        """Return whether a message is for a scheduler."""
        return type(message) in self._on

    def handle(self, sender: NodeId, message: m.Message, now: float) -> Instructions:
        """React to a message of a process of the job."""
        return self._on[type(message)](sender, message, now)

    # --- membership ---

    @property
    def complete(self) -> bool:
        """Everybody has joined."""
        return len(self._joined) == len(self._expected)

    def _join(self, sender: NodeId, message: m.Join, now: float) -> Instructions:
        if sender not in self._expected:
            text = f"{sender} is not part of this job of {self._topology}"
            return [Send(sender, m.Failure(MismatchError.__name__, text))]
        group = self._group(sender)
        life = self._lives.get(group[0], 0)
        if message.incarnation < life:
            text = f"{self.name(sender)} has been restarted since: this run of it is over"
            return [Send(sender, m.Failure(LeaseExpiredError.__name__, text))]
        news = self._begin_life(group, message.incarnation, now) if message.incarnation > life else []
        self._expect(group)
        self._joined[sender] = message
        return [*news, *self._introduce(sender)]

    def _group(self, node: NodeId) -> list[NodeId]:
        """Return who lives and dies together: a client, led by its leader, or a server alone."""
        if node.role is not Role.WORKER:
            return [node]
        members = self._topology.members_of(self._topology.client_of(node.index))
        return [NodeId(Role.WORKER, rank) for rank in members]

    def _begin_life(self, group: list[NodeId], incarnation: int, now: float) -> Instructions:
        """The first process of a restarted group has come: what was known of the old ones is over."""
        news = self.lost(group[0], "has been restarted", now, returns=True)
        self._lives[group[0]] = incarnation
        for node in group:
            self._left.pop(node, None)
            self._joined.pop(node, None)
            self._introduced.discard(node)
        return [*news, *self._release(self._barriers.drop(group))]

    def _introduce(self, newcomer: NodeId) -> Instructions:
        """Tell newcomers where the others are, once whom they need is there, and the others of them."""
        late = [] if self._started else self._begin()
        if not self._started:
            return []
        pending = [node for node in self._joined if node not in self._introduced and self._is_met(node)]
        peers = m.Peers({str(node): join.addresses for node, join in self._joined.items()})
        out: Instructions = [Send(node, peers) for node in pending]
        if newcomer.role is Role.SERVER:
            moved = m.Peers({str(newcomer): self._joined[newcomer].addresses})
            out += [Send(node, moved) for node in self._introduced if node.role is Role.WORKER]
        self._introduced.update(pending)
        return [*out, *(Send(node, gone) for gone in late for node in pending)]

    def _begin(self) -> list[m.PeerGone]:
        """Begin if enough are there; return what there is to say of clients that are not."""
        clients = range(self._topology.num_clients)
        if not self._is_met(_RANK_0) or (self._start_with == len(clients) and not self.complete):
            return []
        late = [leader for leader in map(self._topology.leader_of, clients) if not self._is_met(leader)]
        self._started = len(clients) - len(late) >= self._start_with
        if not self._started:
            return []
        for leader in late:
            group = self._group(leader)
            reason = f"{self._topology.describe_worker(leader.index)} or its client has not joined yet"
            self._left.update(dict.fromkeys(group, m.PeerGone(str(leader), reason, False, returns=True)))
            self._barriers.drop(group)
        self._late.update(late)
        return [self._left[leader] for leader in late]

    def _expect(self, group: list[NodeId]) -> None:
        """A client that others may have begun without is coming, or has died before."""
        if group[0] in self._late:
            self._late.discard(group[0])
            for node in group:
                self._left.pop(node, None)

    def _is_met(self, node: NodeId) -> bool:
        """Return whether all servers and the rest of a node's client are there."""
        servers = (NodeId(Role.SERVER, index) for index in range(self._topology.num_servers))
        return all(each in self._joined for each in self._group(node)) and all(
            server in self._joined for server in servers
        )

    def name(self, node: NodeId) -> str:
        """Return how people know a process, with host and process number once it has joined."""
        name = self._topology.describe_worker(node.index) if node.role is Role.WORKER else str(node)
        join = self._joined.get(node)
        return f"{name} (host {join.host}, pid {join.pid})" if join else name

    def _names(self, nodes: set[NodeId]) -> str:
        return ", ".join(self.name(node) for node in sorted(nodes))

    def _interrupted(self, sender: NodeId, message: m.Interrupted, now: float) -> Instructions:
        return self.lost(sender, message.reason, now, asked=True)

    def lost(
        self, node: NodeId, reason: str, now: float, *, returns: bool = False, asked: bool = False
    ) -> Instructions:
        """A process has died, and with a worker its client: tell everybody.

        Args:
            node: The process.
            reason: What has become of it, for people.
            now: The time.
            returns: It is being started again.
            asked: It was told to end, by somebody who says so to the user.
        """
        self._expect(self._group(node))
        group = [each for each in self._group(node) if each not in self._left]
        if node in self._left or not group:
            return []
        gone = m.PeerGone(str(node), f"{self.name(node)} {reason}", False, returns, asked)
        self._left.update(dict.fromkeys(group, gone))
        self._introduced.difference_update(group)
        self._parked = [parked for parked in self._parked if parked.worker not in group]
        if returns:
            self._join_deadline = max(self._join_deadline, now + self._connect_timeout)
            for each in group:
                self._joined.pop(each, None)
        alive = {each for each in self._joined if each not in self._left or each in group} - {node}
        others = [each for each in self._joined if each in alive]
        text = f"{gone.reason}; telling the {len(others)} other processes"
        level = logging.DEBUG if asked else logging.WARNING if returns else logging.ERROR
        news: Instructions = [Log(level, text), *(Send(other, gone) for other in others)]
        if self._present(Role.WORKER) == 0:
            return [*news, *self._end((ToldToEndError if asked else PeerLostError)(gone.reason))]
        return [*news, *self._strand(gone, group)] if node.role is Role.WORKER else news

    def restarting(self, name: str, life: int, why: str, now: float) -> Instructions:
        """The launcher says that a client or a server has died in some life of it, and is started again."""
        node = self.named(name)[0]
        if self._lives.get(node, 0) > life:
            return []  # it has come already
        return self.lost(node, f"has died and is started again ({why})", now, returns=True)

    def named(self, name: str) -> list[NodeId]:
        """Return whom the launcher means: the ranks of ``client1``, the leader first, or ``server0``."""
        client = name.partition("client")[2]
        return self._group(self._topology.leader_of(int(client)) if client else NodeId.parse(name))

    def _leave(self, sender: NodeId, _message: m.Leave, _now: float) -> Instructions:
        if sender in self._left:
            return []
        gone = self._left[sender] = m.PeerGone(
            str(sender), f"{self.name(sender)} has finished", orderly=True
        )
        if self._present(Role.WORKER) == 0:
            return self._end(None)
        others = [node for node in self._joined if node not in self._left]
        return [*(Send(node, gone) for node in others), *self._strand(gone, [])]

    def _end(self, error: KVStoreError | None) -> Instructions:
        """No worker is left: stop the servers and this process."""
        servers = [node for node in self._joined if node.role is Role.SERVER and node not in self._left]
        return [*(Send(node, m.Stop()) for node in servers), Stop(error)]

    def _present(self, role: Role) -> int:
        """Count those who are there or will be again."""
        return sum(1 for node in self._expected if node.role is role and not self._gone_for_good(node))

    def _gone_for_good(self, node: NodeId) -> bool:
        return node in self._left and not self._left[node].returns

    def _strand(self, gone: m.PeerGone, group: list[NodeId]) -> Instructions:
        """See to what cannot go on without some workers: barriers, and keys of rank 0."""
        out: Instructions = []
        if self._is_tolerated(gone):
            out += self._release(self._barriers.drop(group))
        else:
            out += self._break_barriers(gone)
        if self._gone_for_good(_RANK_0):
            out += [self._never_declared(parked) for parked in self._parked]
            self._parked.clear()
        return out

    def _is_tolerated(self, gone: m.PeerGone) -> bool:
        """Training goes on without a worker that is lost if no rounds wait for all clients."""
        declared = [key.declared for key in self._keys.values() if key.declared.mode != Mode.CLIENT.value]
        loose = all(key.mode == Mode.ASYNC.value or key.quorum for key in declared)
        return not gone.orderly and (loose if declared else gone.returns)

    def _break_barriers(self, gone: m.PeerGone) -> Instructions:
        out: Instructions = []
        for number, everybody in self._barriers.waiting.items():
            arrived = everybody.difference(self._left)
            text = f"{gone.reason} while {self._names(arrived)} waits at barrier {number}"
            error: KVStoreError = PeerLostError(text)
            if gone.orderly:
                error = MismatchError(f"{text}: all workers must call barrier equally often")
            out += [Send(node, _failure(error)) for node in arrived]
        return out

    # --- keys ---

    def _declare(self, sender: NodeId, message: m.Declare, now: float) -> Instructions:
        agreed = self._keys.get((message.store, message.key))
        if agreed is not None:
            return [self._answer(sender, message, agreed)]
        if sender.index != 0:
            parked = _Parked(sender, message, now)
            if self._gone_for_good(_RANK_0):
                return [self._never_declared(parked)]
            self._parked.append(parked)
            return []
        agreed = self._agree(message)
        waiting = [
            p for p in self._parked if (p.declared.store, p.declared.key) == (message.store, message.key)
        ]
        self._parked = [p for p in self._parked if p not in waiting]
        answers = [self._answer(parked.worker, parked.declared, agreed) for parked in waiting]
        return [self._answer(sender, message, agreed), *answers]

    def _agree(self, declared: m.Declare) -> _Agreed:
        num_elements = math.prod(declared.shape)
        itemsize = ITEMSIZES[declared.dtype]
        if declared.mode == Mode.CLIENT.value:
            shards = [Shard(0, 0, num_elements)]  # to be cut into slices; no server has it
        else:
            shards = self._placement.place(num_elements, itemsize, whole=declared.whole)
        agreed = _Agreed(declared, len(self._keys), shards)
        self._keys[declared.store, declared.key] = agreed
        return agreed

    def _answer(self, worker: NodeId, declared: m.Declare, agreed: _Agreed) -> Send:
        wanted = agreed.declared
        for what in ("mode", "shape", "dtype"):
            theirs, ours = getattr(declared, what), getattr(wanted, what)
            if theirs != ours:
                text = (
                    f"key {declared.key!r}: {self.name(worker)} initialises it with {what} {theirs}, but "
                    f"{self.name(_RANK_0)} (rank 0) with {what} {ours}; "
                    "all workers must build the same model and create their stores in the same order"
                )
                return Send(worker, _failure(MismatchError(text), declared))
        return Send(worker, m.Placed(declared.store, declared.key, agreed.key_id, list(agreed.shards)))

    def _never_declared(self, parked: _Parked) -> Send:
        """Rank 0 is gone without having declared a key."""
        gone = self._left[_RANK_0]
        if gone.orderly:
            return self._undeclared(parked, f"{gone.reason} without it")
        text = f"{gone.reason}; key {parked.declared.key!r} of {self.name(parked.worker)} waits for it"
        return Send(parked.worker, _failure(PeerLostError(text), parked.declared))

    def _undeclared(self, parked: _Parked, why: str) -> Send:
        declared = parked.declared
        text = (
            f"key {declared.key!r} is initialised by {self.name(parked.worker)} but not by rank 0: {why}; "
            "the sets of keys differ between workers: all must build the same model"
        )
        return Send(parked.worker, _failure(MismatchError(text), declared))

    # --- barriers ---

    def _arrive(self, sender: NodeId, message: m.BarrierArrive, _now: float) -> Instructions:
        opened = self._barriers.arrive(sender, message.number)
        if opened:
            return self._release(opened)
        gone = [news for node, news in self._left.items() if node.role is Role.WORKER]
        broken = [news for news in gone if not self._is_tolerated(news)]
        return self._break_barriers(broken[0]) if broken else []

    def _release(self, opened: Opened) -> Instructions:
        return [Send(node, m.BarrierRelease(number)) for number, nodes in opened for node in nodes]

    # --- time ---

    def tick(self, now: float) -> Instructions:
        """Give up on what has waited too long."""
        absent = self._expected.difference(self._joined)
        if self._started:  # whoever is there does not need other clients
            absent = {node for node in absent if node.role is Role.SERVER}
        if absent and now > self._join_deadline:
            missing = self._names(absent)
            text = (
                f"waited {self._connect_timeout:g} s for all processes to join; missing: {missing}. "
                "Did they start, and did their script create the store?"
            )
            error = DeadlineError(text)
            told = [Send(node, _failure(error)) for node in self._joined if node != SCHEDULER]
            return [*told, Stop(error)]
        late = [p for p in self._parked if now - p.since > self._connect_timeout]
        self._parked = [p for p in self._parked if p not in late]
        why = f"waited {self._connect_timeout:g} s"
        return [self._undeclared(parked, why) for parked in late]

    def silent(self, node: NodeId, seconds: float, now: float) -> Instructions:
        """A process has given no sign of life for too long; should it wake up, it learns that it is out."""
        error = PeerLostError.__name__
        reason = f"has not been heard of for {seconds:.0f} s and counts as dead ({error})"
        late = m.Failure(LeaseExpiredError.__name__, f"{self.name(node)} {reason}")
        told = [Send(each, late) for each in self._group(node) if each in self._joined]
        news = self.lost(node, reason, now)
        return [*told, *news] if news else []


def _failure(error: Exception, declared: m.Declare | None = None) -> m.Failure:
    name, text = type(error).__name__, str(error)
    if declared is None:
        return m.Failure(name, text)
    return m.Failure(name, text, declared.store, declared.key)
