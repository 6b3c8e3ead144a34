"""What the ranks of a client do together, in which order, and how they end: one schedule for all.

The leader announces collectives by priority; every rank carries them out in that order, as far as its own
program has come. Any other rule could let two ranks wait for each other in different collectives. Pure.
This file must not know when a collective is possible, or what it does.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.p3.priority_queue import PriorityQueue
from kvstore_mpi.records import Announced
from kvstore_mpi.tensor_collectives.choice import PAIR
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.collectives import REDUCED, WANTED, Collective, Kind
from kvstore_mpi.worker.instructions import Collect, Instructions
from kvstore_mpi.worker.records import KeyState, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvstore_mpi.records import NodeId

COLLECTIVE_BYTES = 1 << 20
"""Neighbouring slices share a collective up to this size, as they share a message to a server."""

AHEAD_BYTES = 4 << 20
"""Bytes that are announced before the first of them have been carried out: what is announced cannot be
overtaken, and the MPI threads shall not wait for announcements."""

BUCKET_BYTES = 2 << 20
"""Collectives of one kind that follow each other are carried out together up to this size."""

BUCKETS_AHEAD = 2
"""With two buckets under way the MPI threads have work, and the next one may fill up meanwhile. Nothing
waits for longer than that: there is no time limit."""

ALONE_BYTES = 64 << 10
"""Larger sums are not copied together (``group.STAGED_BYTES``), so that they need no agreement."""

_OF_STEPS = frozenset((Kind.PUSH, Kind.PUSHPULL, Kind.LOOKUP))
"""What the ranks of a client meet for because their programs have called it, once in a step."""

OVERLAPPING = 16
"""As many buckets ahead, and sums under way, where they may overlap, as they do among ranks that have a
host each (``MpiThread``): the message that announces a sum then leaves before the bytes of those before
it, and does not wait behind them. And a sum is up to two messages, one after the other: while one is on
its way, the link carries those of other sums. With 2 MB of dense keys in a step beside rows of 26 tables, 4
hosts and 200 Mbit/s, 16 took 174 ms and 4 took 180 (medians of three jobs of each in turn of
``benchmarks/sparse_step.py --models ctr --variants hybrid``, before this was committed; 173 - 176 and
178 - 183)."""


def overlapping(hosts: Sequence[Sequence[int]], *, all_push: bool) -> frozenset[Collective]:
    """Return which collectives of a client are begun while others are under way.

    Args:
        hosts: Its ranks on each host.
        all_push: All its ranks push slices, and not one for all.
    """
    # Where some ranks share a host, they go through its memory, a bucket at a time.
    if len(hosts) == 1 or any(len(host) > 1 for host in hosts):
        return frozenset()
    # What goes to one rank or comes from one goes directly: of more than two ranks, one that pushes for all
    # would send and get everything several times, where the library's trees do with twice.
    if len(hosts) > PAIR and not all_push:
        return frozenset((Collective.ALLREDUCE,))
    return frozenset((Collective.ALLREDUCE, *REDUCED, Collective.SHARE, Collective.SKIP))


class _Steps:
    """The steps of one rank's program: which it has come to, and which have not ended here.

    A step pushes each key once, and looks each table up once, as far as the whole client may have to meet.
    """

    def __init__(self, others: Iterable[NodeId] = ()) -> None:
        """Start with the first step; ``others`` tell when they run ahead."""
        self._reached = dict.fromkeys(others, 1)
        self._step = 1
        self._called: set[tuple[KeyState, bool]] = set()  # in this step; lookups apart
        self._pending: dict[int, int] = {}  # operations that have not ended, of each step that has some

    def _count(self, key: KeyState, operation: Operation) -> bool:
        """The program has called an operation; tell whether it begins a step, and others have not ended."""
        # Pulls, which each rank may make for itself, say nothing about where a program is.
        if operation.kind not in _OF_STEPS:
            return False
        what = key, operation.kind is Kind.LOOKUP
        # Nobody tells where a step ends: a key that comes again is of the next one. A program that pushes a
        # key twice in a step has more of them then, and the same ones on all ranks.
        begins = what in self._called
        if begins:
            self._step += 1
            self._called.clear()
        self._called.add(what)
        # By the call and not by the begin: one that waits behind another of its key is of this step, too.
        operation.step = self._step
        self._pending[self._step] = self._pending.get(self._step, 0) + 1
        return begins and len(self._pending) > 1

    def over(self, operation: Operation) -> None:
        """An operation has ended here."""
        # Ended is what the leader needs: whatever a member waits for has then been announced to it.
        step = operation.step
        # Others, as pulls, have none.
        if step:
            self._pending[step] -= 1
            if not self._pending[step]:
                del self._pending[step]

    def reached(self, rank: NodeId, step: int) -> None:
        """Another rank has begun with a step, and does not wait for those before."""
        # Of two such messages the later one counts, which comes later: links keep the order.
        self._reached[rank] = step

    @property
    def _oldest(self) -> int:
        """The first step of which something has not ended."""
        return next(iter(self._pending), self._step)


class LeaderSchedule(_Steps):
    """What the leader has to announce to its client: by priority, a few ahead of the MPI threads."""

    def __init__(
        self,
        members: Iterable[NodeId],
        hosts: Sequence[Sequence[int]],
        *,
        by_priority: bool,
        all_push: bool = False,
    ) -> None:
        """Start with nothing to announce.

        Args:
            members: The client's ranks but the leader.
            hosts: The ranks on each host.
            by_priority: Otherwise first come, first served.
            all_push: All ranks push slices, and not one for all.
        """
        super().__init__(members)
        self._ahead: list[tuple[Operation, Collect]] = []
        self._overlapping = overlapping(hosts, all_push=all_push)
        self._buckets_ahead = OVERLAPPING if self._overlapping else BUCKETS_AHEAD
        self._queue: PriorityQueue[Collect] = PriorityQueue(by_priority=by_priority)
        # Bytes and not numbers of collectives: the MPI thread reports a reduction slice by slice, so that
        # one that was announced ends in several steps.
        self._waiting_bytes = 0
        self._announced_bytes = 0
        self._ended_bytes = 0
        self._ends: deque[int] = deque()  # bytes announced up to the end of each bucket under way

    def put(self, key: KeyState, operation: Operation, what: Collective, positions: range) -> None:
        """Queue a collective on some slices, cut into runs that others may overtake."""
        # A collective that has begun cannot be interrupted: a whole layer of 100 MB in one would hold up
        # the most urgent slice for as long as all of it takes, which is what slicing is there to prevent
        # (P3).
        most = max(1, COLLECTIVE_BYTES // max(1, key.slice_bytes))
        for first in range(positions.start, positions.stop, most):
            last = min(first + most, positions.stop)
            collect = Collect(what, key, operation.sequence, first, last)
            if self._is_ahead(operation):
                # In no queue: by its priority it would be next, and hold up all others.
                self._ahead.append((operation, collect))
            else:
                self._put(operation, collect)

    def _put(self, operation: Operation, collect: Collect) -> None:
        num_bytes = collect.key.num_bytes(collect.first, collect.last)
        self._queue.put(operation.priority, num_bytes, collect)
        self._waiting_bytes += num_bytes

    def _is_ahead(self, operation: Operation) -> bool:
        """Tell whether a member may wait for an earlier step to end before it comes to an operation."""
        # What is announced cannot be overtaken. Announced now, this would be waited for by all ranks, and
        # values of the earlier step that come from servers would not be shared: the program of a member
        # that waits for those, where the leader's does not, would never come to this.
        step = operation.step
        return step > self._oldest and any(reached < step for reached in self._reached.values())

    def called(self, key: KeyState, operation: Operation) -> list[Send]:
        """The leader's own program has called an operation."""
        # A leader without members waits for nobody, and counts nothing.
        if self._reached:
            self._count(key, operation)
        return []

    def ended(self, done: Collect) -> None:
        """Note that a collective that was announced, or a part of it, has ended here."""
        # A bucket has ended when as many bytes have as were announced up to its end, because parts of
        # several are reported in between. One that never ended here would keep small keys waiting for ever:
        # nothing is announced unasked once ``BUCKETS_AHEAD`` are under way.
        self._ended_bytes += done.key.num_bytes(done.first, done.last)
        while self._ends and self._ends[0] <= self._ended_bytes:
            self._ends.popleft()

    def next(self) -> Instructions:
        """Announce, and carry out here as well, as many as keep the MPI threads at work."""
        chosen: list[Collect] = []
        entries: list[Announced] = []
        if self._ahead:
            self._put_what_is_ahead_no_more()
        while self._queue and self._wants_more():
            bucket = self._next_bucket()
            for collect, together in zip(bucket, self._together(bucket)):
                what, key, sequence, first, last, _ = collect
                entries.append(Announced(int(what), key.key_id, sequence, first, last, together))
                chosen.append(collect._replace(together=together))
        if not chosen:
            return []
        # To the members before it is carried out here: a leader that is in the collective first only waits
        # there for them.
        return [*(Send(member, m.Announce(entries)) for member in self._reached), *chosen]

    def _put_what_is_ahead_no_more(self) -> None:
        # When what held it up has ended, or a member has said that it does not wait: both end in a pass of
        # the I/O loop, at whose end this is called.
        waiting, self._ahead = self._ahead, []
        for operation, collect in waiting:
            if self._is_ahead(operation):
                self._ahead.append((operation, collect))
            else:
                self._put(operation, collect)

    def _together(self, bucket: Sequence[Collect]) -> list[int]:
        """Return how many of a bucket can be carried out together, from each on."""
        # What is left of the bucket, counted from each: the ranks may agree to begin with fewer than all of
        # it (``MpiThread._next``), and the first of the rest then has to say how many follow.
        counts: list[int] = []
        for collect in reversed(bucket):
            follow = counts[-1] if counts else 0
            counts.append(0 if self._is_alone(collect) else 1 + follow)
        return [max(1, count) for count in reversed(counts)]

    def _is_alone(self, collect: Collect) -> bool:
        """Return whether one begins by itself, before others have ended, and waits for no agreement."""
        # Over a link that carries rows, or the sum before, an agreement waits behind these. And nothing is
        # lost: a sum of this size is a call of its own anyway.
        key = collect.key
        if key.table is not None or collect.operation not in self._overlapping:
            return False
        return key.num_bytes(collect.first, collect.last) > ALONE_BYTES

    def _wants_more(self) -> bool:
        """Return whether the next bucket shall be announced: it is full, or there is little to do."""
        # A bucket that is full costs nothing to send. One that is not is worth waiting for only while the
        # MPI threads have something else to do: a single small key must not wait for company that never
        # comes.
        full = self._waiting_bytes >= BUCKET_BYTES
        ahead_bytes = self._announced_bytes - self._ended_bytes
        return ahead_bytes < AHEAD_BYTES and (full or len(self._ends) < self._buckets_ahead)

    def _next_bucket(self) -> list[Collect]:
        """Take the most urgent collective, and those after it that can be carried out with it."""
        bucket: list[Collect] = []
        total = 0
        while self._queue:
            num_bytes, collect = self._queue.peek()
            # Only what follows by priority: looking further for more of one kind would let it overtake. A
            # single one may be larger than a bucket, or it would never leave.
            if bucket and (
                collect.operation is not bucket[0].operation or total + num_bytes > BUCKET_BYTES
            ):
                break
            bucket.append(self._queue.pop())
            total += num_bytes
        self._waiting_bytes -= total
        self._announced_bytes += total
        self._ends.append(self._announced_bytes)
        return bucket


class MemberSchedule(_Steps):
    """The collectives that the leader has announced to one member, which has not carried them out yet.

    Attributes:
        begun: Slices that it has begun to reduce, share or push, and that have not ended.
    """

    def __init__(self, me: str, leader: NodeId) -> None:
        """Start without any; ``me`` names the member in errors."""
        super().__init__()
        self._me = me
        self._leader = leader
        self._announced: deque[Announced] = deque()
        self.begun = 0

    def called(self, key: KeyState, operation: Operation) -> list[Send]:
        """This rank's program has called an operation; tell the leader if it runs ahead."""
        return [Send(self._leader, m.Reached(self._step))] if self._count(key, operation) else []

    def put(self, entries: Iterable[Announced]) -> None:
        """The leader has announced these."""
        # Also what this rank cannot begin yet: its program may be several operations behind the leader's,
        # and may not even know the key.
        self._announced.extend(entries)

    def next(self, keys: Mapping[int, KeyState]) -> Collect | None:
        """Take the next collective, if this rank's program has called for it.

        Args:
            keys: Those that are known here, by number.

        Raises:
            MismatchError: The leader has called another operation on the key.
        """
        if not self._announced:
            return None
        # Always the first, even if this rank could begin with the second: were two ranks to choose for
        # themselves, each could be inside another MPI call and wait there for the other for ever.
        code, key_id, sequence, first, last, together = self._announced[0]
        collective = Collective(code)
        key = keys.get(key_id)
        operation = key.queue[0] if key is not None and key.queue else None
        if key is None or operation is None:
            return None  # this rank's program is behind the leader's, and will call it
        # A pull that every rank makes for itself, without the others, may be first in the queue of either:
        # it ends without them, so this is no disagreement yet. Nor is a pull together while a push is under
        # way.
        if (operation.kind is Kind.PULL) is not (collective is Collective.FETCH):
            return None
        if self._is_ending(key, operation, collective, sequence):
            return None
        if operation.sequence < sequence:
            return None  # an earlier operation on the key is still under way here
        # From here on waiting cannot help. An error now, which names the key and both calls, is worth more
        # than a hang, or than sums of gradients of two different steps.
        if operation.kind not in WANTED[collective] or operation.sequence > sequence:
            raise self._disagreement(key, operation, collective, sequence)
        self._announced.popleft()
        # Counted until they have ended: while any has not, that the leader has finished is no reason to
        # fail this rank (``operations.without_partner``), because what it waits for is on its way.
        self.begun += last - first
        operation.is_met = True
        return Collect(collective, key, sequence, first, last, together)

    def _is_ending(
        self, key: KeyState, operation: Operation, collective: Collective, sequence: int
    ) -> bool:
        """Tell whether this rank has still to end a lookup before a push that is announced, or reversed.

        Raises:
            MismatchError: The ranks have not met for the one that this rank has called.
        """
        # Lookups and pushes are numbered apart, so that numbers do not say which of two comes first. But
        # the leader has ended what it called before, so that all ranks have met for it: what this rank has
        # not met for, the leader has not called.
        looks_up = operation.kind is Kind.LOOKUP
        if operation.kind is Kind.INIT or looks_up is (Kind.LOOKUP in WANTED[collective]):
            return False
        if not operation.is_met:
            raise self._disagreement(key, operation, collective, sequence)
        return True

    def _disagreement(
        self, key: KeyState, operation: Operation, collective: Collective, sequence: int
    ) -> MismatchError:
        theirs = "/".join(kind.value for kind in WANTED[collective])
        return MismatchError(
            f"key {key.spec.key!r}: {self._me} called {operation.kind.value} number {operation.sequence} "
            f"where the leader of its client called {theirs} number {sequence}; all workers of a "
            "client must call the same operations on a key in the same order"
        )

    def clear(self) -> None:
        """All communication has ended."""
        self._announced.clear()

    @property
    def is_empty(self) -> bool:
        """Nothing is announced, and nothing under way."""
        return not self._announced and not self.begun

    def describe_first(self, keys: Mapping[int, KeyState]) -> str:
        """Say what the leader waits in, if anything is announced, for people."""
        if not self._announced:
            return ""
        code, key_id, sequence, *_ = self._announced[0]
        key = keys.get(key_id)
        name = repr(key.spec.key) if key else f"number {key_id}"
        return f"the leader waits in {Collective(code).name} number {sequence} of key {name}"
