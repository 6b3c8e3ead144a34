"""The scheduler's decisions: what follows when a process comes, asks for something, leaves or is lost.

Pure: ``handle(sender, message, now)`` returns instructions. In pure MPI rank 0 runs this state beside
its worker's, so that there is one way to agree on keys and barriers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvstore_mpi.errors import (
    DeadlineError,
    KVStoreError,
    LeaseExpiredError,
    MismatchError,
    PeerLostError,
    ToldToEndError,
)
from kvstore_mpi.records import SCHEDULER, NodeId, Role, Topology
from kvstore_mpi.scheduler.barriers import Barriers, Opened
from kvstore_mpi.scheduler.closings import Closings
from kvstore_mpi.scheduler.keys import AgreedKeys
from kvstore_mpi.scheduler.numbers import SameNumbers
from kvstore_mpi.scheduler.placement import Placement
from kvstore_mpi.scheduler.roster import RANK_0, Roster
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping

Instructions = list[Send | Log | Stop]


class SchedulerState:
    """Membership, keys, barriers and departures of one job.

    Attributes:
        roster: Who belongs to the job, who has joined and who has left.
    """

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
            start_with: How many clients, client 0 among them, are enough to begin; 0 for all.
        """
        self.roster = Roster(topology)
        self._topology = topology
        self._connect_timeout = connect_timeout
        self._join_deadline = now + connect_timeout
        # Counts restarts, by the leader of a client or by the server.
        self._incarnations: dict[NodeId, int] = {}
        self._start_with = start_with or topology.num_clients
        self._late: set[NodeId] = set()  # leaders of clients that the others have begun without
        self._started = False  # training has begun
        self._introduced: set[NodeId] = set()  # who knows where the others are
        placement = Placement(max(1, topology.num_servers), slice_elements, round_robin=round_robin)
        self._keys = AgreedKeys(self.roster, placement)
        self._numbers = SameNumbers(self.roster, topology.num_workers)
        self._barriers = Barriers(node for node in self.roster.expected if node.role is Role.WORKER)
        self._closings = Closings(self.roster)

    def handle(  # noqa: PLR0911  a case for each message
        self, sender: NodeId, message: m.ToScheduler, now: float
    ) -> Instructions:
        """React to a message of a process of the job."""
        match message:
            case m.Join():
                return self._join(sender, message, now)
            case m.Declare():
                return [*self._keys.declare(sender, message, now)]
            case m.PushesDensely():
                return [*self._keys.pushed_densely(sender, message)]
            case m.BarrierArrive():
                return self._arrive(sender, message)
            case m.Numbers():
                return [*self._numbers.compare(sender, message.numbers)]
            case m.Finished():
                return self._finish(sender)
            case m.Leave():
                return self._leave(sender)
            case m.Interrupted():
                return self.lost(sender, message.reason, now, asked=message.asked)

    # --- membership ---

    def _join(self, sender: NodeId, message: m.Join, now: float) -> Instructions:
        if sender not in self.roster.expected:
            text = f"{sender} is not part of this job of {self._topology}"
            return [Send(sender, m.Failure(MismatchError.__name__, text))]
        group = self.roster.group(sender)
        newest = self._incarnation(sender)
        if message.incarnation < newest:
            # It was paused, say, and wakes up after its successor has joined. Were it let in, two processes
            # of one name would push, and servers would count their pushes as one sequence.
            text = f"{self.roster.name(sender)} has been restarted since: this run of it is over"
            return [Send(sender, m.Failure(LeaseExpiredError.__name__, text))]
        news = self._start_anew(group, message.incarnation, now) if message.incarnation > newest else []
        self._expect(group)
        self.roster.joined[sender] = message
        return [*news, *self._tell_of_closings(sender), *self._introduce(sender)]

    def _start_anew(self, group: list[NodeId], incarnation: int, now: float) -> Instructions:
        """The first process of a restarted group has come: what was known of the old ones is over."""
        news = self.lost(group[0], "has been restarted", now, returns=True)
        self._incarnations[group[0]] = incarnation
        self.roster.expect_again(group)
        for node in group:
            self.roster.joined.pop(node, None)
            self._introduced.discard(node)
        are_all = self._topology.num_clients == 1 and group[0].role is Role.WORKER
        if are_all:  # barriers that they had passed would be open to each of them
            self._closings.start_anew()
            self._barriers, group = Barriers(group), []
        return [*news, *self._release(self._barriers.drop(group))]

    def _tell_of_closings(self, newcomer: NodeId) -> list[Send]:
        """Tell a server what is over that it may have in a snapshot."""
        # Copies: the message waits to be sent, and more may be closed meanwhile.
        stores, keys = [*self._closings.stores], [*self._closings.keys]
        tells = newcomer.role is Role.SERVER and keys
        return [Send(newcomer, m.StoresClosed(stores, keys))] if tells else []

    def _introduce(self, newcomer: NodeId) -> Instructions:
        """Tell newcomers where the others are, once whom they need is there, and the others of them."""
        late = [] if self._started else self._begin()
        if not self._started:
            return []
        joined = self.roster.joined
        # A client is introduced as a whole: a leader without its members would announce collectives that
        # nobody carries out.
        pending = [node for node in joined if node not in self._introduced and self.roster.can_work(node)]
        servers = [node for node in joined if node.role is Role.SERVER]
        out: Instructions = [Send(node, self._where(node, servers)) for node in pending]
        if newcomer.role is Role.SERVER:
            moved = m.Peers({str(newcomer): joined[newcomer].addresses})
            out += [Send(node, moved) for node in self._introduced if node.role is Role.WORKER]
        self._introduced.update(pending)
        return [*out, *(Send(node, gone) for gone in late for node in pending)]

    def _where(self, node: NodeId, servers: list[NodeId]) -> m.Peers:
        """Return the addresses that a process connects to; told all, 10,000 workers get 2.3 GB."""
        if node.role is not Role.WORKER:
            return m.Peers({})  # the others come to it
        leader = self._topology.leader_of(self._topology.client_of(node.index))
        joined = self.roster.joined
        return m.Peers({str(each): joined[each].addresses for each in (*servers, leader)})

    def _begin(self) -> list[m.PeerGone]:
        """Begin if enough are there; return what there is to say of clients that are not."""
        roster = self.roster
        clients = range(self._topology.num_clients)
        # Client 0 has to be there: rank 0 declares the keys and gives them their values.
        if not roster.can_work(RANK_0) or (self._start_with == len(clients) and not roster.complete):
            return []
        late = [leader for leader in map(self._topology.leader_of, clients) if not roster.can_work(leader)]
        self._started = len(clients) - len(late) >= self._start_with
        if not self._started:
            return []
        for leader in late:
            group = roster.group(leader)
            reason = (
                f"{self._topology.describe_worker(leader.index)} or its client has not joined yet, and the "
                f"job has begun with --start-with {self._start_with}"
            )
            roster.depart(group, m.PeerGone(str(leader), reason, False, returns=True))
            self._barriers.drop(group)
        self._late.update(late)
        return [roster.left[leader] for leader in late]

    def _expect(self, group: list[NodeId]) -> None:
        """A client that others may have begun without is coming, or has died before."""
        if group[0] in self._late:
            self._late.discard(group[0])
            self.roster.expect_again(group)

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
        roster = self.roster
        self._expect(roster.group(node))
        group = [each for each in roster.group(node) if each not in roster.left]
        incarnation = self._incarnation(node)
        gone = m.PeerGone(str(node), f"{roster.name(node)} {reason}", False, returns, asked, incarnation)
        if node in roster.left or not group:
            # A death is seen more than once: as silence, and by the launcher, who may start it again.
            if returns and roster.is_gone_for_good(node):
                self._returns(roster.group(node), gone, now)
            return []
        others = [each for each in roster.present if each != node]
        self._introduced.difference_update(group)
        self._keys.drop(group)
        if returns:
            self._returns(group, gone, now)
            others = [each for each in others if each not in group]
        else:
            roster.depart(group, gone)
        text = f"{gone.reason}; telling the {len(others)} other processes"
        level = logging.DEBUG if asked else logging.WARNING if returns else logging.ERROR
        news: Instructions = [Log(level, text), *(Send(other, gone) for other in others)]
        if not roster.workers_remain:
            return [*news, *self._end((ToldToEndError if asked else PeerLostError)(gone.reason))]
        if node.role is not Role.WORKER:
            return news
        return [*news, *self._close_stores(), *self._strand(gone, group)]

    def _returns(self, group: list[NodeId], gone: m.PeerGone, now: float) -> None:
        """Processes are being started again: nobody has lost them for good."""
        self.roster.depart(group, gone)
        self._join_deadline = max(self._join_deadline, now + self._connect_timeout)
        for each in group:
            self.roster.joined.pop(each, None)

    def restarting(self, name: str, incarnation: int, why: str, now: float) -> Instructions:
        """The launcher says that an incarnation of a client or a server has died, and starts the next."""
        node = self.roster.named(name)[0]
        if self._incarnation(node) > incarnation:
            return []  # the next one has joined before this news of the launcher was read
        return self.lost(node, f"has died and is started again ({why})", now, returns=True)

    def _finish(self, sender: NodeId) -> Instructions:
        """A program is over; its process stays, and rounds do not miss it before all its client leaves."""
        if sender in self.roster.left:
            return []
        gone = self.roster.finished[sender] = self._has_finished(sender)
        return self._strand(gone, [])

    def _has_finished(self, node: NodeId) -> m.PeerGone:
        text = f"{self.roster.name(node)} has finished"
        return m.PeerGone(str(node), text, orderly=True, incarnation=self._incarnation(node))

    def _incarnation(self, node: NodeId) -> int:
        """Return the newest run of a process from which anything has been heard."""
        return self._incarnations.get(self.roster.group(node)[0], 0)

    def _leave(self, sender: NodeId) -> Instructions:
        if sender in self.roster.left:
            return []
        gone = self._has_finished(sender)
        self.roster.depart([sender], gone)
        if not self.roster.workers_remain:
            # Workers that had told the same, or nothing, and left before do not know it.
            return self._end(self._numbers.error or self.roster.never_back())
        # To the servers alone, whose rounds it may be missing in: were all told of all, the end of 10,000
        # workers would take 50 million messages, and a worker hears it from the barrier or the server that
        # it waits for.
        news = [Send(node, gone) for node in self.roster.servers_present]
        return [*news, *self._close_stores(), *self._strand(gone, [])]

    def _end(self, error: KVStoreError | None) -> Instructions:
        """No worker is left: stop the servers and this process."""
        return [*(Send(node, m.Stop()) for node in self.roster.servers_present), Stop(error)]

    def _strand(self, gone: m.PeerGone, group: list[NodeId]) -> Instructions:
        """See to what cannot go on without some workers: barriers, and keys of rank 0."""
        out: Instructions = []
        if self._is_tolerated(gone):
            out += self._release(self._barriers.drop(group))
        else:
            out += self._break_barriers(gone)
        return [*out, *self._keys.refuse_parked()]

    def _is_tolerated(self, gone: m.PeerGone) -> bool:
        """Training goes on without a worker that is lost if no rounds wait for all clients."""
        if gone.orderly:
            return False  # it has left earlier than the others: their programs differ
        # Before the first key nobody knows the mode; a worker that is started again comes to its barriers.
        loose = self._keys.are_loose
        return gone.returns if loose is None else loose

    def _break_barriers(self, gone: m.PeerGone) -> Instructions:
        out: Instructions = []
        for number, everybody in self._barriers.waiting.items():
            arrived = everybody.difference(self.roster.left)
            text, must = f"{gone.reason} while {self.roster.names(arrived)} waits at barrier {number}", ""
            if (store := self._closings.at(number)) >= 0:
                text, must = f"{text} to close store {store}", ", and close the same stores"
            error: KVStoreError = PeerLostError(text)
            if gone.orderly:
                error = MismatchError(f"{text}: all workers must call barrier equally often{must}")
            out += [Send(node, _failure(error)) for node in arrived]
        return out

    # --- barriers ---

    @property
    def waiting_at_barriers(self) -> Mapping[int, set[NodeId]]:
        """Who waits at each barrier that has not opened, by its number."""
        return self._barriers.waiting

    def _arrive(self, sender: NodeId, message: m.BarrierArrive) -> Instructions:
        differs = self._closings.arrive(sender, message)
        if differs is not None:
            here = self._barriers.waiting.get(message.number, set()) | {sender}
            return [Send(node, _failure(differs)) for node in sorted(here)]
        opened = self._barriers.arrive(sender, message.number)
        if opened:
            return self._release(opened)
        roster = self.roster
        gone = [news for node, news in roster.left.items() if node.role is Role.WORKER]
        broken = [news for news in (*gone, *roster.finished.values()) if not self._is_tolerated(news)]
        if broken:
            return self._break_barriers(broken[0])
        return self._announce_wait(sender, message)

    def _announce_wait(self, sender: NodeId, message: m.BarrierArrive) -> Instructions:
        """Tell the others of the first at a barrier: who pushes more often than it never comes there.

        Of sums of a client alone the first of each client is told to the others of that.
        """
        of_all, of_client = message.pushes
        here, client = self._barriers.waiting[message.number], set(self.roster.group(sender))
        if len(here) > 1:
            of_all = -1
        if here & client != {sender}:
            of_client = -1
        # All of a large job are gone over once for a barrier, and not for each who comes there.
        joined = self.roster.joined.keys()
        others = (joined if of_all >= 0 else joined & client) - self.roster.left.keys() - {sender}
        told = {node: (of_all, of_client if node in client else -1) for node in others}
        does = f", which closes store {message.closes}," if message.closes >= 0 else ""
        who = f"{self.roster.name(sender)}{does}"
        return [
            Send(node, m.BarrierAwaits(message.number, pushes, who))
            for node, pushes in sorted(told.items())
            if node.role is Role.WORKER and max(pushes) >= 0
        ]

    def _release(self, opened: Opened) -> Instructions:
        self._closings.opened(number for number, _ in opened)
        released = [Send(node, m.BarrierRelease(number)) for number, nodes in opened for node in nodes]
        return [*self._close_stores(), *released]

    def _close_stores(self) -> Instructions:
        """Have the servers forget the stores that no worker uses any more."""
        over = self._closings.over()
        keys = [number for store in over for number in self._keys.close(store)]
        self._closings.keys += keys
        told = m.StoresClosed(over, keys)
        return [Send(node, told) for node in self.roster.servers_present] if over else []

    # --- time ---

    def tick(self, now: float) -> Instructions:
        """Give up on what has waited too long."""
        absent = self.roster.expected.difference(self.roster.joined)
        if self._started:  # whoever is there does not need other clients
            absent = {node for node in absent if node.role is Role.SERVER}
        if absent and now > self._join_deadline:
            missing = self.roster.names_missing(absent)
            text = (
                f"waited {self._connect_timeout:g} s for all processes to join; missing: {missing}. "
                "Did they start, and did their script create the store? Who cannot connect logs why"
            )
            error = DeadlineError(text)
            told = [Send(node, _failure(error)) for node in self.roster.joined if node != SCHEDULER]
            return [*told, Stop(error)]
        return [*self._keys.refuse_overdue(now, self._connect_timeout)]

    def silent(self, node: NodeId, seconds: float, now: float) -> Instructions:
        """A process has given no sign of life for too long; should it wake up, it learns that it is out."""
        error = PeerLostError.__name__
        reason = f"has not been heard of for {seconds:.0f} s and counts as dead ({error})"
        late = m.Failure(LeaseExpiredError.__name__, f"{self.roster.name(node)} {reason}")
        told = [Send(each, late) for each in self.roster.group(node) if each in self.roster.joined]
        news = self.lost(node, reason, now)
        return [*told, *news] if news else []


def _failure(error: Exception) -> m.Failure:
    return m.Failure(type(error).__name__, str(error))
